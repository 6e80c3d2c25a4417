package usage

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/stagetest"
)

// someReport has a group with all numbers, one without usage, and everything that is noted.
func someReport() (*Book, *Report) {
	c := calls{stage: "split", at: time.Date(2026, 11, 24, 15, 0, 0, 0, time.UTC)}
	b := NewBook([]Dimension{ByStage, ByModel})
	add(b,
		c.of("run.a", 1000, 0, auditlog.CallSuccess, func(c *auditlog.Call) {
			c.Usage.CachedTokens, c.Usage.ReasoningTokens, c.Usage.CacheWriteTokens = new(int64(900)), new(int64(1)), new(int64(7))
		}),
		c.of("run.a", 2, 0, auditlog.CallCapacityRetry),
		c.of("run.a", 2, 1, auditlog.CallSuccess, func(c *auditlog.Call) { c.Usage.CostUSD = nil }),
		c.of("run.a", 3, 0, auditlog.CallFailure, func(c *auditlog.Call) { c.Model = "a \x1b[31m,\"b\"" }),
		c.of("run.a", 4, 0, auditlog.CallUnknown, func(c *auditlog.Call) { c.Stage, c.Model = "merge", "" }),
		nil,
	)
	r := b.Report(c.at)
	r.Stages, r.AuditBegins = []string{"split", "merge"}, new(c.at.Add(-time.Hour))
	r.Unused = Unused{Answers: 2, TotalTokens: 10, KnownCostUSD: 0.125, UnpricedBatches: 1}
	r.sortBy(r.Stages)
	return b, r
}

func TestReportsInEachFormat(t *testing.T) {
	_, r := someReport()
	for format, file := range map[Format]string{Table: "report.txt", JSON: "report.json", CSV: "report.csv"} {
		var text strings.Builder
		stagetest.Must(t, r.Write(&text, format))
		golden.Check(t, "testdata/"+file, text.String())
	}
	var text strings.Builder
	stagetest.Must(t, NewBook(nil).Report(time.Time{}).Write(&text, Table))
	golden.Check(t, "testdata/none.txt", text.String())
}

// Nothing is known of the cost, so no number is a lower bound of it.
func TestAnUnknownCostIsNoLowerBound(t *testing.T) {
	c := calls{stage: "a", at: time.Date(2026, 11, 24, 15, 0, 0, 0, time.UTC)}
	b := NewBook(nil)
	add(b, c.of("run.a", 1, 0, auditlog.CallSuccess, func(c *auditlog.Call) { c.Usage.CostUSD = nil }))
	r := b.Report(c.at)
	want := []string{"The cost of 1 call is unknown (no price is set, or no usage was reported)."}
	if got := r.notes(); !slices.Equal(got, want) || !strings.HasSuffix(r.line(), "cost in USD unknown") {
		t.Errorf("notes %q, line %q", got, r.line())
	}
}

func TestLiveReports(t *testing.T) {
	b, r := someReport()
	c := calls{stage: "merge", at: time.Date(2026, 11, 24, 15, 1, 0, 0, time.UTC)}
	add(b, c.of("run.a", 5, 0, auditlog.CallSuccess))
	next := b.Report(c.at)
	show := func(f Format, screen bool) string {
		var text strings.Builder
		l := NewLive(&text, f, screen)
		for _, r := range []*Report{r, next, next} {
			stagetest.Must(t, l.Show(r))
		}
		return text.String()
	}
	golden.Check(t, "testdata/live.txt", show(Table, false))
	golden.Check(t, "testdata/live.csv", show(CSV, true)) // the group that has changed, once
	if got := show(JSON, true); strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, `{"stages":["split","merge"],`) {
		t.Errorf("as JSON, want a line for each report:\n%s", got)
	}
	if got := show(Table, true); strings.Count(got, clearScreen+"STAGE") != 3 {
		t.Errorf("on a terminal, want the table three times, each on a clear screen:\n%q", got)
	}
}
