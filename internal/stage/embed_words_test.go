package stage

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// A provider that refuses a call quotes its texts, which are of several rows. Results, dead letters and row events have
// no text of another row, and the log has none at all.
func TestNoRowHasTheTextOfAnother(t *testing.T) {
	all := func(llmtest.Call) bool { return true }
	for name, c := range map[string]struct {
		status  int
		refuses func(c llmtest.Call) bool
		vars    map[string]string
		failed  int
		says    string // in each error
	}{
		"texts that are refused": {
			http.StatusBadRequest, func(c llmtest.Call) bool { return has(c, 3) || has(c, 11) }, nil, 2,
			`rows was refused; the provider's words are in the audit"`,
		},
		"a text at which the server fails": {
			http.StatusInternalServerError, func(c llmtest.Call) bool { return has(c, 3) }, nil, 1,
			`rows failed; the provider's words are in the audit"`,
		},
		"no capacity":   {http.StatusTooManyRequests, all, map[string]string{"STAGE_ROW_TIMEOUT": "1m"}, 16, `row timeout after 1m0s: openai: 429: `},
		"an outage":     {http.StatusBadGateway, all, map[string]string{"STAGE_OUTAGE_HOLD": "1m", "STAGE_EMBED_ROWS": "2", "STAGE_RETRY_MAX_ATTEMPTS": "12", "STAGE_POOL_SIZE": "8"}, 16, `held by an outage for 1m0s: openai: 502"`},
		"a refused key": {http.StatusPaymentRequired, all, map[string]string{"STAGE_ON_FATAL": "fail"}, 16, `"provider_code":null,"status_code":402`},
	} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				script := func(call llmtest.Call) *llmtest.Step {
					if !c.refuses(call) {
						return nil
					}
					body := fmt.Sprintf(`{"error":{"message":%q,"code":"x"}}`, strings.Join(call.Inputs, "; "))
					return &llmtest.Step{Status: c.status, Body: body, Delay: time.Second}
				}
				l := newEmbedLab(t, 0, llmtest.Config{Latency: time.Second, Script: script}, map[string]string{"STAGE_DEAD_LETTER_SUBJECT": "dead.rows", "STAGE_RETRY_MAX_ATTEMPTS": "1"})
				stagetest.Value(l.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead.rows"}}))(t)
				for i := range 16 {
					l.load(customer(i + 1))
				}
				l.work(16, c.vars)
				if n := l.failedRows(); n != c.failed {
					t.Errorf("%d rows failed, want %d", n, c.failed)
				}
				for i, body := range l.bodies() {
					own := customer(i + 1)
					_, said, failed := strings.Cut(body, `"llm_response_error":`)
					// The first row may go before any other has come: then the words are about it alone.
					if othersText(body, own) || failed && !strings.Contains(said, c.says) && !strings.Contains(said, own) {
						t.Errorf("row %d: %s", i+1, body)
					}
				}
				for _, e := range l.events(auditlog.KindRow) {
					if text := fmt.Sprint(e.Row.Errors); othersText(text, customer(int(e.Row.Sequence))) {
						t.Errorf("the event of row %d: %s", e.Row.Sequence, text)
					}
				}
				dead := l.stored("DEAD", "dead.rows", c.failed)
				for _, m := range dead {
					said := strings.Join(m.Header["Stage-Error"], "")
					own := string(m.Body[strings.Index(string(m.Body), "customer "):])
					if said == "" || othersText(said, own[:len(customer(1))]) {
						t.Errorf("a dead letter of %s: %s", own, said)
					}
				}
				if len(dead) != c.failed {
					t.Errorf("%d dead letters", len(dead))
				}
				if log := l.logs.String(); strings.Contains(log, "customer ") {
					at := strings.Index(log, "customer ")
					t.Errorf("the log has %s", log[max(0, at-500):at+100])
				}
				l.proven()
			})
		})
	}
}

func customer(i int) string { return fmt.Sprintf("customer %02d has a secret of %d00 letters", i, i) }

func has(c llmtest.Call, i int) bool { return slices.Contains(c.Inputs, customer(i)) }

// othersText reports whether a text has one of another customer.
func othersText(text, own string) bool {
	return strings.Contains(strings.ReplaceAll(text, own, ""), "customer ")
}
