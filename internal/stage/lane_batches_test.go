package stage

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
)

// newBatchesLab is a stage whose provider has a Batch API that answers after 20 minutes.
func newBatchesLab(t *testing.T, api batches.Config, vars map[string]string) *lab {
	t.Helper()
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(prices, []byte("large: {input: 2, output: 8, batch_input: 1, batch_output: 4}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if api.Delay == 0 {
		api.Delay = 20 * time.Minute
	}
	all := map[string]string{
		"STAGE_LANE": "batch", "STAGE_PRICES_FILE": prices, "STAGE_LANE_ROWS": "50", "STAGE_LANE_WAIT": "5s", "STAGE_WINDOW": "64",
		"STAGE_POOL_SIZE": "4",
	}
	maps.Copy(all, vars)
	return newLab(t, llmtest.Config{Latency: time.Second, Batches: api}, all)
}

// awaitHours is await for batches: it gives up after three days.
func (l *lab) awaitHours(n int) {
	l.t.Helper()
	for range 3 * 24 * 60 {
		if stagetest.Stored(l.t, l.js, "RESULTS", "results.stage.0.rows") >= n {
			return
		}
		time.Sleep(time.Minute)
	}
	l.t.Fatalf("never %d results; log:\n%s", n, l.logs.String())
}

// proven verifies the streams of a lab.
func (l *lab) proven() *verify.Report {
	l.t.Helper()
	report := stagetest.Value(verify.Run(l.t.Context(), l.js, l.config(nil), &l.logs))(l.t)
	if report.Verdict != verify.VerdictProven {
		var text strings.Builder
		report.WriteText(&text)
		l.t.Errorf("not proven:\n%s", text.String())
	}
	l.sameUsage(report)
	return report
}

// sameUsage checks that stage usage adds up the same calls as verify, and what batches were billed beyond these.
func (l *lab) sameUsage(report *verify.Report) {
	l.t.Helper()
	book := usage.NewBook(nil)
	if err := usage.NewReader(l.config(nil), book, usage.Options{Stages: []string{"stage"}}).Read(l.t.Context(), l.js); err != nil {
		l.t.Fatal(err)
	}
	u := book.Report(time.Now().Add(time.Hour))
	a, tokens := report.Audit, u.Unused.TotalTokens
	if u.Total.TotalTokens != nil {
		tokens += *u.Total.TotalTokens
	}
	if u.Total.Calls != a.Calls || u.Total.CapacityRetries != a.CapacityRetries || a.Tokens != nil && *a.Tokens != tokens {
		l.t.Errorf("stage usage has %+v and %+v; verify %+v with %d tokens", u.Total, u.Unused, a, *a.Tokens)
	}
}

func questions(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint("question ", i)
	}
	return list
}

func TestABatchOfAProviderAnswersRowsForHalfThePrice(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newBatchesLab(t, batches.Config{Delay: 2 * time.Minute}, map[string]string{"STAGE_LANE_ROWS": "20"})
		l.load(questions(50)...)
		r := l.start(nil, Options{})
		l.awaitHours(50)
		time.Sleep(2 * time.Minute) // the batches are done with
		r.stop()
		for i, r := range l.results() {
			if r.Error != nil || r.Q != fmt.Sprint("question ", i) || r.Text == "" {
				t.Fatalf("row %d: %+v", i, r)
			}
		}
		phases := map[auditlog.BatchPhase]int{}
		for _, e := range l.events(auditlog.KindBatch) {
			phases[e.Batch.Phase]++
		}
		if phases[auditlog.BatchIntent] != 3 || phases[auditlog.BatchSubmitted] != 3 || phases[auditlog.BatchEnded] != 3 {
			t.Errorf("phases %v, want 3 batches of 50 rows", phases)
		}
		report := l.proven()
		if report.Audit.Elsewhere != 0 {
			t.Errorf("%d calls without a result", report.Audit.Elsewhere)
		}
	})
}

// As with live calls: there is nobody to raise the ceiling of a job, or to give another key, while it runs.
func TestAJobEndsWhereNoBatchFitsBelowTheCeiling(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newBatchesLab(t, batches.Config{}, map[string]string{"STAGE_MAX_COST_USD": "0.01"})
		l.load(questions(50)...)
		r := l.start(nil, Options{ExitOnFatal: true})
		if err := r.ended(); !isFatal(err) || !errors.Is(err, cost.ErrCeiling) {
			t.Errorf("it ended with %v", err)
		}
	})
}
