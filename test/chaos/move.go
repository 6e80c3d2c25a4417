package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

const (
	// joinPatience is how long a replica that has started may wait until another one
	// releases a partition to it.
	joinPatience = 10 * time.Second
	releaseLook  = 10 * time.Millisecond
	// moveMost is how far into a release a server goes down.
	moveMost = 500 * time.Millisecond
)

// moveReplica has a replica join or leave, and kills a server while partitions are being
// released: calls are in flight and the rest of their results is not stored.
func (s *site) moveReplica(ctx context.Context, random *rand.Rand) error {
	victims := s.drawServers(random)
	if victims[0].process() == nil {
		return errNotYet
	}
	if random.IntN(2) == 0 || s.plan.partitions < s.plan.replicas { // one that joins may own nothing there
		return s.leave(ctx, random, victims)
	}
	return s.join(ctx, random, victims)
}

// over reports whether no more rows come: soon a release has no call in flight.
func (s *site) over() bool {
	at, _ := s.progress()
	return at >= 1
}

// leave stops a replica and kills a server before it has drained.
func (s *site) leave(ctx context.Context, random *rand.Rand, victims []*natsServer) error {
	r, down, after := s.victim(ctx, random), soon(random, 3*time.Second), between(random, 0, moveMost)
	proc := r.process()
	if proc == nil || !r.healthy() {
		return errNotYet
	}
	s.watched.excuse(time.Now())
	ended := make(chan error, 1)
	go func() {
		stopped, err := r.stop(ctx, down, stopPatience)
		if err == nil && !stopped {
			err = errNotYet
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		s.disturbed(stop)
		if err == nil && s.plan.lane { // its rows are in batches, and few calls are in flight at any time
			return s.crash(ctx, random, move, victims, fmt.Sprintf("replica %d has left for %v: ", r.n, down))
		}
		return cmp.Or(err, errNotYet) // it had no call in flight: tried again with another one
	case <-time.After(after):
	}
	output, err := os.ReadFile(proc.log)
	if err != nil || len(openTerms(output, "claimed the partition")) == 0 {
		s.disturbed(stop)
		return cmp.Or(<-ended, errNotYet)
	}
	err = s.crash(ctx, random, move, victims, fmt.Sprintf("replica %d leaves for %v, %v later: ", r.n, down, after))
	if stopped := <-ended; err == nil {
		err = stopped
	}
	s.disturbed(stop)
	return err
}

// join starts a replica that was stopped, and kills a server while another one releases a
// partition to it.
func (s *site) join(ctx context.Context, random *rand.Rand, victims []*natsServer) error {
	r, down, after := s.replicas[random.IntN(len(s.replicas))], between(random, time.Second, 3*time.Second), between(random, 0, moveMost)
	s.watched.excuse(time.Now())
	stopped, err := r.stop(ctx, down, stopPatience)
	if err != nil || !stopped {
		return cmp.Or(err, errNotYet)
	}
	s.disturbed(stop)
	pause(ctx, down)
	releasing := func() bool { return s.releasing(r) != "" }
	if !waitFor(ctx, joinPatience, releaseLook, releasing) {
		return errNotYet
	}
	pause(ctx, after)
	if !waitFor(ctx, joinPatience, releaseLook, releasing) { // where it was shorter than drawn, the next one will do
		return errNotYet
	}
	return s.crash(ctx, random, move, victims, fmt.Sprintf("replica %d joins, %s is being released: ", r.n, s.releasing(r)))
}

// releasing is a term that another replica than that one is releasing, or empty.
func (s *site) releasing(except *replica) string {
	for _, r := range s.replicas {
		proc := r.process()
		if r == except || proc == nil {
			continue
		}
		output, err := os.ReadFile(proc.log)
		if err != nil {
			continue
		}
		if owners := openTerms(output, "releasing the partition to another replica"); len(owners) > 0 {
			return owners[0]
		}
	}
	return ""
}

// openTerms are the terms that a replica's log has a message of and that have not ended.
func openTerms(log []byte, message string) (owners []string) {
	for line := range bytes.Lines(log) {
		began, ended := bytes.Contains(line, []byte(message)), bytes.Contains(line, []byte(`"term ended"`))
		var found struct{ Owner string }
		if !began && !ended || json.Unmarshal(line, &found) != nil {
			continue
		}
		if began {
			owners = append(owners, found.Owner)
		} else {
			owners = slices.DeleteFunc(owners, func(o string) bool { return o == found.Owner })
		}
	}
	return owners
}

// drawServers draws the servers to kill: one, or now and then all.
func (s *site) drawServers(random *rand.Rand) []*natsServer {
	victims := slices.Clone(s.servers.all)
	random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	if random.IntN(5) > 0 {
		victims = victims[:1]
	}
	return victims
}

// crash kills servers and starts them again. The note begins with why.
func (s *site) crash(ctx context.Context, random *rand.Rand, k kind, victims []*natsServer, why string) error {
	defer s.outage(k)()
	down := make([]time.Duration, len(victims))
	for i, v := range victims {
		down[i] = soon(random, 5*time.Second)
		if err := v.kill(); err != nil {
			return err
		}
	}
	s.notes.did(k, "%s%d of %d, first of them %d, down %v", why, len(victims), len(s.servers.all), victims[0].n, down)
	began := time.Now()
	for i, v := range victims {
		pause(ctx, down[i]-time.Since(began))
		if err := v.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) stopReplica(ctx context.Context, random *rand.Rand) error {
	text, err := s.stopOne(ctx, random)
	if err == nil {
		s.notes.did(stop, "%s", text)
	}
	return err
}

// stopOne stops a replica, a third of the time with a second signal, and returns what it
// did.
func (s *site) stopOne(ctx context.Context, random *rand.Rand) (text string, err error) {
	r, down := s.victim(ctx, random), soon(random, 3*time.Second)
	hard, after := random.IntN(3) == 0, between(random, 0, 2*time.Second)
	began := time.Now()
	s.watched.excuse(began)
	var stopped, twice bool
	if hard {
		stopped, twice, err = r.stopHard(ctx, down, after)
	} else {
		stopped, err = r.stop(ctx, down, stopPatience)
	}
	if err != nil || !stopped {
		return "", cmp.Or(err, errNotYet)
	}
	text = fmt.Sprintf("replica %d, ended after %v, down %v", r.n, time.Since(began).Round(time.Millisecond), down)
	if twice {
		s.disturbed(kill) // its calls are given up
		return fmt.Sprintf("%s, second signal after %v", text, after), nil
	}
	s.disturbed(stop)
	return text, nil
}
