package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// tryAgain is the wait between attempts at what can't be done yet: the partition has
	// no owner, or no server answers.
	tryAgain = 100 * time.Millisecond
	// tryFor bounds them.
	tryFor = time.Minute
	// takeOverPatience is how long a suspended owner waits for a rival.
	takeOverPatience = 20 * time.Second
	// stopPatience is how long a replica may take to end after SIGTERM.
	stopPatience = time.Minute
	apiTimeout   = 5 * time.Second
)

// errNotYet means that a fault is not possible at the moment.
var errNotYet = errors.New("not possible at the moment")

// happen injects one fault, trying again while it is not possible, and heals it.
func (s *site) happen(ctx context.Context, f fault) error {
	do := map[kind]func(context.Context, *rand.Rand) error{
		kill: s.killReplica, zombie: s.suspendOwner, stop: s.stopReplica, cut: s.cutReplica,
		server: s.killServer, suspend: s.suspendServer, isolate: s.isolateServer,
		stepDown: s.stepDownLeader, unpin: s.unpinOwner, full: s.fillStream, disk: s.fillDisk, move: s.moveReplica, llmOut: s.takeLLMOut,
	}[f.kind]
	random := rand.New(rand.NewPCG(f.seed, 2))
	for end := time.Now().Add(tryFor); ; {
		err := do(ctx, random)
		switch {
		case err == nil || ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errNotYet):
			return fmt.Errorf("%s: %w", f.kind, err)
		case time.Now().After(end), (f.kind == move || f.kind == llmOut) && s.over():
			s.notes.log("%s: given up: %v", f.kind, err)
			return nil
		}
		pause(ctx, tryAgain)
	}
}

// between draws a time.
func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}

// soon draws how long something stays down: half of the time it comes back at once.
func soon(random *rand.Rand, most time.Duration) time.Duration {
	if random.IntN(2) == 0 {
		return 0
	}
	return between(random, 0, most)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// waitFor polls until done, for most at the longest, and reports whether it was.
func waitFor(ctx context.Context, most, every time.Duration, done func() bool) bool {
	for end := time.Now().Add(most); !done(); pause(ctx, every) {
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
	}
	return true
}

// victim is the replica that owns the partition, or now and then any.
func (s *site) victim(ctx context.Context, random *rand.Rand) *replica {
	drawn := s.replicas[random.IntN(len(s.replicas))]
	if random.IntN(10) < 3 {
		return drawn
	}
	if owner, _ := s.owner(ctx, s.place(random)); owner != nil {
		return owner
	}
	return drawn
}

func (s *site) killReplica(ctx context.Context, random *rand.Rand) error {
	r, down := s.victim(ctx, random), soon(random, 3*time.Second)
	killed, err := r.kill(down)
	if err != nil || !killed {
		return cmp.Or(err, errNotYet)
	}
	s.disturbed(kill)
	s.notes.did(kill, "replica %d, down %v", r.n, down)
	return nil
}

// suspendOwner suspends the owner of a partition until another replica has claimed it,
// and a moment longer. It wakes up in the state that it had.
func (s *site) suspendOwner(ctx context.Context, random *rand.Rand) error {
	at := s.place(random)
	r, owner := s.owner(ctx, at)
	if r == nil {
		return errNotYet
	}
	wake, err := r.suspend()
	if err != nil || wake == nil {
		return cmp.Or(err, errNotYet)
	}
	began := time.Now()
	s.watched.excuse(began)
	taken := waitFor(ctx, takeOverPatience, tryAgain, func() bool {
		now, err := s.lastOwner(ctx, at)
		return err == nil && now != owner
	})
	took := time.Since(began)
	if taken {
		pause(ctx, between(random, 0, 3*time.Second))
	}
	s.disturbed(zombie)
	if err := wake(); err != nil {
		return err
	}
	if !taken {
		s.notes.log("zombie: no replica took over from replica %d within %v", r.n, took)
		return errNotYet
	}
	s.notes.did(zombie, "replica %d, replaced after %v, woken after %v", r.n, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return nil
}

// outage records something that keeps replies from the journal while it lasts.
func (s *site) outage(k kind) (end func()) {
	s.mu.Lock()
	s.outages++
	s.mu.Unlock()
	s.disturbed(k)
	if k != cut {
		s.watched.begin()
	}
	return func() {
		now := time.Now()
		if s.watched.excuse(now); k != cut {
			s.watched.end(now)
		}
		s.mu.Lock()
		s.outages--
		s.lastOutage = now
		s.mu.Unlock()
	}
}

func (s *site) cutReplica(ctx context.Context, random *rand.Rand) error {
	r, how, d := s.victim(ctx, random), s.breach(random), between(random, 300*time.Millisecond, 8*time.Second)
	defer s.outage(cut)()
	r.cut(how)
	pause(ctx, d)
	if random.IntN(2) == 0 {
		r.cut(severed) // as when the time-outs of TCP have passed
	}
	r.cut(open)
	s.notes.did(cut, "replica %d, %s for %v", r.n, how, d.Round(time.Millisecond))
	return nil
}

func (s *site) breach(random *rand.Rand) state {
	if random.IntN(2) == 0 {
		return severed
	}
	return stalled
}

func (s *site) killServer(ctx context.Context, random *rand.Rand) error {
	victims := s.drawServers(random)
	if victims[0].process() == nil {
		return errNotYet
	}
	return s.crash(ctx, random, server, victims, "")
}

func (s *site) suspendServer(ctx context.Context, random *rand.Rand) error {
	v, d := s.servers.all[random.IntN(len(s.servers.all))], between(random, 200*time.Millisecond, 5*time.Second)
	proc := v.process()
	if proc == nil {
		return errNotYet
	}
	defer s.outage(suspend)()
	if err := proc.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	s.notes.did(suspend, "server %d for %v", v.n, d.Round(time.Millisecond))
	return proc.signal(syscall.SIGCONT)
}

func (s *site) isolateServer(ctx context.Context, random *rand.Rand) error {
	n, how, d := random.IntN(len(s.servers.all)), s.breach(random), between(random, time.Second, 12*time.Second)
	defer s.outage(isolate)()
	s.servers.isolate(n, how)
	pause(ctx, d)
	s.servers.isolate(n, open)
	s.notes.did(isolate, "server %d, %s for %v", n, how, d.Round(time.Millisecond))
	return nil
}

func (s *site) stepDownLeader(ctx context.Context, random *rand.Rand) error {
	nc := s.nc
	var subject string
	switch random.IntN(7) {
	case 0:
		nc, subject = s.sys, "$JS.API.META.LEADER.STEPDOWN"
	case 1, 2:
		at := s.place(random)
		subject = "$JS.API.CONSUMER.LEADER.STEPDOWN." + at.input + "." + at.durable()
	default:
		streams := append([]string{inputStream, resultStream}, s.plan.streams()...)
		subject = "$JS.API.STREAM.LEADER.STEPDOWN." + streams[random.IntN(len(streams))]
	}
	if err := ask(ctx, nc, subject); err != nil {
		return fmt.Errorf("%w: %s: %w", errNotYet, subject, err)
	}
	s.disturbed(stepDown)
	s.notes.did(stepDown, "%s", subject)
	return nil
}

// ask makes a request of the API that takes no arguments.
func ask(ctx context.Context, nc *nats.Conn, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return err
	}
	return apiError(m.Data)
}

func (s *site) unpinOwner(ctx context.Context, random *rand.Rand) error {
	at := s.place(random)
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	input, err := s.js.Stream(ctx, at.input)
	if err == nil {
		err = input.UnpinConsumer(ctx, at.durable(), pinGroup)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotYet, err)
	}
	s.disturbed(unpin)
	s.notes.did(unpin, "%s", at.durable())
	return nil
}

