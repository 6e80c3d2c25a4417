package status

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/pool"
)

// Process is what a process knows of itself that keeps all its rows waiting. In the zero
// value nothing does.
type Process struct {
	Ended   string      // why the stage has ended, in a process that goes on
	Stop    *StopReport // what a stop waits for
	Down    string      // why there is no connection to NATS
	Full    string      // why the embedded server can't store
	Streams string      // which stream is not as it must be
	Audit   string      // why audit events can't be stored
	// Media is why rows wait for their pictures, documents or sounds. It has no kind if
	// none does.
	Media   hold.Hold
	Drained string    // who asked it to hand over its partitions
	Starved time.Time // since when the provider has refused every call
	Pauses  []Wish    // partitions of which an operator wants no row to begin
	Drains  []Wish    // partitions that an operator wants to be served elsewhere
	Rows    string    // what becomes of the rows that a pause keeps waiting
	// Vacant are the partitions that nobody owns, and that have no waiting row.
	Vacant map[int]bool
	// Server returns the name of one of the pool's servers.
	Server func(index int) string
}

// Wish is what an operator has asked for a partition, and when.
type Wish struct {
	Partition int
	Text      string // as in "paused by alice@laptop"
	Since     time.Time
}

// Collect sets [Snapshot.Holds]: why rows wait, from all parts that may know a reason. They
// come in the order in which /readyz reports them.
func (s *Snapshot) Collect(now time.Time) {
	s.Holds = nil
	s.addProcess(now)
	for i := range s.Partitions {
		s.addPartition(&s.Partitions[i])
	}
	s.addLimits(now)
	for i := range s.Lanes {
		if l := &s.Lanes[i]; l.Paused != "" || l.Problem != "" {
			h := hold.OfPartition(l.Partition, hold.Lane)
			if h.Why = l.Paused; h.Why == "" {
				h.Why, h.Next = l.Problem, l.Retry
			}
			s.Holds = append(s.Holds, h)
		}
	}
}

// add adds a hold on the stage, if there is a reason.
func (s *Snapshot) add(kind hold.Kind, why string, since time.Time) {
	if why != "" {
		s.Holds = append(s.Holds, hold.Hold{Scope: hold.Stage, Kind: kind, Why: why, Since: since})
	}
}

// addProcess adds what stops all rows of the process.
func (s *Snapshot) addProcess(now time.Time) {
	p := &s.Process
	s.add(hold.Ended, p.Ended, time.Time{})
	if p.Stop != nil {
		s.add(hold.Stopping, p.Stop.Text(now), p.Stop.Since)
	}
	s.add(hold.Connection, p.Down, time.Time{})
	s.add(hold.Store, p.Full, time.Time{})
	if h, paused := OfPause(s.Pool.Pause); paused {
		if h.By = s.server(s.Pool.Pause.Server); h.Kind == hold.Operator {
			h.By = h.Why
		}
		s.Holds = append(s.Holds, h)
	}
	s.add(hold.Streams, p.Streams, time.Time{})
	s.add(hold.Audit, p.Audit, time.Time{})
	s.add(hold.Media, p.Media.Why, p.Media.Since)
	s.add(hold.Drained, p.Drained, time.Time{})
}

// server is the name of one of the pool's servers, or empty.
func (s *Snapshot) server(index int) string {
	if s.Process.Server == nil {
		return ""
	}
	return s.Process.Server(index)
}

// addPartition adds what keeps the rows of one partition waiting. A hold on the whole stage
// is not repeated for each of its partitions.
func (s *Snapshot) addPartition(p *consumer.Status) {
	for _, h := range p.Holds {
		switch {
		case s.Holds.Of(h.Kind) != nil:
		case h.Kind == hold.Standby && s.Process.Vacant[p.Partition] && !p.Taking: // it is idle
		default:
			s.Holds = append(s.Holds, h)
		}
	}
	wish := func(wishes []Wish, kind hold.Kind) {
		for _, w := range wishes {
			if w.Partition == p.Partition {
				s.Holds = append(s.Holds, hold.Hold{
					Scope: hold.Partition, Name: strconv.Itoa(p.Partition), Kind: kind, By: w.Text, Since: w.Since,
				})
			}
		}
	}
	if p.Role == consumer.Owner { // a standby may know of a pause that a restarted owner does not
		wish(s.Process.Pauses, hold.Operator)
	}
	wish(s.Process.Drains, hold.Drained)
}

