package status

import (
	"errors"
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Whatever makes several rows wait is in the one list, with its scope, who or what it is
// by, and what to do. /readyz says the same of it.
func TestWhateverMakesRowsWaitIsListed(t *testing.T) {
	owner := consumer.Status{Partition: 3, Role: consumer.Owner, Window: 2}
	with := func(kind hold.Kind, why string) consumer.Status {
		s, h := owner, hold.OfPartition(3, kind)
		h.Why = why
		s.Holds, s.Problem = []hold.Hold{h}, "area: "+why
		return s
	}
	paused := func(kind pool.PauseKind, err error) Snapshot {
		return Snapshot{Pool: pool.Stats{Pause: pool.Pause{Kind: kind, Err: err, Since: epoch, Server: 1}}, Partitions: []consumer.Status{owner}}
	}
	process := func(p Process) Snapshot { return Snapshot{Process: p, Partitions: []consumer.Status{owner}} }
	role := func(r consumer.Role, kind hold.Kind) Snapshot {
		return Snapshot{Partitions: []consumer.Status{{Partition: 3, Role: r, Holds: []hold.Hold{hold.OfPartition(3, kind)}}}}
	}
	fatal := func(status int) error { return &llm.Error{Status: status, Err: errors.New("no")} }
	outage := "outage since 12:00:00 UTC, last error: down; not probed: stage resume ends it; no row is lost"
	idle := Snapshot{Pool: pool.Stats{LawPausedUntil: epoch.Add(time.Hour)}, Process: Process{Starved: epoch}}
	if idle.Collect(epoch); idle.Holds != nil {
		t.Errorf("with nothing to do: %v", idle.Holds)
	}
	for _, tt := range []struct {
		snap   Snapshot
		scope  hold.Scope
		kind   hold.Kind
		by     string
		reason string // of /readyz; empty means that the stage is ready
	}{
		{process(Process{Ended: "no stream"}), hold.Stage, hold.Ended, "", "ended: no stream"},
		{process(Process{Stop: &StopReport{By: epoch}}), hold.Stage, hold.Stopping, "", "stopping: waiting for the last events to be stored"},
		{process(Process{Down: "not connected to NATS"}), hold.Stage, hold.Connection, "", "not connected to NATS"},
		{process(Process{Full: "the disk is full"}), hold.Stage, hold.Store, "", "the disk is full"},
		{process(Process{Streams: "changed"}), hold.Stage, hold.Streams, "", "streams: changed"},
		{process(Process{Audit: "full"}), hold.Stage, hold.Audit, "", "audit: full"},
		{process(Process{Drained: "drained by alice"}), hold.Stage, hold.Drained, "", ""},
		{process(Process{Pauses: []Wish{{3, "paused by alice", epoch}}}), hold.Partition, hold.Operator, "paused by alice", ""},
		{process(Process{Drains: []Wish{{3, "drained by alice", epoch}}}), hold.Partition, hold.Drained, "drained by alice", ""},
		{process(Process{Starved: epoch}), hold.Server, hold.Starved, "", ""},
		{paused(pool.Operator, errors.New("paused by alice")), hold.Stage, hold.Operator, "paused by alice", "paused: operator since 12:00:00 UTC, last error: paused by alice; not probed: stage resume ends it; no row is lost"},
		{paused(pool.Outage, errors.New("down")), hold.Stage, hold.Outage, "openai", "paused: " + outage},
		{paused(pool.Shortage, errors.New("down")), hold.Stage, hold.Outage, "openai", "paused: " + outage},
		{paused(pool.WrongSettings, errors.New("no top_q")), hold.Stage, hold.Settings, "openai", "paused: settings since 12:00:00 UTC, last error: no top_q; not probed: stage resume ends it; no row is lost"},
		{paused(pool.FatalError, fatal(401)), hold.Stage, hold.Credentials, "openai", "paused: 401: no"},
		{paused(pool.FatalError, fatal(402)), hold.Stage, hold.Billing, "openai", "paused: 402: no"},
		{paused(pool.FatalError, fatal(404)), hold.Stage, hold.Model, "openai", "paused: 404: no"},
		{paused(pool.FatalError, fatal(418)), hold.Stage, hold.Other, "openai", "paused: 418: no"},
		{Snapshot{Pool: pool.Stats{LawPausedUntil: epoch.Add(time.Hour), LawPauseReason: aimd.PauseRetryAfter}, Partitions: []consumer.Status{owner}}, hold.Server, hold.RetryAfter, "", ""},
		{Snapshot{Pool: pool.Stats{Shortage: errors.New("no descriptor")}, Partitions: []consumer.Status{owner}}, hold.Stage, hold.Shortage, "", ""},
		{Snapshot{Lanes: []Lane{{Partition: 3, Paused: "no credit"}}}, hold.Partition, hold.Lane, "", ""},
		{Snapshot{Partitions: []consumer.Status{with(hold.Results, "full")}}, hold.Partition, hold.Results, "", "partition 3: area: full"},
		{Snapshot{Partitions: []consumer.Status{with(hold.Stalled, "nothing")}}, hold.Partition, hold.Stalled, "", "partition 3: area: nothing"},
		{role(consumer.Starting, hold.Starting), hold.Partition, hold.Starting, "", "partition 3 is starting"},
		{role(consumer.Stopped, hold.Stopping), hold.Partition, hold.Stopping, "", "partition 3 is stopped"},
		{role(consumer.Standby, hold.Standby), hold.Partition, hold.Standby, "", ""},
		{role(consumer.Owner, hold.Window), hold.Partition, hold.Window, "", ""},
	} {
		tt.snap.Process.Rows, tt.snap.Process.Server = "no row is lost", func(i int) string { return []string{"azure", "openai"}[i] }
		tt.snap.Collect(epoch)
		if len(tt.snap.Holds) != 1 {
			t.Errorf("%s: %v, want one hold", tt.kind, tt.snap.Holds)
			continue
		}
		h := tt.snap.Holds[0]
		h.Advise(hold.Places{})
		if h.Scope != tt.scope || h.Kind != tt.kind || h.By != tt.by || h.Do == "" || (h.Scope == hold.Partition) != (h.Name == "3") {
			t.Errorf("got %+v, want %s on the %s, by %q, with what to do", h, tt.kind, tt.scope, tt.by)
		}
		if ok, reason := tt.snap.Ready(epoch); ok != (tt.reason == "") || reason != tt.reason {
			t.Errorf("%s: ready %v %q, want %q", tt.kind, ok, reason, tt.reason)
		}
		if got := tt.snap.Throttled(); got != (tt.kind == hold.RetryAfter || tt.kind == hold.Starved) {
			t.Errorf("%s: throttled %v", tt.kind, got)
		}
		stops := tt.snap.Stops(3)
		if want := tt.kind != hold.Stalled && (tt.reason != "" || tt.kind == hold.Operator); stops != want {
			t.Errorf("%s: stops the partition: %v, want %v", tt.kind, stops, want)
		}
	}
}

// What the stage has is not listed for each of its partitions again, and a partition that
// nobody has is idle.
func TestTheListNamesEachReasonOnce(t *testing.T) {
	s := Snapshot{Process: Process{Down: "refused", Vacant: map[int]bool{1: true}}, Partitions: []consumer.Status{
		{Role: consumer.Standby, Holds: []hold.Hold{hold.OfPartition(0, hold.Connection)}},
		{Partition: 1, Role: consumer.Standby, Holds: []hold.Hold{hold.OfPartition(1, hold.Standby)}},
	}}
	s.Collect(epoch)
	if len(s.Holds) != 1 || s.Holds[0].Scope != hold.Stage {
		t.Errorf("got %v, want the connection alone", s.Holds)
	}
}
