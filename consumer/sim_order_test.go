package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// simKeyHeader is where rows have their key, and simKeyWords what the claims call it.
const (
	simKeyHeader = "Key"
	simKeyWords  = "header." + simKeyHeader
)

// simOrder is the order of results that a seed draws, and what rows have to do with it.
type simOrder struct {
	order streams.Order // of the processes that start next
	mixed bool          // it may change, and rows have keys
	// refusing says that the processes that start are meant to end by themselves, see changeOrder.
	refusing bool
	window   int
	span     int
	hot      int // of a hundred rows, so many have one of two keys
	// One of refuseEvery rows is refused by the provider for some time; 0: none. With refuseLong the first one is for
	// a long time.
	refuseEvery int
	refuseLong  bool
	// anyRow says that executors take any row that waits, and not the oldest.
	anyRow bool

	// Guarded by sim.mu.
	keys map[uint64]string // of rows, as their results have them

	// refused is until when rows are, by sequence. Executors ask for it with their lock held,
	// and who holds sim.mu asks executors: it needs a lock of its own.
	refused sync.Map
}

// orderOf draws the order of a seed.
func orderOf(seed uint64) streams.Order {
	return [...]streams.Order{
		streams.OrderKey, streams.OrderKey, streams.OrderStream, streams.OrderNone, streams.OrderKey, streams.OrderStream, streams.OrderNone,
	}[seed%7]
}

// setOrder draws what rows have to do with the order. Half of the seeds that begin with stream order keep it, and draw
// nothing.
func (s *sim) setOrder(order streams.Order) {
	s.order, s.mixed, s.window = order, order != streams.OrderStream || s.seed%7 == 5, simWindow
	s.keys = make(map[uint64]string)
	if !s.mixed {
		return
	}
	s.window = []int{16, simWindow, 2 * simWindow}[s.rng.IntN(3)]
	s.span = []int{s.window, 3 * s.window, 0}[s.rng.IntN(3)]
	s.hot = []int{0, 30, 90}[s.rng.IntN(3)]
	if s.keyed() { // else one that is refused would hold up all
		s.refuseEvery, s.refuseLong = 100, s.rng.IntN(4) == 0
	}
	s.anyRow = s.rng.IntN(2) == 0
}

// changeTo changes the order while the watcher may look at it. The goroutine of the run reads it without the lock, since
// only that goroutine changes it.
func (s *sim) changeTo(order streams.Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = order
}

// keyed reports whether results may leave the order of the stream.
func (s *sim) keyed() bool { return s.order != streams.OrderStream }

// configure sets the order of a process.
func (s *sim) configure(cfg *consumer.Config) {
	cfg.Order, cfg.OrderSpan = s.order, s.span
	if s.order == streams.OrderKey {
		cfg.OrderKey = simKeyWords
		cfg.Key = func(row *consumer.Row) string { return streams.KeyHeader(row.Header.Get(simKeyHeader)) }
	}
}

// drawKey draws the key of a row: a few hot ones, many rare ones, one too long for a header, and none.
func (s *sim) drawKey() string {
	switch n := s.rng.IntN(100); {
	case n < s.hot:
		return fmt.Sprintf("hot%d", n%2)
	case n%10 == 0:
		return ""
	case n%10 == 1:
		return strings.Repeat("long", 100)
	default:
		return fmt.Sprintf("key%d", s.rng.IntN(100))
	}
}

// drawRefusal draws until when a new row is refused; zero: it is not.
func (s *sim) drawRefusal() time.Time {
	if s.refuseEvery == 0 || s.rng.IntN(s.refuseEvery) > 0 {
		return time.Time{}
	}
	if s.refuseLong {
		s.refuseLong = false
		s.note("refused for long")
		return time.Now().Add(scaled().aLongTime)
	}
	s.note("refused for a while")
	return time.Now().Add(moment(s.rng, time.Minute))
}

// refusedUntil is until when the provider refuses a row.
func (s *sim) refusedUntil(seq uint64) time.Time {
	until, _ := s.refused.Load(seq)
	at, _ := until.(time.Time)
	return at
}

// longest is how long rows are refused yet.
func (s *sim) longest() (most time.Duration) {
	for _, until := range s.refused.Range {
		most = max(most, time.Until(until.(time.Time)))
	}
	return most
}

