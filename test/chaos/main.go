// Command chaos runs real processes of the stage against real nats-servers and a flaky
// LLM, kills, suspends, cuts off and restarts them by a schedule that a seed draws, and
// then checks whether every row has exactly one result, in the order that -order names,
// with the right bytes. It exits with 0 if so, with 1 if not, and with 2 for bad usage.
// docs/tested.md lists some runs.
//
//	go run ./test/chaos -duration 1m -seed 7
//	go run ./test/chaos -servers 3 -rows 10000 -faults kill=20,server=5,stepdown=10
//	go run ./test/chaos -order key -keys 1000
//	go run ./test/chaos -lane -api gemini -partitions 2
//	go run ./test/chaos -chain -rows 20000
//
// The seed repeats the schedule, the rows and the LLM's failures, not the timing of
// processes: a run that failed may need several runs of its seed to fail again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

func main() {
	plan, err := parsePlan(os.Args[1:], func(fs *flag.FlagSet) { fs.SetOutput(os.Stderr) })
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, end := context.WithTimeoutCause(ctx, plan.timeout, fmt.Errorf("not done within %v", plan.timeout))
	err = run(ctx, plan, os.Stdout)
	end()
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// errViolated means that a run found something, which has been reported.
var errViolated = errors.New("there were violations")

// run does one run and reports to out.
func run(ctx context.Context, p *plan, out io.Writer) (err error) {
	s := &site{plan: p, stages: p.stages(), began: time.Now(), stalled: make(chan struct{})}
	if err := s.prepare(); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.logs(), "chaos.log"))
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // for people to read
	var show io.Writer
	if p.verbose {
		show = out
	}
	s.notes = newNotes(log, show)
	s.ps = &processes{logs: s.logs(), live: make(map[*process]struct{})}
	ctx, s.fail = context.WithCancelCause(ctx)
	defer func() {
		s.fail(nil)
		s.close()
		switch {
		case err != nil:
			err = fmt.Errorf("seed %d: %w; logs and stores are in %s", p.seed, err, s.dir)
		case p.keep:
			write(out, "logs and stores are in %s\n", s.dir)
		default:
			_ = os.RemoveAll(s.dir)
		}
	}()
	if err := s.open(ctx); err != nil {
		return err
	}
	s.began = time.Now()
	s.watched = newProgress(s.notes, p)
	looking, enough := context.WithCancel(ctx)
	defer enough()
	var looker sync.WaitGroup
	looker.Go(func() { s.watch(looking) })
	published := s.disturb(ctx)
	err = s.finish(ctx, published)
	enough()
	looker.Wait()
	took := time.Since(s.began)
	rows, results := published, 0
	if err == nil {
		s.notes.log("all replicas have stopped")
		rows, results, err = s.check(ctx, published)
	}
	if err == nil {
		s.notes.log("%d results are compared with %d rows", results, rows)
		err = s.verify(ctx)
	}
	s.notes.log("stage verify has ended")
	s.checkCalls(published)
	s.report(out, rows, results, took)
	if err == nil && s.notes.violated() > 0 {
		err = errViolated
	}
	return err
}

// faultsAtOnce is how many faults may last at the same time.
const faultsAtOnce = 4

// disturb starts the replicas, publishes rows and injects the faults of the schedule,
// until both are done.
func (s *site) disturb(ctx context.Context) (published int) {
	for _, r := range s.replicas {
		s.running.Go(func() {
			if err := r.supervise(ctx); err != nil {
				s.fail(err)
			}
		})
	}
	var parts sync.WaitGroup
	parts.Go(func() {
		n, err := s.publish(ctx)
		if err != nil {
			s.fail(err)
		}
		published = n
	})
	parts.Go(func() { s.faults(ctx) })
	parts.Wait()
	return published
}

// faults injects the faults of the schedule, each at its time, and returns when the last
// one is healed.
func (s *site) faults(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	room := make(chan struct{}, faultsAtOnce)
	for _, f := range s.plan.schedule() {
		if !s.reached(ctx, f.at) {
			return
		}
		room <- struct{}{}
		under.Go(func() {
			if err := s.happen(ctx, f); err != nil {
				s.fail(err)
			}
			<-room
		})
	}
}

