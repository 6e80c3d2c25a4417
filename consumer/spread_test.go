package consumer_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestPartitionsSpreadEvenlyOverReplicas has replicas come and go while rows flow. A partition moves within seconds, with
// its rows in order, each once, and without repeating a call, except for those that a kill cut off.
func TestPartitionsSpreadEvenlyOverReplicas(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		execs := []*sleeper{unhurried(), unhurried(), unhurried()}

		first := b.mate("first", execs[0])
		b.awaitShares([]int{8}, first)
		second := b.mate("second", execs[1])
		b.awaitShares([]int{4, 4}, first, second)
		third := b.mate("third", execs[2])
		b.awaitShares([]int{2, 3, 3}, first, second, third)
		b.awaitOthers(2, first, second, third)
		again := 0
		for _, n := range repeated(execs) {
			again += n
		}
		if again > 0 {
			t.Errorf("%d calls were made again though nobody was killed", again)
		}
		first.kill()
		b.awaitShares([]int{4, 4}, second, third)
		b.awaitOthers(1, second, third)
		second.stop()
		b.awaitShares([]int{8}, third)
		b.awaitOthers(0, third)

		n := rows()
		b.await("all results", func() bool {
			for p := range crewPartitions {
				if b.stored("RESULTS", streams.ResultSubject("results", "stage", p)) < n {
					return false
				}
			}
			return true
		})
		third.stop()
		for p := range crewPartitions {
			for i, m := range b.read("RESULTS", streams.ResultSubject("results", "stage", p)) {
				if got, want := string(m.Data()), fmt.Sprintf(`done {"n":%d}`, i); i >= n || got != want {
					t.Fatalf("partition %d, result %d of %d: got %s, want %s", p, i, n, got, want)
				}
			}
		}
	})
}

// awaitOthers waits until each knows of so many others that serve partitions.
func (b *testbed) awaitOthers(n int, mates ...*crewMate) {
	b.t.Helper()
	b.await(fmt.Sprintf("%d others", n), func() bool {
		return !slices.ContainsFunc(mates, func(m *crewMate) bool { return m.spread.Others() != n })
	})
}

// TestSpreadIgnoresWhatIsNotOfThisStage sends it what no replica of the same partitions would.
func TestSpreadIgnoresWhatIsNotOfThisStage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		mate := b.mate("only", &sleeper{high: 10 * time.Millisecond})
		for range 20 {
			for _, body := range []string{``, `{`, `[]`, `{"id":""}`, `{"id":"only","partitions":8}`, `{"id":"x","partitions":9,"owned":[1]}`, `{"id":"y","partitions":8,"leaving":true}`} {
				stagetest.Must(t, b.nc.Publish(spread.Subject("stage"), []byte(body)))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := mate.owns(); len(got) != crewPartitions {
			t.Errorf("it owns %v, want all", got)
		}
		if n := mate.spread.Others(); n != 0 {
			t.Errorf("it knows of %d others, want none", n)
		}
		rows()
		mate.stop()
	})
}

// TestAReplicaIsReadyOnceItIsConnectedAgain restarts the server. A replica looks at the partitions of others one by one,
// which takes minutes where there are many: none of them may keep it from being ready until then.
func TestAReplicaIsReadyOnceItIsConnectedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		first, second := b.mate("first", unhurried()), b.mate("second", unhurried())
		b.awaitShares([]int{4, 4}, first, second)
		rows()
		b.stopServer()
		time.Sleep(5 * time.Second)
		b.startServer()
		time.Sleep(3 * time.Second)
		for _, m := range []*crewMate{first, second} {
			for p, c := range m.consumers {
				if s := c.Status(); s.Problem != "" {
					t.Errorf("%s, partition %d, %s: %s", m.run, p, s.Role, s.Problem)
				}
			}
		}
		first.stop()
		second.stop()
	})
}