// refusedLess reports whether no row is refused for longer than that.
func (s *sim) refusedLess(than time.Duration) bool { return s.longest() < than }

// spanRows is how many rows above the low-water mark may be taken.
func (s *sim) spanRows() int {
	if s.span == 0 {
		return 65536
	}
	return s.span
}

// due returns the rows of a partition that are within window and span and wait for no other row; done are those that have
// their result. sim.mu is held.
func (s *sim) due(p int, done map[uint64]bool) (rows []uint64) {
	low := slices.IndexFunc(s.rows[p], func(seq uint64) bool { return !done[seq] })
	if low < 0 {
		return nil
	}
	open, waits := 0, make(map[string]bool)
	for _, seq := range s.rows[p][low:min(len(s.rows[p]), low+s.spanRows())] {
		if done[seq] {
			continue
		}
		if open++; open > s.window-s.window/8 { // the rest is kept for keys that do not wait
			break
		}
		if key := s.keys[seq]; s.order == streams.OrderNone || !waits[key] {
			waits[key] = true
			rows = append(rows, seq)
		}
	}
	return rows
}

// faultOfOrder loses acks or requests to read the log, or changes the order.
func (s *sim) faultOfOrder(r *simReplica) {
	s.t.Helper()
	what := s.rng.IntN(4)
	if what < 2 {
		s.changeOrder(r)
		return
	}
	if !r.alive {
		return
	}
	link := r.link
	if what == 2 {
		s.note("acks lost")
		link.set(func() { link.loses = acks })
		s.heals = append(s.heals, heal{time.Now().Add(moment(s.rng, 6*time.Second)), func() { link.set(func() { link.loses = nil }) }})
		return
	}
	s.note("reads lost") // as while the servers elect a leader
	link.set(func() { link.loses = reads })
	s.healAfter(moment(s.rng, 3*time.Second), func() { link.set(func() { link.loses = nil }) })
}

// changeOrder ends all processes and starts others with another order. Where rows above the low-water mark have their
// result they must refuse to serve, and the former order is kept.
func (s *sim) changeOrder(r *simReplica) {
	s.t.Helper()
	s.mu.Lock()
	ongoing := s.ongoing
	s.mu.Unlock()
	if ongoing > 0 || s.strict() && s.order == streams.OrderStream { // an operator would have to replace the durable
		return
	}
	s.disturb(time.Minute)
	for _, r := range s.replicas {
		switch {
		case !r.alive:
		case s.rng.IntN(2) == 0:
			s.kill(r)
		default:
			r.disarm()
			s.stopCleanly(r)
		}
	}
	time.Sleep(3 * time.Second) // for what is still on its way
	ahead, end := s.aheadNow()
	former := s.order
	others := slices.DeleteFunc(slices.Clone(everyOrder), func(o streams.Order) bool { return o == former })
	s.changeTo(others[s.rng.IntN(len(others))])
	if s.order == streams.OrderStream && s.longest() > 10*time.Second {
		s.changeTo(others[1]) // the row that is refused would hold up all
	}
	switch {
	case ahead == 0:
		s.note("order changed")
	case s.partitions > 1: // those that have none ahead would begin with the new one
		s.changeTo(former)
	default:
		s.note("order refused")
		s.refusing = true
		s.start(r)
		s.refusing = false
		s.await("the end of a process that has another order", func() bool { return isClosed(r.ended) })
		s.bury(r)
		s.changeTo(former)
		if _, now := s.aheadNow(); now != end {
			s.t.Errorf("%v ORDER: the log went on from %d to %d in another order, with %d rows ahead", s.clock(), end, now, ahead)
		}
	}
	s.revive()
	s.calmAt(time.Now().Add(time.Second))
}

// aheadNow is how many rows above the low-water mark have their result, in all partitions, and the end of the log.
func (s *sim) aheadNow() (ahead int, end uint64) {
	s.t.Helper()
	for p := range s.partitions {
		m, err := s.stream("RESULTS").GetLastMsgForSubject(s.t.Context(), streams.LogFilter("results", "stage", p))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		n, _ := strconv.Atoi(m.Header.Get(streams.HeaderAhead)) // absent: 0
		ahead, end = ahead+n, max(end, m.Sequence)
	}
	return ahead, end
}

// calmAt says that a partition may stand still until then, and no longer.
func (s *sim) calmAt(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = at
}
