package stage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// The audit has every cause in full; the pages, which anyone who reaches the port can read, have it without the row.
func TestEveryFailedRowsCauseIsInTheAuditAndOnThePage(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: llmtest.Steps(
			llmtest.Step{Status: 400, Body: `{"error":{"message":"cannot answer 'a private text', sorry"}}`},
			llmtest.Step{},
		)}, map[string]string{"STAGE_POOL_SIZE": "1"})
		l.load("a private text")
		l.publish(&nats.Msg{Data: []byte(`{"w":"another private text"}`)})
		l.publish(&nats.Msg{Data: []byte("a private text")})
		l.publish(&nats.Msg{
			Header: nats.Header{streams.HeaderRowProblem: {"line 5: 3 columns, the header has 2"}},
			Data:   []byte("line 5: 3 columns, the header has 2: a,private,text\n"),
		})
		l.load("fine")
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Second)
		report := r.Status()
		r.stop()

		causes := make(map[uint64]string)
		err := stored.ReadAudit(t.Context(), l.js, r.Cfg, stored.ReadOptions{}, []auditlog.Kind{auditlog.KindRow}, func(_ []byte, e *auditlog.Event) error {
			causes[e.Row.Sequence] = fmt.Sprint(e.Row.Errors)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for seq, want := range map[uint64]string{
			1: "[{1 <nil> openai permanent 400 openai: 400: cannot answer 'a private text', sorry}]",
			2: "[{0 <nil>  permanent 0 undefined: row.q (line 1 of the template); the row has: w}]",
			3: "[{0 <nil>  permanent 0 row: 'a' at byte 0, want a JSON object}]",
			4: "[{0 <nil>  permanent 0 line 5: 3 columns, the header has 2}]",
			5: "[]",
		} {
			if got := causes[seq]; got != want {
				t.Errorf("row %d: got %s, want %s", seq, got, want)
			}
		}
		page := fmt.Sprint(report.RowErrors, report.Events)
		for _, want := range []string{
			"openai: 400: cannot answer '[…]', sorry", "failed: api_call_failed: openai", "undefined: row.q (line 1 of the template); the row has: w",
			"line 5: 3 columns, the header has 2",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %q:\n%s", want, page)
			}
		}
		if strings.Contains(page, "private") {
			t.Errorf("the page shows text of a row:\n%s", page)
		}
	})
}
