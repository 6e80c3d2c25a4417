package stage

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// What stage usage adds up is to the token what the summaries of the runs say, and what the LLM has billed: of rows that
// fan out, with calls that are refused, that fail, and that have no price.
func TestUsageIsThatOfTheRuns(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		prices := stagetest.File(t, "prices.yaml", "large: {input: 10, output: 20}\n")
		l := newLab(t, llmtest.Config{
			Rate: 20, Latency: 300 * time.Millisecond, LatencySigma: .5, Seed: 3,
			Errors: map[int]float64{500: .05, 400: .02},
		}, map[string]string{
			"STAGE_FOREACH": "parts", "STAGE_FOREACH_ERRORS": "keep", "STAGE_TEMPLATE": "{{ item }} of {{ row.q }}", "STAGE_PRICES_FILE": prices,
		})
		const rows = 60
		for i := range rows {
			parts := make([]string, i%5)
			for p := range parts {
				parts[p] = fmt.Sprintf(`"part %d"`, p)
			}
			m := &nats.Msg{Data: fmt.Appendf(nil, `{"q":"row %d","parts":[%s]}`, i, strings.Join(parts, ","))}
			if i%20 == 3 {
				m.Header = nats.Header{"Stage-Model": {"unpriced"}}
			}
			l.publish(m)
		}
		for i := range 2 { // the second run goes on where the first has stopped
			r := l.start(nil, Options{})
			l.await([]int{rows / 3, rows}[i])
			r.stop()
		}

		var want auditlog.Totals
		var known, unpriced float64
		runs := 0
		for _, e := range l.events(auditlog.KindRun) {
			if s := e.Run.Summary; s != nil {
				runs++
				want.Calls += s.Total.Calls
				want.Usage = want.Usage.Plus(s.Total.Usage)
				for _, m := range s.Usage {
					if m.Usage != nil && m.Usage.CostUSD != nil {
						known += *m.Usage.CostUSD
					} else {
						unpriced++
					}
				}
			}
		}
		book := usage.NewBook([]usage.Dimension{usage.ByModel})
		if err := usage.NewReader(l.config(nil), book, usage.Options{Stages: []string{"stage"}}).Read(t.Context(), l.js); err != nil {
			t.Fatal(err)
		}
		u := book.Report(time.Now())
		n := u.Total
		if runs != 2 || n.Calls != want.Calls || *n.PromptTokens != want.Usage.PromptTokens || *n.CompletionTokens != want.Usage.CompletionTokens || *n.TotalTokens != want.Usage.TotalTokens {
			t.Errorf("%d calls, %d+%d of %d tokens; the summaries of %d runs %d calls, %+v", n.Calls, *n.PromptTokens, *n.CompletionTokens, *n.TotalTokens, runs, want.Calls, want.Usage)
		}
		if n.CapacityRetries == 0 || n.Failed == 0 || n.Succeeded == 0 || n.Calls != n.Succeeded+n.Failed+n.CapacityRetries+n.Unknown {
			t.Errorf("%+v, want some of each", n)
		}
		if len(u.Groups) != 2 || *u.Groups[0].Model != "large" || u.Groups[0].CostUSD == nil || math.Abs(*u.Groups[0].CostUSD-known) > 1e-9 ||
			n.CostUSD != nil || math.Abs(n.KnownCostUSD-known) > 1e-9 || n.UnpricedCalls == 0 || unpriced == 0 {
			t.Errorf("groups %+v of total %+v, want a cost of %g in the first, unknown in the other", u.Groups, n, known)
		}
	})
}
