//go:build long

package erase_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/erase"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// Rows are erased while 20,000 of them are answered by replicas that take over from each
// other. Erasures are killed at any step.
func TestFiveHundredRowsAreErasedWhileReplicasTakeOver(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows, erasures, each = 20_000, 50, 10
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
		s := newSite(t, llmtest.Config{Latency: 50 * time.Millisecond}, map[string]string{"STAGE_POOL_SIZE": "100", "STAGE_WINDOW": "1000"})
		s.rows("row 1")
		for i := 1; i < rows; i++ {
			stagetest.Value(s.js.PublishMsgAsync(&nats.Msg{Subject: "rows.in", Data: fmt.Appendf(nil, `{"q":"row %d of %s"}`, i+1, secret)}))(t)
		}
		<-s.js.PublishAsyncComplete()
		stop := s.start()
		erased, killed := make(map[uint64]bool), errors.New("killed")
		for n := range erasures {
			s.await("RESULTS", "results.stage.0.rows", (n+1)*rows/erasures/2-len(erased))
			if n%10 == 9 { // another replica takes over
				next := s.start()
				stop()
				stop = next
			}
			o := rowsOf()
			for range each {
				row := 1 + random.Uint64N(uint64((n+1)*rows/erasures/2-2000*min(1, n/10)+1)) //nolint:gosec // small
				o.Rows = append(o.Rows, erase.Range{First: row, Last: row})
			}
			steps, most := 0, random.IntN(100)
			o.Step = func(string) error {
				if steps++; steps == most {
					return killed
				}
				return nil
			}
			plan := stagetest.Value(erase.New(t.Context(), s.js, s.config(), o))(t)
			if err := plan.Execute(t.Context()); err != nil && !errors.Is(err, killed) && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			for _, row := range plan.Report().Rows {
				erased[row] = true
			}
			o.Step = nil
			if n%3 == 2 {
				s.erase(erase.Options{Resume: true, Partition: -1, By: "bob"})
			}
		}
		s.await("RESULTS", "results.stage.0.rows", rows-len(erased))
		stop()
		s.erase(erase.Options{Resume: true, Partition: -1, By: "bob"})
		r := s.proven()
		t.Logf("%d rows, %d erased, %d calls", rows, r.Erased, s.llm.Stats().Received)
		if r.Erased == 0 || r.Erased > len(erased) {
			t.Errorf("erased: %d, want at most %d", r.Erased, len(erased))
		}
	})
}