// fillStream sets a stream's limit to what it holds, and lifts it again. While the audit
// is full, a replica is stopped half of the time.
func (s *site) fillStream(ctx context.Context, random *rand.Rand) error {
	names := s.plan.streams()
	name := names[random.IntN(len(names))]
	if !s.filling.TryLock() {
		return errNotYet // one at a time: each restores what it found
	}
	defer s.filling.Unlock()
	was, err := s.limit(ctx, name, func(i *jetstream.StreamInfo) {
		i.Config.MaxBytes = int64(i.State.Bytes) + 1000
		i.Config.Discard = jetstream.DiscardNew
	})
	if was.Name == "" {
		return fmt.Errorf("%w: fill %s: %w", errNotYet, name, err)
	}
	defer s.outage(full)()
	d := between(random, 500*time.Millisecond, 6*time.Second)
	var stopped sync.WaitGroup
	defer stopped.Wait()
	if err == nil {
		if name == auditStream && random.IntN(2) == 0 {
			stopped.Go(func() { s.stopMeanwhile(ctx, random, d) })
		}
		pause(ctx, d)
	}
	// Without an answer the limit may be set all the same, now or when the servers have a
	// leader again.
	for ctx.Err() == nil {
		if _, lifted := s.limit(ctx, name, func(i *jetstream.StreamInfo) { i.Config = was }); lifted == nil {
			break
		}
		pause(ctx, tryAgain)
	}
	if err != nil {
		return fmt.Errorf("%w: fill %s: %w", errNotYet, name, err)
	}
	s.notes.did(full, "%s for %v", name, d.Round(time.Millisecond))
	return nil
}

// stopMeanwhile stops a replica within d. It alone draws from random meanwhile.
func (s *site) stopMeanwhile(ctx context.Context, random *rand.Rand, d time.Duration) {
	pause(ctx, between(random, 0, d))
	text, err := s.stopOne(ctx, random)
	switch {
	case err == nil:
		s.notes.did(stop, "the audit is full: %s", text)
	case ctx.Err() == nil && !errors.Is(err, errNotYet):
		s.fail(err)
	}
}

// fillDisk fills the disk of a server. The server gives up its streams then, until a
// person has made room and started it again.
func (s *site) fillDisk(ctx context.Context, random *rand.Rand) error {
	v, d := s.servers.all[random.IntN(len(s.servers.all))], between(random, time.Second, 6*time.Second)
	if v.process() == nil || !s.filling.TryLock() {
		return errNotYet
	}
	defer s.filling.Unlock()
	defer s.outage(disk)()
	free, err := fillDisk(v.store())
	if err != nil {
		return err
	}
	pause(ctx, d)
	if err := errors.Join(free(), v.kill(), v.start(ctx)); err != nil {
		return err
	}
	s.notes.did(disk, "server %d for %v", v.n, d.Round(time.Millisecond))
	return nil
}

// limit changes a stream and returns what its configuration was.
func (s *site) limit(ctx context.Context, name string, change func(*jetstream.StreamInfo)) (was jetstream.StreamConfig, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return was, err
	}
	info := *stream.CachedInfo()
	was = info.Config
	change(&info)
	_, err = s.js.UpdateStream(ctx, info.Config)
	return was, err
}
