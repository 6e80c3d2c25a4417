package stored_test

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

// An embedded server holds the ids of events in the memory of the stage, so it knows them
// for less time.
func TestAnEmbeddedServerForgetsTheIdsOfEventsSooner(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		want time.Duration
	}{
		{"embedded", nil, 15 * time.Second},
		{"elsewhere", []string{"STAGE_NATS_URL", "nats://127.0.0.1:4222"}, 0},
	} {
		if got := stored.Streams(stagetest.Config(t, c.env...)).AuditDuplicates; got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestADurableKnowsTheOrder(t *testing.T) {
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone} {
		d := stored.Durable(stagetest.Config(t, "STAGE_ORDER", string(order), "STAGE_ORDER_SPAN", "5000"), 0)
		if d.Order != order || d.OrderSpan != 5000 {
			t.Errorf("%s: got order %s and span %d", order, d.Order, d.OrderSpan)
		}
	}
}
