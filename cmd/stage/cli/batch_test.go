package cli

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
)

// A stage that runs with STAGE_BATCH=false is told from one that does not run.
func TestWhyNobodyTakesABatch(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		nc := stagetest.Join(t, stagetest.Core(t))
		cfg := stagetest.Config(t)
		says := func(want string) {
			t.Helper()
			if err := batchNotAnswered(t.Context(), nc, cfg, "stage.llm_batch", time.Minute, nats.ErrNoResponders); !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		says("no stage named stage answers on stage.llm_batch")
		replica := replicas.New(nc, "stage", func() replicas.Summary {
			r := status.Report{Stage: "stage", RunID: "a", State: status.StateIdle, Ready: true}
			return replicas.Summarize(&r, 1)
		}, slog.New(slog.DiscardHandler))
		defer stopping.Background(context.Background(), replica.Run)()
		synctest.Wait()
		says("stage stage runs, but takes no batched requests: start it with STAGE_BATCH=true")
	})
}
