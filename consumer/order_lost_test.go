package consumer_test

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

// cutReader returns a replica that takes over after another one was killed, of which row 5 is left with others above it
// done; what it sends to read those is lost.
func (b *testbed) cutReader() (*replica, *link) {
	b.t.Helper()
	b.loadKeys(200, 20)
	exec := slowRow(5, time.Hour, 50*time.Millisecond)
	first := b.startWith(b.ordered(streams.OrderKey, "run1", exec))
	b.until(100)
	first.kill()
	l := newLink(b.InProcessConn, leastLatency)
	l.loses = reads
	nc := b.connectBy(l)
	second := &sleeper{low: 50 * time.Millisecond, high: 50 * time.Millisecond, over: b.t.Context().Done()}
	r := b.startOn(nc, b.ordered(streams.OrderKey, "run2", second))
	time.Sleep(3 * time.Second)
	if st := r.Status(); st.Role == consumer.Owner {
		b.t.Fatal("it owns the partition though it could not read what is emitted")
	}
	return r, l
}

// While servers elect a leader, a request to read the log gets no answer and the connection lasts.
func TestALostRequestToReadTheLogIsRepeatedSoon(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		r, l := b.cutReader()
		l.set(func() { l.loses = nil })
		began := time.Now()
		b.until(200)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the rows came %v after requests had answers again, want at most 5 s", took)
		}
		r.stop(t)
		b.checkOrder(200)
	})
}

func TestAStopEndsTheReadingOfTheLog(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		r, _ := b.cutReader()
		began := time.Now()
		r.stop(t)
		if took := time.Since(began); took > time.Second {
			t.Errorf("a stop took %v while the log was read back, want at most 1 s", took)
		}
	})
}
