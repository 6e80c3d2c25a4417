package status

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/pool"
)

// printed returns the report as text, once as it is and once as another process gets it.
func printed(t *testing.T, r *Report) string {
	t.Helper()
	var text, received strings.Builder
	stagetest.Must(t, r.WriteText(&text))
	body := stagetest.Value(json.Marshal(r))(t)
	var again Report
	stagetest.Must(t, json.Unmarshal(body, &again))
	stagetest.Must(t, again.WriteText(&received))
	if received.String() != text.String() {
		t.Errorf("through JSON:\n%swant:\n%s", received.String(), text.String())
	}
	return text.String()
}

func TestAReportReadsAsTables(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	busy := pool.Stats{PoolSize: 32, InFlight: 12, Waiting: 3, Dispatched: 420, Successes: 400, CapacityRetries: 8, CurrentDelay: 50 * time.Millisecond}
	owner := consumer.Status{
		Role: consumer.Owner, Owner: "run1.AAAAAAAA", Window: 14, SetAside: 2, Head: 4711, HeadSince: ago(3200 * time.Millisecond),
		Pending: 1000, Emitted: 400, Failed: 3, Skipped: 2,
	}
	standby := consumer.Status{Partition: 1, Role: consumer.Standby}
	for name, build := range map[string]func(r *Report){
		"working": func(r *Report) {
			learned := busy
			learned.LawConcurrency = 12
			learned.LawBelief = aimd.Belief{Measured: true, Limit: 20, Low: 18.2, High: 22.4, Met: ago(2 * time.Minute), Random: .03}
			r.Pool = NewPoolReport(&learned, now)
			r.Rows.PerSecond = 19.53
			eta := 52.1
			r.Rows.ETAS = &eta
			r.Pace = auditlog.NewPace(459*time.Second, 3723*time.Second, 2*time.Second, 32)
			r.AddBudget(Budget{Name: "team", Provider: "openai", Mode: BudgetLeader, Members: 64, Share: .03125, Rate: 1234.5, Leader: "run1"})
			r.AddBudget(Budget{Name: "team", Provider: "anthropic-10_0_0_1_8080", Mode: BudgetMember, Members: 2, Share: .75, Rate: 19.96, Leader: "run2"})
			r.AddBudget(Budget{Name: "team", Provider: "mock", Mode: BudgetAlone, Members: 1, Share: 1})
			r.AddPartition(&owner, now)
			r.AddPartition(&standby, now)
		},
		"standby": func(r *Report) {
			r.Pool = NewPoolReport(&pool.Stats{PoolSize: 1}, now)
			r.Ready, r.Holds = true, hold.List{hold.OfPartition(1, hold.Standby)}
			r.AddPartition(&standby, now)
		},
		"paused": func(r *Report) {
			stopped := busy
			stopped.Pause = pool.Pause{Kind: pool.Outage, Err: errors.New("openai: connection\x1b[31m refused\nat once"), Since: ago(123 * time.Second), Next: now.Add(4 * time.Second)}
			r.Pool = NewPoolReport(&stopped, now)
			r.Pool.Held = "no row is lost"
			h, _ := OfPause(stopped.Pause)
			r.Holds = hold.List{h}
			r.AddPartition(&owner, now)
		},
		"held": func(r *Report) {
			full := owner
			full.Problem, full.JournalProblem = "results: stream RESULTS is full", "stream JOURNAL is full"
			r.Reason = "partition 0: results: stream RESULTS is full"
			blocked, paused := hold.OfPartition(0, hold.Results), hold.OfPartition(0, hold.Operator)
			blocked.Why, blocked.Since = "stream RESULTS is full", ago(time.Minute)
			paused.By, paused.Since = "paused by alice@laptop", ago(2*time.Minute)
			r.Holds = hold.List{blocked, paused}
			r.Pool = NewPoolReport(&busy, now)
			r.AddPartition(&full, now)
		},
		"batches": func(r *Report) {
			r.Pool = NewPoolReport(&busy, now)
			r.Ready = true
			r.AddLanes([]Lane{
				{
					Batches: []LaneBatch{
						{Batch: "b7c1e2d3f4a5", State: LaneIntent, Provider: "openai", Model: "gpt-5", Rows: 812, Since: ago(41 * time.Second)},
						{Batch: "a0c1e2d3f4a5", BatchID: "batch_abc\t123", State: LaneRunning, Provider: "openai", Model: "gpt-5", Rows: 10000, Answered: 4312, Since: ago(7 * time.Hour)},
					},
					Rows: map[LaneState]int{LaneGathering: 812, LaneSubmitted: 10000, LaneAnswered: 12}, Adopted: 1, Lapsed: 300,
				},
				{Partition: 1, Paused: "openai: no credit\nat all"},
			}, now)
			r.AddPartition(&owner, now)
		},
		"batches-none": func(r *Report) {
			r.Pool = NewPoolReport(&busy, now)
			r.Ready = true
			r.AddLanes([]Lane{{}}, now)
			r.AddPartition(&owner, now)
		},
		"asked-to-wait": func(r *Report) {
			waits := busy
			waits.LawPausedUntil, waits.LawPauseReason = now.Add(7*time.Second), aimd.PauseRetryAfter
			r.Pool = NewPoolReport(&waits, now)
			s := Snapshot{Pool: waits}
			s.Collect(now)
			r.Ready, r.Holds = true, s.Holds
			r.AddPartition(&owner, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Report{Stage: "reviews", RunID: "run1", Version: "v1.2.3", Time: now, UptimeS: 3723.4}
			build(r)
			r.Ready = r.Ready || name == "working"
			r.Pool.Throttle = "adaptive"
			r.Judge()
			golden.Check(t, filepath.Join("testdata", name+".txt"), printed(t, r))
		})
	}
}

// A report of a later version, or of what only looks like a stage, is printed as far as
// it is understood.
func TestAStrangeReportBreaksNothing(t *testing.T) {
	for _, body := range []string{
		`{}`, `{"state":"new state","new":1,"partitions":null,"budget":[{}],"lane":{"batches":[{"age_seconds":1e300}],"rows":null},"pool":{"pause_reason":"new"}}`,
		`{"state":"paused","partitions":[{"role":"new","head_of_line_seconds":1e300,"head_sequence":1}],"uptime_seconds":-1e300,"pool":{"dispatch_delay_ms":1e300,"allowed_per_second":0}}`,
		"{\"stage\":\"a\\tb\\nc\\u001b[2J\",\"partitions\":[{\"owner\":\"x\\ty\",\"problem\":\"a\\r\\nb\\tc\"}]}",
	} {
		var r Report
		stagetest.Must(t, json.Unmarshal([]byte(body), &r))
		text := printed(t, &r)
		if strings.ContainsAny(text, "\x1b\r\t") || strings.Contains(text, "\nb") || strings.Contains(text, "\nc") {
			t.Errorf("%s: %q", body, text)
		}
	}
}
