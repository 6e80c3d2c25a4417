package status

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
)

// Whatever the state is, whoever is called finds what to do next to it; and a state that is added has to say it, too.
func TestEachStateThatWaitsSaysWhatToDo(t *testing.T) {
	owner, standby := []PartitionReport{{Role: string(consumer.Owner)}}, []PartitionReport{{Role: string(consumer.Standby)}}
	reports := map[State]Report{
		StateStopping: {Stop: &StopReport{By: epoch.Add(time.Minute)}, Partitions: owner},
		StatePaused:   {Pool: PoolReport{Paused: "no credit", PauseReason: PauseBilling}, Partitions: owner},
		StateEnded:    {Ended: "stopped", Partitions: owner},
		StateHeld:     {Reason: "partition 0: something new", Partitions: owner},
		StateWaiting:  {Ready: true, Pool: PoolReport{Waiting: 1, LawPausedUntil: &epoch}, Partitions: owner},
		StateStarved:  {Ready: true, Pool: PoolReport{Waiting: 1}, Partitions: owner},
		StateDrained:  {Ready: true, Drained: "drained by alice", Partitions: standby},
		StateStandby:  {Ready: true, Partitions: standby},
		StateStarting: {Partitions: []PartitionReport{{Role: string(consumer.Starting)}}},
		StateWorking:  {Ready: true, Pool: PoolReport{InFlight: 1}, Partitions: owner},
		StateIdle:     {Ready: true, Partitions: owner},
	}
	for _, state := range States {
		r, ok := reports[state]
		if !ok {
			t.Fatalf("no report of a stage that is %s", state)
		}
		r.Partitions = slices.Clone(r.Partitions)
		starved := time.Time{}
		if state == StateStarved {
			starved = epoch
		}
		r.Judge(starved)
		nothing := state == StateWorking || state == StateIdle
		if r.State != state || (r.Do == "") != nothing {
			t.Errorf("%s: the state is %s, to do: %q", state, r.State, r.Do)
		}
	}
	for _, reason := range PauseReasons {
		r := Report{Pool: PoolReport{Paused: "why", PauseReason: reason}, Partitions: owner}
		if r.Judge(time.Time{}); r.State != StatePaused || r.Do == "" {
			t.Errorf("paused because of %s: %s, to do: %q", reason, r.State, r.Do)
		}
	}
}

// The remedy is on the stream that is full, by its name: the setting of its size changes no stream that exists.
func TestARemedyNamesWhatIsInTheWay(t *testing.T) {
	places := Places{Input: "IN", Result: "OUT", Audit: "LOG", Journal: "KEPT", DeadLetter: "dead.rows"}
	for _, tt := range []struct{ why, do string }{
		{"partition 0: results: append to results.stage.0.rows: refused by the server: maximum bytes exceeded (10077)", "nats stream edit OUT --max-bytes="},
		{"partition 0: results: append to results.stage.0.rows: refused by the server: maximum messages exceeded (10077)", "nats stream edit OUT --max-msgs=-1"},
		{"audit: stream LOG: maximum bytes exceeded", "nats stream edit LOG --max-bytes="},
		{"streams: STAGE_RESULT_STREAM: stream OUT was changed: drops old results when it is full: set discard to new, then a full stream makes the stage wait (nats stream edit OUT --discard=new)", "nats stream edit OUT --discard=new; "},
		{"streams: stream OUT was changed: a (nats stream edit OUT --max-age=0s); b (nats stream edit OUT --allow-direct)", "nats stream edit OUT --max-age=0s; nats stream edit OUT --allow-direct: "},
		{"audit: refused by the server: no stream captures the subject, or it has no leader at the moment", "nats stream info LOG: its subjects"},
		{"partition 3: dead letter: maximum bytes exceeded", "stores the subject dead.rows"},
		{"the disk is full: 0 B free at /data: make room, at least 16 MiB", "free space on the disk that the reason names"},
		{"partition 0: store: a write to the store in /data has failed, and its server is started again: write 1.blk: no space left on device", "free space on the disk"},
		{"a write to the store in /data has failed, and its server is started again: write 1.blk: input/output error", "look at the disk"},
		{"the store in /data: embedded server: start again: JetStream did not start", "look at the disk"},
		{"partition 0: results: insufficient storage resources available (10047)", "max_file_store"},
		{"partition 0: results: write /data/js: no space left on device", "free space on the disk"},
		{"partition 0: ownership: nats: permissions violation: Permissions Violation for Publish to \"$JS.API.CONSUMER.INFO.IN.stage-0\"", "stage setup --print-permissions"},
		{"not connected to NATS", "start the NATS server"},
		{"partition 0: ownership: the connection to NATS was lost", "start the NATS server"},
		{"partition 0: ownership: look at stream OUT: stream not found", "stage setup"},
		{"partition 0: rows: 3 rows wait in stream IN, and consumer stage-0 delivers none: it is paused for 1h0m0s", "nats consumer resume IN"},
		{"partition 0: ownership: context deadline exceeded", "nats server report jetstream"},
		{"partition 0: no progress for 25s although rows wait: 2 rows pending", "nats stream get IN SEQUENCE"},
	} {
		r := Report{Reason: tt.why, Places: places, Partitions: []PartitionReport{{Role: string(consumer.Owner)}}}
		if r.Judge(time.Time{}); r.State != StateHeld || !strings.Contains(r.Do, tt.do) {
			t.Errorf("%s\n%s, to do: %q, want %q in it", tt.why, r.State, r.Do, tt.do)
		}
		if lost := strings.Contains(tt.why, "drops old"); lost == strings.Contains(r.Do, "no row is lost") && (lost || strings.Contains(tt.why, "maximum bytes")) {
			t.Errorf("%s\nto do: %q: rows are lost only by a stream that drops them", tt.why, r.Do)
		}
		if strings.Contains(tt.why, "maximum bytes") && strings.Contains(r.Do, "STAGE_") {
			t.Errorf("%s\nto do: %q: no setting changes a stream that exists", tt.why, r.Do)
		}
	}
}