// reached waits until the run has progressed that far; false means that it ends before.
func (s *site) reached(ctx context.Context, at float64) bool {
	for {
		now, more := s.progress()
		if now >= at {
			return true
		}
		var timer <-chan time.Time
		if more == nil {
			timer = time.After(time.Duration((at - now) * float64(s.plan.duration)))
		}
		select {
		case <-more:
		case <-timer:
		case <-s.stalled:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

const (
	// stalledAfter is how long no result may come, all faults healed, before the run is
	// given up.
	stalledAfter = 2 * time.Minute
	look         = 200 * time.Millisecond
	// ackPatience is how long after the last result all rows must be acked.
	ackPatience = 30 * time.Second
)

// finish waits until each row has a result and is acked, and stops the replicas.
func (s *site) finish(ctx context.Context, published int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.notes.log("all %d rows are published and all faults healed, %d results", published, s.stored(ctx))
	for last, since := -1, time.Now(); ; pause(ctx, look) {
		n := s.stored(ctx)
		if n >= published {
			break
		}
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > stalledAfter+s.plan.stand() {
			s.notes.violate("stalled", "%d results of %d rows, and none for %v", n, published, stalledAfter)
			break
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("with %d results of %d rows: %w", n, published, err)
		}
	}
	s.notes.log("each row has a result")
	why := ""
	if !waitFor(ctx, ackPatience, look, func() bool {
		why = s.unacked(ctx)
		return why == ""
	}) {
		s.notes.violate("acks", "%s, %v after the last result", why, ackPatience)
	}
	s.awaitLane(ctx)
	for _, r := range s.replicas {
		if err := r.retire(ctx, stopPatience); err != nil {
			return err
		}
	}
	s.running.Wait()
	return context.Cause(ctx)
}

// stored is how many results there are; -1: unknown, as no server answers.
func (s *site) stored(ctx context.Context) int {
	counts, err := s.counts(ctx, apiTimeout, resultStream, s.last().results(), 2)
	if err != nil {
		return -1
	}
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

// unacked describes the rows that are not acked, or empty.
func (s *site) unacked(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	for _, at := range s.places() {
		c, err := s.js.Consumer(ctx, at.input, at.durable())
		if err != nil {
			return err.Error()
		}
		if i := c.CachedInfo(); i.NumPending > 0 || i.NumAckPending > 0 {
			return fmt.Sprintf("%s: %d rows pending, %d not acked", at.durable(), i.NumPending, i.NumAckPending)
		}
	}
	return ""
}

// checkCalls compares the calls made again, and those that met outages of the LLM, with
// what the faults allow.
func (s *site) checkCalls(rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.model.paid(s.equal(rows)); again > s.allowance {
		s.notes.violate("calls", "%d calls made again, the faults allow %d", again, s.allowance)
	}
	if turned := s.model.gate.Stats().Turned; turned > s.turnable {
		s.notes.violate("calls", "%d calls met outages of the LLM, which allow %d", turned, s.turnable)
	}
}

// equal is how many of the first rows have the question of another one.
func (s *site) equal(rows int) (sum int) {
	for n := 1; n <= rows; n++ {
		if !s.plan.chain && s.plan.question(n) != n {
			sum++
		}
	}
	return sum
}

// report prints what was done and found.
func (s *site) report(out io.Writer, rows, results int, took time.Duration) {
	calls, again := s.model.paid(s.equal(rows))
	budget := ""
	if s.plan.budget {
		budget = ", shared budget"
	}
	budget += s.plan.describe()
	if s.plan.lane {
		budget += ", batches of " + s.plan.api
	}
	write(out, "seed %d, %d servers %s, %d replicas, %d partitions, pool %d, window %d, dedupe %s, order %s%s\n",
		s.plan.seed, s.plan.servers, s.nc.ConnectedServerVersion(), s.plan.replicas, s.plan.partitions, s.plan.pool, s.plan.window, s.plan.dedupe, s.plan.order, budget)
	write(out, "rows %d, results %d, in %v\n", rows, results, took.Round(time.Second))
	write(out, "faults")
	for _, k := range kinds {
		if n := s.notes.count(k.kind); n > 0 || s.plan.counts[k.kind] > 0 {
			write(out, " %s %d/%d", k.kind, n, s.plan.counts[k.kind])
		}
	}
	exits := 0
	for _, r := range s.replicas {
		exits += r.exits
	}
	write(out, "\nreplicas that ended by themselves %d\n", exits)
	write(out, "calls %d, repaid %d of at most %d; beside them %d of at most %d met outages of the LLM\n",
		calls, again, s.allowance, s.model.gate.Stats().Turned, s.turnable)
	if s.lanes != nil {
		write(out, "batches:%v\n", s.lanes)
	}
	write(out, "longest standstill of a partition with rows waiting %v as counted, %v in all; %.0f%% of that time was without a fault of servers\n",
		s.watched.longest.Round(time.Millisecond), s.watched.raw.Round(time.Millisecond), 100*s.watched.share())
	for _, line := range s.notes.reported {
		write(out, "%s\n", line)
	}
	write(out, "violations %d\n", s.notes.violated())
}

// write writes to a reader that may be gone.
func write(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
