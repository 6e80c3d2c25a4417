package cli

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
)

// The errors of a stage that runs with STAGE_BATCH=false and of one that does not run differ.
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

// TestAGetWaitsOnWhileTheStageIsReplaced: the stage that has the request is killed, and for
// a while nobody answers.
func TestAGetWaitsOnWhileTheStageIsReplaced(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		core := stagetest.Core(t)
		conn, cfg := natsconn.Over(stagetest.Join(t, core), nil), stagetest.Config(t)
		get := func(wait time.Duration) (*batch.Deferred, error) { return getBatch(t.Context(), conn, cfg, "id", wait) }
		stage := stagetest.Join(t, core)
		killed := stagetest.Value(stage.Subscribe("stage.llm_batch.get", func(*nats.Msg) {}))(t)
		stagetest.Must(t, stage.Flush())
		if _, err := get(0); err == nil || !strings.Contains(err.Error(), "has the request, but sent no reply within 30s") {
			t.Errorf("of a stage that is killed: %v", err)
		}
		time.AfterFunc(15*time.Second, func() { stagetest.Must(t, errors.Join(killed.Unsubscribe(), stage.Flush())) })
		time.AfterFunc(2*time.Minute, func() {
			_, err := stage.Subscribe("stage.llm_batch.get", func(m *nats.Msg) { _ = m.Respond([]byte(`{"id": "id", "state": "done", "results": []}`)) })
			stagetest.Must(t, errors.Join(err, stage.Flush()))
		})
		if reply, err := get(time.Hour); err != nil || !reply.State.Over() {
			t.Errorf("after the stage was replaced: %+v, %v", reply, err)
		}
		stagetest.Must(t, errors.Join(stage.Drain()))
		synctest.Wait()
		began := time.Now()
		if _, err := get(time.Hour); err == nil || !strings.HasPrefix(err.Error(), "no stage named stage") || time.Since(began) > time.Minute {
			t.Errorf("of no stage at all, after %v: %v", time.Since(began), err)
		}
	})
}
