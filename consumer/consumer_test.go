package consumer_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats-server/v2/server/ats"
)

func TestMain(m *testing.M) {
	ats.Register() // the server's clock must tick outside the bubbles, or virtual time stands still
	os.Exit(m.Run())
}

func TestResultsComeInStreamOrderWhateverTheLatency(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.load(300)
		r := b.start("run1", &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond})
		b.finish(r, 300)
	})
}

func TestARowIsAckedOnlyAfterItsResult(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
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

func TestAKilledOwnerIsReplaced(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.load(500)
		exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
		for i := range 4 {
			r := b.start("run"+strconv.Itoa(i), exec)
			b.until((i + 1) * 90)
			r.kill()
		}
		r := b.start("last", exec)
		b.until(500)
		r.stop(t)
		exec.wg.Wait()
		b.check(500)
	})
}

func TestManyReplicasEmitEachRowOnce(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.load(400)
		exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
		var rs []*replica
		for i := range 3 {
			rs = append(rs, b.start("run"+strconv.Itoa(i), exec))
		}
		for i := range 4 {
			b.until(i*90 + 10)
			for _, r := range rs {
				if r.Status().Role == consumer.Owner {
					in := b.stream("ROWS")
					// The pin is taken from a healthy owner: it must notice and give way, or continue.
					if err := in.UnpinConsumer(t.Context(), "stage-0", "stage"); err != nil {
						t.Logf("unpin: %v", err)
					}
				}
			}
		}
		b.until(400)
		for _, r := range rs {
			r.stop(t)
		}
		exec.wg.Wait()
		b.check(400)
	})
}

func TestACleanStopHandsOver(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.load(200)
		exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
		first := b.start("first", exec)
		second := b.start("second", exec)
		b.until(60)
		owner, standby := first, second
		if second.Status().Role == consumer.Owner {
			owner, standby = second, first
		}
		owner.stop(t)
		time.Sleep(200 * time.Millisecond)
		if got := standby.Status().Role; got != consumer.Owner {
			t.Errorf("200 ms after a clean stop: standby is %s, want %s", got, consumer.Owner)
		}
		b.finish(standby, 200)
	})
}
