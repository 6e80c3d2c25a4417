// Package compare shows what the throttle is worth: four ways to make calls, side by side,
// each at an LLM of its own that admits as many calls as the others do at every instant.
//
//	report, err := compare.Run(ctx, compare.Config{LLM: llm, Slots: 32, For: time.Minute, Out: os.Stdout})
//	err = report.WriteTable(os.Stdout)
//
// The pool, the laws, the client and the classification of errors are those of a stage, and
// the calls are HTTP over connections inside the process. There are no streams: what they
// cost is in docs/benchmarks.md.
package compare

import (
	"cmp"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// Config says what is compared.
type Config struct {
	// LLM is how each of the LLMs behaves. Its Schedule and Burst must be set.
	LLM llmtest.Config
	// Slots is the size of the pools, but for the one that makes one call at a time.
	Slots int
	// For is how long the comparison takes.
	For time.Duration
	// Out is where the progress is printed. With Screen it is a terminal, on which bars
	// are drawn again and again; else a line is printed every few seconds.
	Out    io.Writer
	Screen bool
}

// The ways that are compared, in the order in which they are shown.
const (
	one = iota
	classic
	adaptive
	optimum
	ways
)

var names = [ways]string{"one call at a time", "classic", "adaptive", "known optimum"}

// Report is what a comparison found.
type Report struct {
	Samples []Sample // at least two, the first at 0 and the last at the end
	Lanes   [ways]Lane
	limit   *llmtest.Limit
	began   time.Time
}

// Sample counts the answers up to an instant since the beginning.
type Sample struct {
	At       time.Duration
	Answered [ways]int64
}

// Lane is what one way came to.
type Lane struct{ Answered, Refused int64 }

// sampleEvery is the time between two samples, and between two pictures on a terminal.
const sampleEvery = 250 * time.Millisecond

// Run makes calls in all ways at once until the time is over or ctx ends, which is an error.
func Run(ctx context.Context, c Config) (*Report, error) {
	var lanes [ways]*lane
	defer func() {
		for _, l := range lanes {
			if l != nil {
				l.close()
			}
		}
	}()
	for way := range lanes {
		var err error
		if lanes[way], err = newLane(c, way); err != nil {
			return nil, err
		}
	}
	r := &Report{began: time.Now(), limit: llmtest.NewLimit(c.LLM.Schedule, c.LLM.Burst)}
	running, stop := context.WithTimeout(ctx, c.For)
	defer stop()
	var working sync.WaitGroup
	for _, l := range lanes {
		working.Go(func() { _ = l.pool.Run(running) }) // ends by the cancellation of its context
		working.Go(func() { l.feed(running) })
	}
	r.watch(running, c, &lanes)
	working.Wait()
	for way, l := range lanes {
		r.Lanes[way] = Lane{Answered: l.answered.Load(), Refused: l.server.Stats().RateLimited}
	}
	return r, context.Cause(ctx)
}

// watch takes samples and prints the progress until ctx ends.
func (r *Report) watch(ctx context.Context, c Config, lanes *[ways]*lane) {
	p := progress{c: c, report: r}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for over := false; ; {
		s := Sample{At: time.Since(r.began)}
		for way, l := range lanes {
			s.Answered[way] = l.answered.Load()
		}
		r.Samples = append(r.Samples, s)
		p.show()
		if over {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			over = true
		}
	}
}

// lane makes calls in one way.
type lane struct {
	server   *llmtest.Server
	stop     func()
	client   *llm.Client
	prepared *llm.Prepared
	pool     *pool.Pool[struct{}, struct{}]
	answered atomic.Int64
}

func newLane(c Config, way int) (l *lane, err error) {
	l = &lane{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.server, err = llmtest.New(c.LLM); err != nil {
		return nil, err
	}
	pipe, stop := l.server.Pipe()
	l.stop = stop
	if l.client, err = llm.NewProvider(llm.Mock, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, Timeout: time.Minute}); err != nil {
		return nil, err
	}
	if l.prepared, err = l.client.Prepare(&llm.Request{Prompt: "Is this review positive, negative or mixed?"}); err != nil {
		return nil, err
	}
	slots := c.Slots
	if way == one {
		slots = 1
	}
	law, err := newLaw(c, way, slots)
	if err != nil {
		return nil, err
	}
	call := func(ctx context.Context, _ struct{}, _ pool.Attempt) (struct{}, pool.Verdict) {
		return struct{}{}, pooled.Verdict(l.client.Do(ctx, l.prepared))
	}
	l.pool, err = pool.New(pool.Config{Size: slots, Law: law, Retry: pool.DefaultRetry()}, call)
	return l, err
}

// newLaw returns the law of a way.
func newLaw(c Config, way, slots int) (pool.Law, error) {
	switch way {
	case classic:
		return aimd.NewClassic(aimd.Default())
	case optimum:
		return &known{limit: llmtest.NewLimit(c.LLM.Schedule, c.LLM.Burst)}, nil
	}
	return aimd.NewAdaptive(aimd.DefaultAdaptive(slots))
}

// feed adds rows as long as there is room for them.
func (l *lane) feed(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.pool.Submit(ctx, struct{}{}, func(r pool.Result[struct{}, struct{}]) {
			if r.Err == nil {
				l.answered.Add(1)
			}
		})
		if err != nil {
			return
		}
	}
}

// close closes what the lane has opened. Its pool has ended.
func (l *lane) close() {
	if l.client != nil {
		l.client.Close()
	}
	if l.stop != nil {
		l.stop()
	}
}

// known is a law that knows what the LLM admits. It implements [pool.Law].
type known struct {
	limit *llmtest.Limit
	stats aimd.Stats
}

func (k *known) Next(now time.Time, _ int) time.Time { return k.limit.Opens(now) }

func (k *known) Sent(now time.Time, _ int) aimd.Ticket {
	k.limit.Take(now)
	return aimd.Ticket{}
}

func (k *known) Accepted(time.Time, aimd.Ticket) {}

func (k *known) Rejected(time.Time, aimd.Ticket, aimd.Hint) {}

func (k *known) Dropped(time.Time, aimd.Ticket) {}

func (k *known) Restart(time.Time) {}

func (k *known) Stats() aimd.Stats { return k.stats }

// rate is how many calls a second the LLMs admit at an instant since the beginning.
func (r *Report) rate(at time.Duration) float64 { return r.limit.RateAt(r.began.Add(at)) }

// elapsed is how long the comparison took.
func (r *Report) elapsed() time.Duration {
	return cmp.Or(r.Samples[len(r.Samples)-1].At, time.Nanosecond)
}
