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

// outcome of a row's call, or of one for an element of it, is drawn from the seed and the row, or element, alone.
type outcome struct {
	latency time.Duration
	failed  bool
}

// simSlow is from when on a call is slow: a drain does not wait for it, and a partition that stands still because of it is
// excused.
const simSlow = time.Second

func (s *sim) outcome(of simElement) outcome {
	rng, fast, rare := rand.New(rand.NewPCG(s.seed, of.row)), s.slowest-s.fastest, s.slowCalls
	if of.item != wholeRow { // a row's elements take about as long as a row
		rng, fast, rare = rand.New(rand.NewPCG(s.seed, of.row+uint64(of.item+1)<<32)), fast/simElementsMean, rare*simElementsMean
	}
	o := outcome{latency: s.fastest + moment(rng, fast), failed: rng.IntN(20) == 0}
	if rare > 0 && rng.IntN(rare) == 0 {
		o.latency = 5*time.Second + moment(rng, 20*time.Second)
	}
	return o
}

// simExecutor is one queue in front of the slots of a process, for the rows of all partitions, which take turns, or for
// their elements. It implements [consumer.Recaller] and [consumer.Resumer].
type simExecutor struct {
	life     *life
	dead     chan struct{}
	die      func()
	draining chan struct{}

	mu      sync.Mutex
	queues  [][]simJob // by partition, in stream order
	turn    int
	calls   map[simJob]bool // in flight; each holds a slot
	aside   map[simJob]bool // refused, until the next attempt
	rng     *rand.Rand      // draws the one that is next; nil: the oldest is
	working sync.WaitGroup
}

func newSimExecutor(l *life) *simExecutor {
	e := &simExecutor{
		life: l, dead: make(chan struct{}), draining: make(chan struct{}),
		queues: make([][]simJob, l.s.partitions), calls: make(map[simJob]bool), aside: make(map[simJob]bool),
	}
	if l.s.anyRow {
		e.rng = rand.New(rand.NewPCG(l.s.seed, uint64(l.s.starts)))
	}
	e.die = sync.OnceFunc(func() { close(e.dead) })
	return e
}

func (e *simExecutor) Start(row *consumer.Row) {
	if e.life.s.fansOut {
		e.startFan(row)
		return
	}
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
	e.queue(simJob{row: row, item: wholeRow})
	e.pump()
}

// queue puts a job into its place. The lock is held.
func (e *simExecutor) queue(j simJob) {
	q := &e.queues[j.row.Partition]
	i, _ := slices.BinarySearchFunc(*q, j, simJob.compare)
	*q = slices.Insert(*q, i, j)
}

// refuse puts a job aside that the provider refuses: it holds no slot until its next attempt. The lock is held.
func (e *simExecutor) refuse(j simJob, until time.Time) {
	e.aside[j] = true
	time.AfterFunc(min(time.Until(until), 20*time.Second), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.aside[j] { // else it was handed back
			delete(e.aside, j)
			e.queue(j)
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
	for j := range e.aside {
		if which(j.row) {
			delete(e.aside, j)
			j.handBack()
		}
	}
	for p, q := range e.queues {
		e.queues[p] = slices.DeleteFunc(q, func(j simJob) bool {
			back := which(j.row)
			if back {
				j.handBack()
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
		if len(*q) == 0 || !(*q)[0].row.MayBegin() {
			passed++
			continue
		}
		next := 0
		if e.rng != nil {
			if drawn := e.rng.IntN(len(*q)); (*q)[drawn].row.MayBegin() {
				next = drawn
			}
		}
		j := (*q)[next]
		*q, passed = slices.Delete(*q, next, next+1), 0
		if until := e.life.s.refusedUntil(j.row.Seq); time.Now().Before(until) {
			e.refuse(j, until)
			continue
		}
		e.calls[j] = true
		e.working.Go(func() { e.answer(j) })
	}
}

// answer makes the call. A process that is suspended stays where it is, and one that is dead answers nothing.
func (e *simExecutor) answer(j simJob) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.calls, j)
		e.pump()
	}()
	if !e.life.link.awake() {
		return
	}
	if !j.row.Wanted() || isClosed(e.draining) {
		j.handBack()
		return
	}
	c, o := e.life.call(j), e.life.s.outcome(j.element())
	var cut <-chan struct{}
	if o.latency > simSlow { // like a row that will be retried
		cut = e.draining
	}
	select {
	case <-e.dead:
		return
	case <-cut:
		j.handBack()
		return
	case <-time.After(o.latency):
	}
	if !e.life.link.awake() {
		return
	}
	e.life.answered(c)
	event := auditlog.Call{Header: auditlog.Header{Time: time.Now()}, CallID: c.id(), Status: auditlog.CallSuccess}
	reply := consumer.Reply{
		Failed: o.failed, RequestHash: j.requestHash(),
		Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
	}
	if j.fan == nil {
		reply.Body = append([]byte("done "), j.row.Body...)
		reply.Body = enlarge(j.element(), reply.Body)
		j.row.RecordCall(&event)
		j.row.Reply(reply)
		return
	}
	event.Item, reply.Body = new(j.item), enlarge(j.element(), []byte(c.id()))
	j.row.RecordCall(&event)
	j.fan.answer(j.item, reply)
}

// busyWith reports whether a row has to wait for this executor: its call is in flight or was refused, or it waits while
// every slot is taken.
func (e *simExecutor) busyWith(partition int, seq uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	is := func(j simJob) bool { return j.row.Seq == seq && j.row.Wanted() }
	for _, jobs := range []map[simJob]bool{e.calls, e.aside} {
		for j := range jobs {
			if is(j) {
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
	for j := range e.calls {
		if j.row.Partition == partition && !j.row.Wanted() {
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
