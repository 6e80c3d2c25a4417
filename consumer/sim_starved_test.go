package consumer_test

import (
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

// simStarved is how long a row may wait for its result though nothing is in its way. A partition whose owner stops while
// a client claims to stand by for it is served again after 5.5 s.
const simStarved = simStill + time.Second

// simStarve looks for rows that get no result though nothing is in their way, where each row is its own.
type simStarve struct {
	s    *sim
	next uint64            // place in the log to be read next
	done []map[uint64]bool // by partition, rows that have a result
	// emitted are the results of each partition when the log was read last.
	emitted []int
	since   []map[uint64]time.Time // by partition, rows that wait for nothing, and since when
	said    map[uint64]bool
}

func (s *sim) newStarve() *simStarve {
	w := &simStarve{s: s, next: 1, said: make(map[uint64]bool)}
	for range s.partitions {
		w.done, w.since = append(w.done, make(map[uint64]bool)), append(w.since, make(map[uint64]time.Time))
	}
	return w
}

// follow reads what was appended to the log since the last look.
func (w *simStarve) follow() error {
	stream, err := w.s.js.Stream(w.s.t.Context(), "RESULTS")
	if err != nil {
		return err
	}
	for last := stream.CachedInfo().State.LastSeq; w.next <= last; w.next++ {
		m, err := stream.GetMsg(w.s.t.Context(), w.next)
		if err != nil {
			return err
		}
		for p := range w.done {
			if m.Subject == streams.ResultSubject("results", "stage", p) {
				seq, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
				if err != nil {
					return err
				}
				w.done[p][seq] = true
			}
		}
	}
	return nil
}

// look checks that each row of a partition that waits for no other, and for no executor, gets its result soon. Where
// something is wrong all begin to wait again. sim.mu is held.
func (w *simStarve) look(p int, wrong bool, lives []*life) {
	if wrong {
		clear(w.since[p])
		return
	}
	now, waiting := time.Now(), make(map[uint64]time.Time)
	for _, seq := range w.s.due(p, w.done[p]) {
		if w.worked(p, seq, lives) {
			continue
		}
		from, known := w.since[p][seq]
		if !known {
			from = now
		}
		waiting[seq] = from
		if w.s.calm.After(from) {
			from = w.s.calm
		}
		if lasts := now.Sub(from); lasts > simStarved && !w.said[seq] {
			w.said[seq] = true
			w.s.t.Errorf("%v STARVED: row %d of partition %d (key %q) has had no result for %v though it waits for nothing%s",
				w.s.clock(), seq, p, w.s.keys[seq], lasts, w.s.state(p))
		}
	}
	w.since[p] = waiting
}

// worked reports whether a row has to wait for an executor, or its partition is about to move. sim.mu is held.
func (w *simStarve) worked(p int, seq uint64, lives []*life) bool {
	for _, l := range lives {
		if !l.link.asleepNow() && (l.exec.busyWith(p, seq) || l.exec.waitedFor(p)) {
			return true
		}
	}
	return false
}

// left describes the rows that have no result though they wait for none; empty: there are none but those refused.
func (w *simStarve) left() (left string) {
	if err := w.follow(); err != nil {
		return err.Error()
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for p := range w.done {
		for _, seq := range w.s.due(p, w.done[p]) {
			if !time.Now().Before(w.s.refusedUntil(seq)) {
				left += fmt.Sprintf(" %d", seq)
			}
		}
	}
	return left
}
