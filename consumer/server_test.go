package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestServerVersions(t *testing.T) {
	for _, c := range []struct {
		version       string
		serves, reset bool
	}{
		{"2.9.25", false, false},
		{"2.10.29", false, false},
		{"2.11.0", true, false},
		{"2.12.3", true, false},
		{"2.13.0-RC.1", true, false},
		{"2.14.0", true, true},
		{"2.15.2", true, true},
		{"3.0.0", true, true},
		{"", true, true},
	} {
		if err := checkServer(c.version); (err == nil) != c.serves || err != nil && !errors.Is(err, ErrServer) {
			t.Errorf("version %q: %v, serves %v", c.version, err, c.serves)
		}
		if got := canReset(c.version); got != c.reset {
			t.Errorf("version %q: reset %v, want %v", c.version, got, c.reset)
		}
	}
}

// A stream that takes no atomic batches (any more) takes its messages one by one.
func TestARefusedBatchGoesOneByOne(t *testing.T) {
	nc, err := nats.Connect(startCluster(t, 1)[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	cfg := Streams{ResultStream: "RESULTS", ResultSubject: "results"}.resultConfig()
	cfg.AllowAtomicPublish = false
	createStream(t, nc, cfg)
	w := newConditionWriter(t, nc, 0, 0)
	e := w.begin(t)
	e.batch, e.single, e.group = true, cost(time.Second), 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := e.emit(ctx, w.group(0, 50)); err != nil {
		t.Fatal(err)
	}
	checkLog(t, nc, 0, 50)
}