// busy reports whether any row is open or any call in flight or waiting.
func (s *Snapshot) busy() bool {
	return s.Pool.InFlight > 0 || s.Pool.Waiting > 0 || slices.ContainsFunc(s.Partitions, func(p consumer.Status) bool {
		return p.Window+p.SetAside+p.Parked > 0
	})
}

// addLimits adds what delays calls without stopping them. While there is nothing to do
// nobody waits for that, and nothing is added.
func (s *Snapshot) addLimits(now time.Time) {
	stats := &s.Pool
	if !s.busy() {
		return
	}
	if stats.LawPausedUntil.After(now) {
		s.Holds = append(s.Holds, hold.Hold{
			Scope: hold.Server, Name: s.server(0), Kind: hold.RetryAfter, Why: lawPauseText(stats.LawPauseReason), Next: stats.LawPausedUntil,
		})
	}
	if since := s.Process.Starved; !since.IsZero() {
		s.Holds = append(s.Holds, hold.Hold{
			Scope: hold.Server, Name: s.server(0), Kind: hold.Starved, Why: "the provider has rejected every call since its last answer", Since: since,
		})
	}
	if err := stats.Shortage; err != nil && stats.Pause.Kind != pool.Shortage {
		s.add(hold.Shortage, err.Error(), time.Time{})
	}
}

// Ready reports whether the stage is connected, owning or standing by, and neither
// stopping nor paused. Otherwise reason says why it is not ready.
func (s *Snapshot) Ready(now time.Time) (ok bool, reason string) {
	h := s.Holds.First(unready)
	if h == nil {
		return true, ""
	}
	switch {
	case h.Scope == hold.Partition:
		return false, s.partitionReason(h.Name)
	case h.Class() == hold.Paused:
		return false, "paused: " + PauseText(s.Pool.Pause, s.Process.Rows, now)
	case h.Kind == hold.Ended, h.Kind == hold.Stopping, h.Kind == hold.Streams, h.Kind == hold.Audit:
		return false, fmt.Sprintf("%s: %s", h.Kind, h.Why)
	}
	return false, h.Why
}

// unready reports whether the stage is not ready because of a hold.
func unready(h *hold.Hold) bool {
	switch h.Class() {
	case hold.Over, hold.Blocked:
		return true
	case hold.Paused:
		return h.Scope == hold.Stage
	case hold.Elsewhere:
		return h.Kind == hold.Starting
	case hold.Limited, hold.Working:
	}
	return false
}

// partitionReason returns why a partition is not ready: its problem, or what its consumer
// does.
func (s *Snapshot) partitionReason(name string) string {
	for i := range s.Partitions {
		p := &s.Partitions[i]
		switch {
		case strconv.Itoa(p.Partition) != name:
		case p.Problem != "":
			return fmt.Sprintf("partition %d: %s", p.Partition, p.Problem)
		default:
			return fmt.Sprintf("partition %d is %s", p.Partition, p.Role)
		}
	}
	return ""
}

// Stops reports whether a hold keeps all rows of a partition from moving. An operator's
// pause does so whoever owns the partition.
func (s *Snapshot) Stops(partition int) bool {
	if slices.ContainsFunc(s.Process.Pauses, func(w Wish) bool { return w.Partition == partition }) {
		return true
	}
	return s.Holds.First(func(h *hold.Hold) bool {
		return h.About(partition) && h.Kind != hold.Stalled && (unready(h) || h.Kind == hold.Operator)
	}) != nil
}

// Throttled reports whether the provider lets no call through.
func (s *Snapshot) Throttled() bool {
	return s.Holds.First(func(h *hold.Hold) bool { return h.Kind == hold.RetryAfter || h.Kind == hold.Starved }) != nil
}
