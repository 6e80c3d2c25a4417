package usage

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// Calls are grouped by a member of their rows, from the input or, where that is gone, from
// the results. The groups add up to the total.
func TestCallsAreGroupedByAMemberOfTheirRows(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	bodies := []string{
		`{"customer":"a\/c","n":1}`, `{"customer":7}`, `{"customer":"acme","customer":"a/c"}`, `{"n":1}`, `nonsense customer`,
		`{"customer":null}`, `{"customer":{ "x": 1}}`, `{"cust\u006fmer":"a/c"}`,
	}
	for _, body := range bodies {
		b.Publish(&nats.Msg{Subject: "rows.a", Data: []byte(body)})
	}
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	for seq := range uint64(len(bodies)) {
		j.Call("run1.a", seq+1, 0, auditlog.CallCapacityRetry)
		j.Call("run1.a", seq+1, 1, auditlog.CallSuccess)
		b.Publish(&nats.Msg{
			Subject: "results.stage.0.rows", Header: nats.Header{streams.HeaderSourceSeq: {fmt.Sprint(seq + 1)}},
			Data: []byte(strings.TrimSuffix(bodies[seq], "}") + `,"llm_response":"x"}`),
		})
	}
	b.Store(j)
	want := []string{"[] 6", "[7] 2", "[a/c] 6", `[{"x":1}] 2`}
	check := func(want []string, gone uint64) {
		t.Helper()
		r := readAll(b, Options{Stages: []string{"stage"}}, "field.customer")
		var got []string
		var calls uint64
		var tokens int64
		for i := range r.Groups {
			g := &r.Groups[i]
			got = append(got, fmt.Sprint(r.names(g), g.Calls))
			calls, tokens = calls+g.Calls, tokens+*g.TotalTokens
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || calls != r.Total.Calls || tokens != *r.Total.TotalTokens || r.RowsGone != gone {
			t.Errorf("got %q with %d calls, %d tokens, %d gone; want %q, %d calls, %d tokens, %d gone", got, calls, tokens, r.RowsGone, want, r.Total.Calls, *r.Total.TotalTokens, gone)
		}
		text := stagetest.Value(json.Marshal(r.Groups))(t)
		if !strings.HasPrefix(string(text), `[{"field.customer":null,"calls":`) {
			t.Errorf("as JSON: %s", text)
		}
	}
	check(want, 0)
	b.Purge(b.Cfg.Input.Stream, 4) // three rows are gone, and have their results
	check(want, 0)
	b.Drop(b.Cfg.Input.Stream)
	check(want, 0)
	b.Drop(b.Cfg.Result.Stream)
	check([]string{"[] 16"}, 16)
}
