package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
)

// A stream that does not, or no longer, accept atomic batches gets its messages one by one.
func TestARefusedBatchGoesOneByOne(t *testing.T) {
	nc, err := nats.Connect(cluster.Start(t, 1)[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	cfg := resultsStream(1)
	cfg.AllowAtomicPublish = false
	cluster.CreateStream(t, nc, cfg)
	w := newConditionWriter(t, nc, 0, 0)
	e := w.begin(t)
	e.batch, e.single, e.group = true, streams.Cost(time.Second), 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := e.emit(ctx, w.group(0, 50)); err != nil {
		t.Fatal(err)
	}
	checkLog(t, nc, 0, 50)
}
