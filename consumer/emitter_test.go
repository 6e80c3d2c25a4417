package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
)

// A stream that does not, or no longer, accept atomic batches gets its messages one by one.
func TestARefusedBatchGoesOneByOne(t *testing.T) {
	nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
	defer nc.Close()
	cfg := resultsStream(1)
	cfg.AllowAtomicPublish = false
	cluster.CreateStream(t, nc, cfg)
	w := newConditionWriter(t, nc, 0, 0)
	e := w.begin(t)
	e.takes.atomic, e.single, e.group = true, streams.Cost(time.Second), 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stagetest.Value(e.emit(ctx, w.group(0, 50)))(t)
	checkLog(t, nc, 0, 50)
}

func TestABatchIsForRowsThatWouldWaitLongerWithoutIt(t *testing.T) {
	const ms = streams.Cost(time.Millisecond)
	for _, c := range []struct {
		name          string
		single, group streams.Cost
		rows, want    int
	}{
		{"one row", ms, ms / 2, 1, 1},
		{"what has gathered while the server was busy for a moment", ms / 5, 25 * ms, 40, 1},
		{"the same on a busy machine", ms, 50 * ms, 40, 1},
		{"more than singles keep up with", ms / 5, 25 * ms, 64, 64},
		{"few, where each is synced", 5 * ms, 25 * ms, 6, 6},
		{"few, where replicas are asked", ms, 3 * ms, 4, 4},
		{"more than the server takes", ms, 3 * ms, 5000, streams.AppendMax},
	} {
		e := &emitter{single: c.single, group: c.group}
		e.takes.atomic = true
		if _, got := e.choose(c.rows, time.Now()); got != c.want {
			t.Errorf("%s: %d of %d rows are appended, want %d", c.name, got, c.rows, c.want)
		}
	}
}

// A single append that was slow once, for another reason than the server's usual pace, must not mean batches for ever.
func TestBatchesLetTheMeasureOfASingleAppendFade(t *testing.T) {
	nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
	defer nc.Close()
	cluster.CreateStream(t, nc, resultsStream(1))
	w := newConditionWriter(t, nc, 0, 0)
	e := w.begin(t)
	e.takes.atomic, e.single, e.group = true, streams.Cost(time.Minute), 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 20 {
		stagetest.Value(e.emit(ctx, w.group(uint64(10*i), 10)))(t)
	}
	if e.single > streams.Cost(20*time.Second) {
		t.Errorf("after 20 batches a single append still counts %v", time.Duration(e.single))
	}
}
