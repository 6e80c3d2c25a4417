package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
)

const crewPartitions = 8

// crewMate is one process that serves all partitions of a stage, as far as the others let it.
type crewMate struct {
	consumers []*consumer.Consumer
	nc        *nats.Conn
	stopSoft  context.CancelFunc
	stopHard  context.CancelFunc
	ended     chan struct{}
}

// partitioned returns a bench whose input has partitions.
func partitioned(t *testing.T) *bench {
	t.Helper()
	b := bare(t)
	s := streams()
	s.InputSubject, s.Partitions = "rows.{partition}.>", crewPartitions
	if err := consumer.EnsureStreams(t.Context(), b.nc, s); err != nil {
		t.Fatal(err)
	}
	return b
}

// mate starts one. All replicas of a bench must be ended before it is over.
func (b *bench) mate(run string, exec *sleeper) *crewMate {
	b.t.Helper()
	exec.over = b.t.Context().Done()
	nc := b.connect()
	cfg := b.config(run, exec)
	rec := consumer.NewRecorder(nc, consumer.RecorderConfig{Stream: "AUDIT", Subject: "audit", Name: cfg.Name, Logger: cfg.Logger})
	spread := consumer.NewSpread(nc, cfg.Name, run, crewPartitions, cfg.Logger)
	cfg.Recorder, cfg.Spread = rec, spread
	soft, stop := context.WithCancel(b.t.Context())
	hard, kill := context.WithCancel(b.t.Context())
	m := &crewMate{nc: nc, stopSoft: stop, stopHard: kill, ended: make(chan struct{})}
	rest, stopRest := context.WithCancel(context.WithoutCancel(b.t.Context()))
	var serving, others sync.WaitGroup
	others.Go(func() { _ = rec.Run(rest) })
	others.Go(func() {
		if err := spread.Run(soft, rest); err != nil {
			b.t.Errorf("spread: %v", err)
		}
	})
	for p := range crewPartitions {
		cfg := cfg
		cfg.Partition, cfg.InputSubject = p, consumer.InputFilter("rows.{partition}.>", p)
		c, err := consumer.New(nc, cfg)
		if err != nil {
			b.t.Fatal(err)
		}
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

// owns are the partitions that it serves.
func (m *crewMate) owns() (owned []int) {
	for p, c := range m.consumers {
		if c.Status().Role == consumer.Owner {
			owned = append(owned, p)
		}
	}
	return owned
}

// awaitShares waits until the replicas own that many partitions each, in any order, and all of them together.
func (b *bench) awaitShares(want []int, mates ...*crewMate) {
	b.t.Helper()
	var shares, all []int
	began := time.Now()
	for range 100 {
		shares, all = nil, nil
		for _, m := range mates {
			owned := m.owns()
			shares, all = append(shares, len(owned)), append(all, owned...)
		}
		slices.Sort(shares)
		slices.Sort(all)
		if slices.Equal(shares, want) && len(slices.Compact(all)) == crewPartitions {
			b.t.Logf("shares %v after %v", want, time.Since(began))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.t.Fatalf("shares are %v after %v, want %v", shares, time.Since(began), want)
}

// feed publishes rows to all partitions until stop is closed, and returns how many each has.
func (b *bench) feed(stop <-chan struct{}) func() int {
	b.t.Helper()
	rows := make(chan int)
	go func() {
		n := 0
		defer func() { rows <- n }()
		for {
			for p := range crewPartitions {
				if _, err := b.js.Publish(b.t.Context(), fmt.Sprintf("rows.%d.a", p), []byte(`{"n":`+strconv.Itoa(n)+`}`)); err != nil {
					b.t.Error(err)
					return
				}
			}
			n++
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() int { return <-rows }
}

// TestPartitionsSpreadEvenlyOverReplicas has replicas come and go while rows flow. A partition moves within seconds, with
// its rows in order, each once, and without a call made again, but for those that a kill cut off.
func TestPartitionsSpreadEvenlyOverReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := partitioned(t)
		stop := make(chan struct{})
		rows := b.feed(stop)
		exec := func() *sleeper { return &sleeper{low: 50 * time.Millisecond, high: 400 * time.Millisecond} }
		execs := []*sleeper{exec(), exec(), exec()}

		first := b.mate("first", execs[0])
		b.awaitShares([]int{8}, first)
		second := b.mate("second", execs[1])
		b.awaitShares([]int{4, 4}, first, second)
		third := b.mate("third", execs[2])
		b.awaitShares([]int{2, 3, 3}, first, second, third)
		again := 0
		for _, n := range repeated(execs) {
			again += n
		}
		if again > 0 {
			t.Errorf("%d calls were made again though nobody was killed", again)
		}
		first.kill()
		b.awaitShares([]int{4, 4}, second, third)
		second.stop()
		b.awaitShares([]int{8}, third)

		close(stop)
		n := rows()
		b.await("all results", func() bool {
			for p := range crewPartitions {
				if b.stored("RESULTS", consumer.ResultSubject("results", "stage", p)) < uint64(n) {
					return false
				}
			}
			return true
		})
		third.stop()
		for p := range crewPartitions {
			for i, m := range b.read("RESULTS", consumer.ResultSubject("results", "stage", p)) {
				if got, want := string(m.Data()), fmt.Sprintf(`done {"n":%d}`, i); i >= n || got != want {
					t.Fatalf("partition %d, result %d of %d: got %s, want %s", p, i, n, got, want)
				}
			}
		}
	})
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

// TestRowsThatNobodyTakesAreTakenOutOfTurn has a replica that tells of itself and takes nothing.
func TestRowsThatNobodyTakesAreTakenOutOfTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := partitioned(t)
		over := make(chan struct{})
		var idle sync.WaitGroup
		idle.Go(func() {
			for {
				if err := b.nc.Publish(consumer.SpreadSubject("stage"), []byte(`{"id":"idle","partitions":8,"owned":[]}`)); err != nil {
					t.Error(err)
				}
				select {
				case <-over:
					return
				case <-time.After(300 * time.Millisecond):
				}
			}
		})
		stop := make(chan struct{})
		rows := b.feed(stop)
		mate := b.mate("busy", &sleeper{high: 10 * time.Millisecond})
		time.Sleep(2 * time.Second)
		if got := mate.owns(); len(got) != crewPartitions/2 {
			t.Errorf("it owns %v, want half of them", got)
		}
		b.awaitShares([]int{8}, mate)
		close(stop)
		n := rows()
		b.await("all results", func() bool {
			return b.stored("RESULTS", consumer.ResultSubject("results", "stage", 0)) == uint64(n) &&
				b.stored("RESULTS", consumer.ResultSubject("results", "stage", 7)) == uint64(n)
		})
		mate.stop()
		close(over)
		idle.Wait()
	})
}

// TestSpreadIgnoresWhatIsNotOfThisStage sends it what no replica of the same partitions would.
func TestSpreadIgnoresWhatIsNotOfThisStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := partitioned(t)
		stop := make(chan struct{})
		rows := b.feed(stop)
		mate := b.mate("only", &sleeper{high: 10 * time.Millisecond})
		for range 20 {
			for _, body := range []string{``, `{`, `[]`, `{"id":""}`, `{"id":"only","partitions":8}`, `{"id":"x","partitions":9,"owned":[1]}`, `{"id":"y","partitions":8,"leaving":true}`} {
				if err := b.nc.Publish(consumer.SpreadSubject("stage"), []byte(body)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := mate.owns(); len(got) != crewPartitions {
			t.Errorf("it owns %v, want all", got)
		}
		close(stop)
		rows()
		mate.stop()
	})
}
