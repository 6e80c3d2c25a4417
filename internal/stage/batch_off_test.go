package stage

import (
	"errors"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// TestWithoutBatchesNobodyServesThem: with STAGE_BATCH=false there is neither a service nor a subscription, and the rows
// are answered as before.
func TestWithoutBatchesNobodyServesThem(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		for _, served := range []string{"true", "false"} {
			l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_BATCH": served})
			l.load("a")
			r := l.serveBatches()
			l.await(1)
			time.Sleep(time.Minute) // by then whatever serves is there
			for subject, body := range map[string]string{"stage.llm_batch": `{"prompts": ["x"]}`, "$SRV.PING": "", "$SRV.INFO.llm-stage": ""} {
				_, err := l.nc.Request(subject, []byte(body), time.Minute)
				if none := errors.Is(err, nats.ErrNoResponders); none != (served == "false") {
					t.Errorf("STAGE_BATCH=%s: %s: %v", served, subject, err)
				}
			}
			r.stop()
			r.Conn.NC().Close()
		}
	})
}
