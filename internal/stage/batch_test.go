package stage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// sendBatch sends a batched request as soon as a stage answers.
func (l *lab) sendBatch(body string) *nats.Msg {
	l.t.Helper()
	patience := 1
	for {
		ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Minute)
		m, err := l.nc.RequestWithContext(ctx, "stage.llm_batch", []byte(body))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && l.t.Context().Err() == nil && patience > 0 {
			// The server gave it to a connection that was being closed.
			patience--
			continue
		}
		if errors.Is(err, nats.ErrNoResponders) {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			l.t.Fatal(err)
		}
		return m
	}
}

func TestVerifyTellsTheCallsOfBatchesFromThoseOfRows(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		prices := stagetest.File(t, "prices.yaml", "large: {input: 1, output: 2}\n")
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
			if c.N%5 == 4 {
				return &llmtest.Step{Status: 429}
			}
			return nil
		}}, map[string]string{"STAGE_PRICES_FILE": prices})
		l.load("a", "b", "c", "d", "e", "f")
		r := l.serveBatches()
		m := l.sendBatch(`{"prompts": ["x", "y", "z"], "contexts": ["p", null, null]}`)
		if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
			t.Fatalf("%s: %s", code, m.Data)
		}
		l.await(6)
		r.stop()

		report := stagetest.Value(verify.Run(t.Context(), l.js, l.config(nil), &l.logs))(t)
		batched := uint64(0)
		for _, e := range l.events(auditlog.KindCall) {
			if e.Call.BatchID != "" {
				batched++
			}
		}
		l.sameUsage(report)
		a := report.Audit
		if report.Verdict != verify.VerdictProven || a.Batched != batched || batched < 3 || a.Elsewhere != 0 || a.RunsChecked != 1 || a.CostUSD == nil {
			var text strings.Builder
			report.WriteText(&text)
			t.Errorf("%d calls of batches in the audit: %+v\n%s", batched, a, text.String())
		}
		var text strings.Builder
		report.WriteText(&text)
		if !strings.Contains(text.String(), " of batched requests, 0 of rows or terms without a result;") {
			t.Error(text.String())
		}
	})
}

func TestTheCostOfBatchesCountsAfterARestart(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		prices := stagetest.File(t, "prices.yaml", "large: {input: 1000000, output: 0}\n")
		l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_PRICES_FILE": prices, "STAGE_MAX_COST_USD": "1"})
		for _, want := range []string{"", batch.CodeAllFailed} {
			r := l.serveBatches()
			m := l.sendBatch(`{"prompts": ["x"]}`)
			if code := m.Header.Get(micro.ErrorCodeHeader); code != want {
				t.Errorf("%q: %s, want %q", code, m.Data, want)
			}
			r.stop()
			r.Conn.NC().Close()
		}
	})
}
