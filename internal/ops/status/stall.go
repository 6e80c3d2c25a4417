package status

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
)

// StalledAfter is how long a partition may have rows, no result, and no known reason for
// that, before it counts as stalled.
const StalledAfter = 20 * time.Second

// Sight is what is seen of a partition at an instant, from two sides that do not depend
// on each other: what the server counts for the durable consumer, and what this process
// has done.
type Sight struct {
	At time.Time
	// These are the server's counts. Asked is false where it gave none. Then only rows that
	// this process has taken can be missed.
	Asked               bool
	Pending, AckPending uint64
	Pinned              bool // some replica has the partition
	// Mine says that this replica serves the partition, or that it is its turn to.
	Mine bool
	// These are the counts of this process. Emitted counts the rows that are emitted, and
	// Mark is the last of them. Open counts the rows that are taken and have no result,
	// Answered and Parked how many of these are answered, and how many are in the batch
	// lane. Begun counts the calls that have begun for the rows. InFlight and Waiting count
	// the calls in flight, and the jobs that wait in the pool, for all partitions.
	Emitted, Mark          uint64
	Open, Answered, Parked int
	Begun                  uint64
	InFlight, Waiting      int
	Held                   bool // a hold says already why nothing may move
	Throttled              bool // the provider lets no calls through
	// Dispatch is the longest time between two calls of a partition whose rows wait for
	// one.
	Dispatch time.Duration
}

// rows reports whether rows wait: the server knows of some that this process has not
// taken, or it has taken some.
func (s *Sight) rows() bool {
	return s.Open > 0 || s.Asked && s.Pending+s.AckPending > uint64(s.Parked)
}

// Watch notices a partition in which nothing moves although rows wait, whatever the
// cause. It knows nothing of causes: it compares what it sees with the reasons that there
// are for a result to take long. Create it as a zero value for each partition. It is used
// by one goroutine.
//
// For example, row 3 never comes out of the client library: the server has 4 rows pending,
// none is taken, and no call is in flight. After 20 s it reports "no progress for 20s
// although rows wait: …". If row 3 is called and the provider takes two minutes, a call is
// in flight within its time-out, and nothing is reported.
type Watch struct {
	seen    bool
	last    Sight
	since   time.Time // since when there are rows, no result, and no reason
	started time.Time // when a call of the partition last began, or its rows were seen first
	moved   time.Time // when a result was last seen; zero means that none was
}

// Saw takes a look, and returns what to report of the partition. It returns "" if the
// partition moves, or there is a reason why it does not.
func (w *Watch) Saw(s Sight) string {
	last, first := w.last, !w.seen
	w.last, w.seen = s, true
	if emitted := !first && (s.Emitted != last.Emitted || s.Mark != last.Mark); emitted {
		w.moved = s.At
		w.since = time.Time{}
	}
	if first || s.Begun != last.Begun || last.Open == 0 {
		w.started = s.At
	}
	if !s.rows() || w.reason(&s) {
		w.since = time.Time{}
		return ""
	}
	if w.since.IsZero() {
		w.since = s.At
	}
	if s.At.Sub(w.since) < StalledAfter {
		return ""
	}
	return w.text(&s)
}

// reason reports whether there is a reason for the rows to wait.
func (w *Watch) reason(s *Sight) bool {
	switch {
	case s.Held:
		return true
	case !s.Mine && (s.Pinned || !s.Asked): // another replica has the rows and watches over them
		return true
	case s.Open == s.Answered: // no row is taken, or all are answered: no provider is involved
		return s.Parked > 0
	case s.Throttled, s.Parked > 0:
		return true
	// Calls for other partitions count, too: partitions take turns, and equal rows share a
	// call.
	case s.Waiting > 0 || s.InFlight > 0:
		return s.At.Sub(w.started) < s.Dispatch
	}
	return false
}

// text describes the sight in a sentence for the report.
func (w *Watch) text(s *Sight) string {
	result := "no result since this process started"
	if !w.moved.IsZero() {
		result = "last result " + span(s.At.Sub(w.moved).Seconds()) + " ago"
	}
	if s.Mark > 0 {
		result += fmt.Sprintf("; every row up to %d has one", s.Mark)
	}
	server := "the server could not be asked what waits"
	if s.Asked {
		server = fmt.Sprintf("the server has %s pending and %d delivered without an ack", terminal.Plural(int(min(s.Pending, 1<<50)), "row"), s.AckPending)
	}
	who := "this replica"
	if !s.Mine {
		who = "nobody serves the partition; this replica"
	}
	return fmt.Sprintf("no progress for %s although rows wait: %s; %s has taken %d, of which %d are answered, and has %s in flight and %d waiting; %s",
		span(s.At.Sub(w.since).Seconds()), server, who, s.Open, s.Answered, terminal.Plural(s.InFlight, "call"), s.Waiting, result)
}
