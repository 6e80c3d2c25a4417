package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

const crewPartitions = 8

// crewMate is one process that may serve any partition of a stage, and shares them with the other processes.
type crewMate struct {
	spread    *spread.Spread
	run       string
	consumers []*consumer.Consumer
	nc        *nats.Conn
	stopSoft  context.CancelFunc
	stopHard  context.CancelFunc
	ended     chan struct{}
}

// partitioned returns a testbed whose input has eight partitions.
func partitioned(t *testing.T) *testbed {
	t.Helper()
	return partitionedInto(t, crewPartitions)
}

func partitionedInto(t *testing.T, partitions int) *testbed {
	t.Helper()
	b := bare(t)
	b.partitions = partitions
	s := stageStreams()
	s.InputSubject, s.Partitions = "rows.{partition}.>", partitions
	stagetest.Must(t, streams.Ensure(t.Context(), b.nc, s))
	return b
}

// mate starts a crewMate. All replicas of a testbed must end before the testbed does.
func (b *testbed) mate(run string, exec *sleeper) *crewMate {
	b.t.Helper()
	exec.over = b.t.Context().Done()
	return b.mateWith(b.config(run, exec))
}

func (b *testbed) mateWith(cfg consumer.Config) *crewMate {
	b.t.Helper()
	nc := b.connect()
	rec := recorder.New(nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: cfg.Name, Logger: cfg.Logger})
	spread := spread.New(nc, spread.Config{Name: cfg.Name, ID: cfg.RunID, Partitions: b.partitions, Logger: cfg.Logger})
	cfg.Recorder, cfg.Spread = rec, spread
	soft, stop := context.WithCancel(b.t.Context())
	hard, kill := context.WithCancel(b.t.Context())
	m := &crewMate{run: cfg.RunID, nc: nc, spread: spread, stopSoft: stop, stopHard: kill, ended: make(chan struct{})}
	rest, stopRest := context.WithCancel(context.WithoutCancel(b.t.Context()))
	var serving, others sync.WaitGroup
	others.Go(func() { _ = rec.Run(rest) })
	others.Go(func() {
		if err := spread.Run(soft, rest); err != nil {
			b.t.Errorf("spread: %v", err)
		}
	})
	for p := range b.partitions {
		cfg := cfg
		cfg.Partition, cfg.InputSubject = p, streams.InputFilter("rows.{partition}.>", p)
		c := stagetest.Value(consumer.New(nc, cfg))(b.t)
		m.consumers = append(m.consumers, c)
		serving.Go(func() {
			if err := c.Run(soft, hard); err != nil {
				b.t.Errorf("partition %d: %v", p, err)
			}
		})
	}
	go func() {
		serving.Wait()
		stopRest()
		others.Wait()
		close(m.ended)
	}()
	return m
}

func (m *crewMate) stop() {
	m.stopSoft()
	<-m.ended
	m.stopHard()
}

// kill ends it as a crash would.
func (m *crewMate) kill() {
	m.nc.Close()
	m.stopHard()
	m.stopSoft()
	<-m.ended
}

// owns returns the partitions that it serves.
func (m *crewMate) owns() (owned []int) {
	for p, c := range m.consumers {
		if c.Status().Role == consumer.Owner {
			owned = append(owned, p)
		}
	}
	return owned
}

// awaitShares waits until the replicas own that many partitions each, in any order, and all of them together.
func (b *testbed) awaitShares(want []int, mates ...*crewMate) {
	b.t.Helper()
	b.awaitOwned(slices.Sort[[]int], want, mates...)
}

// awaitEach is [testbed.awaitShares] with a share for each replica. Where the first replica has eight partitions and is
// about to have two, it has six and the other two for a moment.
func (b *testbed) awaitEach(want []int, mates ...*crewMate) {
	b.t.Helper()
	b.awaitOwned(func([]int) {}, want, mates...)
}

func (b *testbed) awaitOwned(arrange func(shares []int), want []int, mates ...*crewMate) {
	b.t.Helper()
	var shares, all []int
	began := time.Now()
	for range 100 {
		shares, all = nil, nil
		for _, m := range mates {
			owned := m.owns()
			shares, all = append(shares, len(owned)), append(all, owned...)
		}
		arrange(shares)
		slices.Sort(all)
		if slices.Equal(shares, want) && len(slices.Compact(all)) == b.partitions {
			b.t.Logf("shares %v after %v", want, time.Since(began))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.t.Fatalf("shares are %v after %v, want %v", shares, time.Since(began), want)
}

// feed publishes rows to all partitions until the returned function is called, which returns how many each has.
func (b *testbed) feed() func() int {
	b.t.Helper()
	stop, rows := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { rows <- n }()
		for {
			for p := range b.partitions {
				if _, err := b.js.Publish(b.t.Context(), fmt.Sprintf("rows.%d.a", p), []byte(`{"n":`+strconv.Itoa(n)+`}`)); err != nil {
					b.t.Error(err)
					return
				}
			}
			n++
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
			}
		}
	}()
	return func() int { close(stop); return <-rows }
}

// repeated counts the calls beyond the first for each row.
func repeated(execs []*sleeper) map[uint64]int {
	total := make(map[uint64]int)
	for _, e := range execs {
		e.mu.Lock()
		for seq, n := range e.calls {
			total[seq] += n
		}
		e.mu.Unlock()
	}
	for seq, n := range total {
		if n--; n == 0 {
			delete(total, seq)
		} else {
			total[seq] = n
		}
	}
	return total
}
