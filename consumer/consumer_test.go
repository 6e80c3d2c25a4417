package consumer_test

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

func TestMain(m *testing.M) {
	ats.Register() // the server's clock must tick outside the bubbles, or virtual time stands still
	os.Exit(m.Run())
}

func TestARowIsAckedOnlyAfterItsResult(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(10)
		r := b.start("run1", &sleeper{low: 10 * time.Minute, high: 10 * time.Minute})
		time.Sleep(9 * time.Minute)
		if got := b.durable(); got.NumAckPending != 10 || got.AckFloor.Stream != 0 {
			t.Errorf("while rows wait: ack pending %d, floor %d, want 10 and 0", got.NumAckPending, got.AckFloor.Stream)
		}
		time.Sleep(2 * time.Minute)
		if got := b.durable(); got.NumAckPending != 0 || got.AckFloor.Stream != 10 {
			t.Errorf("after the results: ack pending %d, floor %d, want 0 and 10", got.NumAckPending, got.AckFloor.Stream)
		}
		r.stop(t)
	})
}
