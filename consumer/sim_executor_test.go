package consumer_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
)

// simPool is how many calls a process has in flight at most.
const simPool = 8

// outcome of a row's call is drawn from the seed and the row alone.
type outcome struct {
	latency time.Duration
	failed  bool
}

// simSlow is from when on a call is slow: a drain does not wait for it, and a partition that stands still because of it is
// excused.
const simSlow = time.Second

func (s *sim) outcome(seq uint64) outcome {
	rng := rand.New(rand.NewPCG(s.seed, seq))
	o := outcome{latency: s.fastest + moment(rng, s.slowest-s.fastest), failed: rng.IntN(20) == 0}
	if s.slowCalls > 0 && rng.IntN(s.slowCalls) == 0 {
		o.latency = 5*time.Second + moment(rng, 20*time.Second)
	}
	return o
}

// simExecutor is one queue in front of the slots of a process, for the rows of all partitions, which take turns. It
// implements [consumer.Recaller] and [consumer.Resumer].
type simExecutor struct {
	life     *life
	dead     chan struct{}
	die      func()
	draining chan struct{}

	mu      sync.Mutex
	queues  [][]*consumer.Row // by partition, in stream order
	turn    int
	calls   map[*consumer.Row]bool // in flight; each holds a slot
	aside   map[*consumer.Row]bool // refused, until the next attempt
	rng     *rand.Rand             // draws the row that is next; nil: the oldest is
	working sync.WaitGroup
}

func newSimExecutor(l *life) *simExecutor {
	e := &simExecutor{
		life: l, dead: make(chan struct{}), draining: make(chan struct{}),
		queues: make([][]*consumer.Row, l.s.partitions), calls: make(map[*consumer.Row]bool), aside: make(map[*consumer.Row]bool),
	}
	if l.s.anyRow {
		e.rng = rand.New(rand.NewPCG(l.s.seed, uint64(l.s.starts)))
	}
	e.die = sync.OnceFunc(func() { close(e.dead) })
	return e
}

func (e *simExecutor) Start(row *consumer.Row) {
	if k := row.Kept; k != nil && k.RequestHash == requestHash(row) {
		reply := k.Reply
		reply.Event.Source = auditlog.SourceJournal
		row.Reply(reply)
		return
	}
	if isClosed(e.draining) {
		row.Reply(consumer.Reply{HandedBack: true})
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue(row)
	e.pump()
}

// queue puts a row into its place. The lock is held.
func (e *simExecutor) queue(row *consumer.Row) {
	q := &e.queues[row.Partition]
	i, _ := slices.BinarySearchFunc(*q, row.Seq, func(r *consumer.Row, seq uint64) int { return int(r.Seq) - int(seq) })
	*q = slices.Insert(*q, i, row)
}

// refuse puts a row aside that the provider refuses: it holds no slot until its next attempt. The lock is held.
func (e *simExecutor) refuse(row *consumer.Row, until time.Time) {
	e.aside[row] = true
	time.AfterFunc(min(time.Until(until), 20*time.Second), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.aside[row] { // else it was handed back
			delete(e.aside, row)
			e.queue(row)
			e.pump()
		}
	})
}

// Recall hands back the rows that wait and are not wanted.
func (e *simExecutor) Recall() { e.handBack(func(row *consumer.Row) bool { return !row.Wanted() }) }

func (e *simExecutor) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pump()
}

// drain hands back all that waits and all that is slow.
func (e *simExecutor) drain() {
	e.mu.Lock()
	if !isClosed(e.draining) {
		close(e.draining)
	}
	e.mu.Unlock()
	e.handBack(func(*consumer.Row) bool { return true })
}

func (e *simExecutor) handBack(which func(*consumer.Row) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for row := range e.aside {
		if which(row) {
			delete(e.aside, row)
			row.Reply(consumer.Reply{HandedBack: true})
		}
	}
	for p, q := range e.queues {
		e.queues[p] = slices.DeleteFunc(q, func(row *consumer.Row) bool {
			back := which(row)
			if back {
				row.Reply(consumer.Reply{HandedBack: true})
			}
			return back
		})
	}
}

// pump gives free slots to a row of each partition in turn. The lock is held.
func (e *simExecutor) pump() {
	for passed := 0; len(e.calls)+e.life.unkept() < simPool && passed < len(e.queues) && !isClosed(e.dead); {
		e.turn = (e.turn + 1) % len(e.queues)
		q := &e.queues[e.turn]
		if len(*q) == 0 || !(*q)[0].MayBegin() {
			passed++
			continue
		}
		next := 0
		if e.rng != nil {
			if drawn := e.rng.IntN(len(*q)); (*q)[drawn].MayBegin() {
				next = drawn
			}
		}
		row := (*q)[next]
		*q, passed = slices.Delete(*q, next, next+1), 0
		if until := e.life.s.refusedUntil(row.Seq); time.Now().Before(until) {
			e.refuse(row, until)
			continue
		}
		e.calls[row] = true
		e.working.Go(func() { e.answer(row) })
	}
}

// answer makes the call. A process that is suspended stays where it is, and one that is dead answers nothing.
func (e *simExecutor) answer(row *consumer.Row) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.calls, row)
		e.pump()
	}()
	if !e.life.link.awake() {
		return
	}
	if !row.Wanted() || isClosed(e.draining) {
		row.Reply(consumer.Reply{HandedBack: true})
		return
	}
	c, o := e.life.call(row), e.life.s.outcome(row.Seq)
	var cut <-chan struct{}
	if o.latency > simSlow { // like a row that will be retried
		cut = e.draining
	}
	select {
	case <-e.dead:
		return
	case <-cut:
		row.Reply(consumer.Reply{HandedBack: true})
		return
	case <-time.After(o.latency):
	}
	if !e.life.link.awake() {
		return
	}
	e.life.answered(c)
	row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallSuccess})
	row.Reply(consumer.Reply{
		Body: append([]byte("done "), row.Body...), Failed: o.failed, RequestHash: requestHash(row),
		Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
	})
}

// busyWith reports whether a row has to wait for this executor: its call is in flight or was refused, or it waits while
// every slot is taken.
func (e *simExecutor) busyWith(partition int, seq uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	is := func(row *consumer.Row) bool { return row.Seq == seq && row.Wanted() }
	for _, rows := range []map[*consumer.Row]bool{e.calls, e.aside} {
		for row := range rows {
			if is(row) {
				return true
			}
		}
	}
	return len(e.calls) == simPool && slices.ContainsFunc(e.queues[partition], is)
}

// waitedFor reports whether a release has to wait for a call of the partition.
func (e *simExecutor) waitedFor(partition int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for row := range e.calls {
		if row.Partition == partition && !row.Wanted() {
			return true
		}
	}
	return false
}

// begun reports whether it has made a call.
func (e *simExecutor) begun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls) > 0
}

// stuck is the number of slots that are taken.
func (e *simExecutor) stuck() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls) + e.life.unkept()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
