package throttle

import (
	"container/heap"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

// Queueing is a job at a server that refuses nothing: it works at so many calls at once,
// and the others wait for their turn. Beside the job there is a guest, who makes one
// call, waits for the reply, and makes the next some time later.
type Queueing struct {
	// Name as in the tables.
	Name string
	// Pool is the size of the job's pool, Slots how many calls the server works at.
	Pool, Slots int
	// Speed is how many tokens of a reply each of so many calls gets per second.
	Speed func(running int) float64
	// Lengths draws the length of a reply, in tokens.
	Lengths func(*rand.Rand) int
	// Silent is set where the server does not report it.
	Silent bool
	// Enough is how many calls in flight give the best throughput: those of the one who
	// knows.
	Enough int
}

// The time that a run takes, the time in which the law may learn, and the guest's rest
// between two calls.
const (
	queueingSec = 180.0
	learningSec = 30.0
	guestSec    = 2.0
)

// QueueingFigures are the results of a run, from learningSec on.
type QueueingFigures struct {
	// Tokens are those of the job's replies, per second.
	Tokens float64
	// P95 is the 95th percentile of the duration of the job's calls, in seconds.
	P95 float64
	// Guest is the mean duration of the guest's calls, by what they would take on an idle
	// server.
	Guest float64
	// Early is Tokens of the time before.
	Early float64
}

// RunQueueing runs the job and returns the figures. Without learning the law is what it
// is where it does not look for the concurrency; with the one who knows the pool has just
// the right size, too.
func RunQueueing(ctx context.Context, sc *Queueing, m QueueingMethod, seed uint64) QueueingFigures {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(queueingSec*1e9))
	defer cancel()
	r := &queueingRun{sc: sc, seed: seed, began: time.Now()}
	r.server.speed, r.server.slots, r.server.now = sc.Speed, sc.Slots, time.Now()
	size := sc.Pool
	if m == Knowing {
		size = min(size, sc.Enough)
	}
	law, err := aimd.NewAdaptive(aimd.AdaptiveConfig{
		Config: aimd.Default(), PoolSize: size, KeepConcurrency: m != Learning, Rand: chance(seed).Float64,
	})
	if err != nil {
		panic(err)
	}
	p, err := pool.New(pool.Config{
		Size: size, Law: law, Retry: pool.DefaultRetry(), QueueLimit: 2 * size, Rand: chance(seed).Float64,
	}, r.call)
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.guest(ctx, p) })
	wg.Go(func() {
		var err error
		for row := 0; err == nil; row++ {
			err = p.Submit(ctx, row, func(pool.Result[int, struct{}]) {})
		}
	})
	_ = p.Run(ctx) // always ends by the end of ctx
	wg.Wait()
	return r.figures()
}

// QueueingMethod is how a job copes with a server that queues.
type QueueingMethod int

// The methods.
const (
	Learning QueueingMethod = iota // the law looks for the concurrency
	Full                           // all slots of the pool are used
	Knowing                        // the pool is of the right size
)

type queueingRun struct {
	sc     *Queueing
	seed   uint64
	began  time.Time
	server batchServer

	mu          sync.Mutex // guards what follows
	job, guests []served
	bounds      []int // the law's concurrency, again and again
}

// served is a call that has ended.
type served struct {
	at, sec, alone float64
	tokens         int
}

func (r *queueingRun) call(ctx context.Context, row int, a pool.Attempt) (struct{}, pool.Verdict) {
	// Calls that are sent at the same instant arrive in the order of their rows.
	time.Sleep(time.Duration(row))
	id := callID{row: row, attempt: a.Number}
	tokens := r.sc.Lengths(id.rand(r.seed, 7))
	if !r.serve(ctx, tokens, &r.job) {
		return struct{}{}, pool.Verdict{Class: pool.Cancelled, Err: context.Canceled}
	}
	v := pool.Verdict{Output: int64(tokens)}
	if r.sc.Silent {
		v.Output = 0
	}
	return struct{}{}, v
}

// guest makes one call after the other, and takes note of the law's concurrency.
func (r *queueingRun) guest(ctx context.Context, p *pool.Pool[int, struct{}]) {
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(guestSec * 1e9)):
		}
		r.bounds = append(r.bounds, p.Stats().LawConcurrency)
		id := callID{client: 1, row: n}
		if !r.serve(ctx, r.sc.Lengths(id.rand(r.seed, 7)), &r.guests) {
			return
		}
	}
}

// serve makes a call and reports whether there was a reply.
func (r *queueingRun) serve(ctx context.Context, tokens int, to *[]served) bool {
	sent := time.Now()
	select {
	case <-r.server.start(tokens):
	case <-ctx.Done():
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, served{
		at: time.Since(r.began).Seconds(), sec: time.Since(sent).Seconds(),
		alone: float64(tokens) / r.sc.Speed(1), tokens: tokens,
	})
	return true
}

func (r *queueingRun) figures() (f QueueingFigures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var secs []float64
	for _, c := range r.job {
		if c.at < learningSec {
			f.Early += float64(c.tokens) / learningSec
			continue
		}
		f.Tokens += float64(c.tokens) / (queueingSec - learningSec)
		secs = append(secs, c.sec)
	}
	slices.Sort(secs)
	f.P95 = secs[len(secs)*95/100]
	var took, alone float64
	for _, c := range r.guests {
		if c.at-c.sec >= learningSec {
			took += c.sec
			alone += c.alone
		}
	}
	f.Guest = took / alone
	return f
}

// batchServer works at some calls at once and lets the others wait, first come, first
// served.
type batchServer struct {
	slots int
	speed func(running int) float64

	mu      sync.Mutex // guards what follows
	now     time.Time
	work    float64 // tokens that each running call has had since the beginning
	running batch
	waiting []*batched
	timer   *time.Timer
}

type batched struct {
	tokens float64
	until  float64 // work
	done   chan struct{}
}

// batch holds the running calls, next to end first.
type batch []*batched

func (b batch) Len() int           { return len(b) }
func (b batch) Less(i, j int) bool { return b[i].until < b[j].until }
func (b batch) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *batch) Push(x any)        { *b = append(*b, x.(*batched)) }
func (b *batch) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

// start takes a call and returns a channel that is closed when it has ended.
func (s *batchServer) start(tokens int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &batched{tokens: float64(tokens), done: make(chan struct{})}
	s.waiting = append(s.waiting, c)
	s.step()
	return c.done
}

// step goes on to the present: it ends calls, starts others, and comes back when the next
// ends. S.mu is held.
func (s *batchServer) step() {
	s.work += time.Since(s.now).Seconds() * s.speed(len(s.running))
	s.now = time.Now()
	for len(s.running) > 0 && s.running[0].until <= s.work+1e-6 {
		close(heap.Pop(&s.running).(*batched).done)
	}
	for len(s.running) < s.slots && len(s.waiting) > 0 {
		c := s.waiting[0]
		s.waiting = s.waiting[1:]
		c.until = s.work + c.tokens
		heap.Push(&s.running, c)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if len(s.running) == 0 {
		return
	}
	sec := (s.running[0].until - s.work) / s.speed(len(s.running))
	s.timer = time.AfterFunc(time.Duration(math.Ceil(sec*1e9)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.step()
	})
}
