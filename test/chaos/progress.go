package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// standstillAfter is how long a partition may go without a result while rows wait.
	standstillAfter = 5 * time.Second
	// sampleEvery is the time between two looks at the partitions. What is measured is
	// too short by as much at most: a result counts from when it is seen.
	sampleEvery = 250 * time.Millisecond
	// healing is what a fault of a single server may cost beyond its end: a request that
	// it lost is given up after 5 s, and clients connect again within one more. Three
	// servers may elect leaders first, which takes up to 9 s from the loss of the last
	// one.
	healing        = 6 * time.Second
	healingCluster = 10 * time.Second
)

// partitionProgress is what was seen of one partition.
type partitionProgress struct {
	results int
	since   time.Time // of the last new result, or since when rows wait
	noted   bool      // its standstill is
}

// progress looks for partitions that stand still. Safe for concurrent use.
type progress struct {
	notes   *notes
	healing time.Duration
	stand   time.Duration

	mu      sync.Mutex
	faults  int       // of servers, under way
	from    time.Time // standstills are counted from here
	parts   []partitionProgress
	longest time.Duration // that was counted
	raw     time.Duration // whatever the excuse
	last    time.Time     // of the last sample
	waited  time.Duration // sum over the partitions of the time in which rows waited
	counted time.Duration // the part of it that no fault excused
}

func newProgress(n *notes, p *plan) *progress {
	w := &progress{notes: n, healing: healing, stand: p.stand(), parts: make([]partitionProgress, len(p.stages())*p.partitions)}
	if p.servers > 1 {
		w.healing = healingCluster
	}
	return w
}

// begin counts a fault of the servers as under way.
func (w *progress) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults++
}

// end ends it.
func (w *progress) end(now time.Time) {
	w.mu.Lock()
	w.faults--
	w.mu.Unlock()
	w.excuse(now.Add(w.healing))
}

// excuse counts no standstill from before that instant.
func (w *progress) excuse(until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until.After(w.from) {
		w.from = until
	}
}

// sample takes how many rows and results each partition has; the rows were counted first.
func (w *progress) sample(now time.Time, alive bool, rows, results []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if (w.faults > 0 || !alive) && now.After(w.from) {
		w.from = now
	}
	step := now.Sub(w.last)
	if w.last.IsZero() {
		step = 0
	}
	w.last = now
	for i := range w.parts {
		p := &w.parts[i]
		if p.since.IsZero() || results[i] != p.results || results[i] >= rows[i] {
			if stood := now.Sub(p.since); !p.since.IsZero() && results[i] != p.results && stood > w.stand {
				w.notes.log("partition %d had no new result for %v, excused or not", i, stood.Round(time.Millisecond))
			}
			*p = partitionProgress{results: results[i], since: now}
			w.count(now, rows[i]-results[i], step)
			continue
		}
		w.count(now, rows[i]-results[i], step)
		w.raw = max(w.raw, now.Sub(p.since))
		since := p.since
		if w.from.After(since) {
			since = w.from
		}
		stood := now.Sub(since)
		w.longest = max(w.longest, stood)
		if stood > w.stand && !p.noted {
			p.noted = true
			w.notes.violate("standstill", "partition %d has %d results of %d rows, and none for %v (%v with what is excused)",
				i, results[i], rows[i], stood.Round(time.Millisecond), now.Sub(p.since).Round(time.Millisecond))
		}
	}
}

// count adds the time since the last sample where rows wait. The lock is held.
func (w *progress) count(now time.Time, waiting int, step time.Duration) {
	if waiting <= 0 {
		return
	}
	w.waited += step
	if now.After(w.from) {
		w.counted += step
	}
}

// share is the part of the time with rows waiting that no fault excused, from 0 to 1.
func (w *progress) share() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counted.Seconds() / max(w.waited.Seconds(), 1)
}

// watch takes samples until ctx ends. One that fails is skipped: the next covers its
// time, too.
func (s *site) watch(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		if rows, results, err := s.countAll(ctx, time.Second); err == nil {
			s.watched.sample(time.Now(), s.alive(), rows, results)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// counts is how many messages of a stream there are for each partition, which is that
// token of their subjects.
func (s *site) counts(ctx context.Context, within time.Duration, stream, filter string, token int) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	found, err := s.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	info, err := found.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	counts := make([]int, s.plan.partitions)
	for subject, n := range info.State.Subjects {
		if p := s.partitionOf(subject, token); p >= 0 {
			counts[p] += int(n)
		}
	}
	return counts, nil
}

// alive reports whether a replica of each stage runs that is neither suspended nor cut off.
func (s *site) alive() bool {
	for of := range slices.Chunk(s.replicas, s.plan.replicas) {
		if !slices.ContainsFunc(of, (*replica).healthy) {
			return false
		}
	}
	return true
}
