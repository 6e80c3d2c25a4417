//go:build long

package stage

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// withoutLane takes the settings of the lane away.
func (l *lab) withoutLane() {
	maps.DeleteFunc(l.vars, func(name, _ string) bool { return strings.HasPrefix(name, "STAGE_LANE") })
}

// noLane checks that a process has no lane, and needs no stream for it.
func (r *running) noLane(why string) {
	r.lab.t.Helper()
	if r.lanes.all != nil {
		r.lab.t.Errorf("%s: the process has a lane", why)
	}
}

// A lane whose settings go away while its batches are open is collected: nothing is called twice, and no batch is opened.
func TestOpenBatchesAreCollectedWithoutTheSettingsOfTheLane(t *testing.T) {
	for _, killed := range []bool{false, true} {
		stagetest.Virtual(t, func(t *testing.T) {
			l := newBatchesLab(t, batches.Config{Expire: .1, ExpireAfter: 40 * time.Minute}, nil)
			l.load(questions(120)...)
			first := l.start(nil, Options{})
			time.Sleep(10 * time.Minute)
			if killed {
				first.soft()
				first.hard()
				for range first.done {
				}
			} else {
				first.stop()
			}
			l.withoutLane()
			second := l.start(nil, Options{})
			for i := range 20 {
				l.load(fmt.Sprint("question ", 120+i))
			}
			l.awaitHours(140)
			time.Sleep(10 * time.Minute)
			second.stop()
			for i, r := range l.results() {
				if r.Error != nil || r.Q != fmt.Sprint("question ", i) || r.Text == "" {
					t.Fatalf("row %d: %+v", i, r)
				}
			}
			served := l.llms["first.test"].Stats()
			if b := served.Batches; b.Created != 3 || served.Received != 20+b.Lapsed || b.Answered+b.Lapsed != 120 {
				t.Errorf("killed %v: %d batches answered %d rows, and %d calls were made: want 3 batches, and 20 calls beside those of %d lapsed rows",
					killed, b.Created, b.Answered, served.Received, b.Lapsed)
			}
			if log := l.logs.String(); strings.Count(log, "they are collected") != 1 {
				t.Errorf("the log does not say once that batches are collected:\n%s", log)
			}
			l.proven()
			third := l.start(nil, Options{})
			third.noLane("all batches are done")
			third.stop()
		})
	}
}

// A replica without a lane that has started before the first batch was opened does not call its rows again: it
// waits, and the next one collects.
func TestAReplicaWithoutALaneClaimsNothingWhileBatchesAreOpen(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newBatchesLab(t, batches.Config{}, nil)
		vars := maps.Clone(l.vars)
		l.withoutLane()
		second := l.start(nil, Options{})
		second.noLane("nobody has claimed anything")
		time.Sleep(time.Minute)
		first := l.start(vars, Options{}) // the server gives the rows to it
		time.Sleep(time.Minute)
		l.load(questions(120)...)
		time.Sleep(10 * time.Minute)
		first.soft()
		first.hard()
		for range first.done {
		}
		time.Sleep(10 * time.Minute)
		if log := l.logs.String(); !strings.Contains(log, "left open batches: 3 with 120 rows") {
			t.Errorf("the log does not name the batches:\n%s", log)
		}
		second.stop()
		third := l.start(nil, Options{})
		l.awaitHours(120)
		time.Sleep(10 * time.Minute)
		third.stop()
		if served := l.llms["first.test"].Stats(); served.Received != 0 || served.Batches.Answered != 120 {
			t.Errorf("%d live calls, %d rows answered in batches", served.Received, served.Batches.Answered)
		}
		l.proven()
	})
}

// A stage that never had a lane gets none, and no stream for it.
func TestAStageThatNeverHadALaneGetsNone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newBatchesLab(t, batches.Config{}, nil)
		l.withoutLane()
		l.load(questions(5)...)
		first := l.start(nil, Options{})
		first.noLane("first")
		l.await(5)
		first.stop()
		second := l.start(nil, Options{})
		second.noLane("second")
		second.stop()
		if _, err := l.js.Stream(t.Context(), "LANE"); err == nil {
			t.Error("there is a stream LANE")
		}
	})
}

// A replica without the settings may be the next owner while another one still has them, as in a rolling update.
func TestAReplicaWithoutTheLaneTakesOverBatchesThatAreOpenedAfterItsStart(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newBatchesLab(t, batches.Config{}, nil)
		l.load() // nothing yet
		l.load(questions(1)...)
		first := l.start(nil, Options{})
		l.awaitHours(1)
		time.Sleep(10 * time.Minute)
		l.withoutLane()
		second := l.start(nil, Options{})
		time.Sleep(time.Minute)
		for i := range 50 {
			l.load(fmt.Sprint("question ", 1+i))
		}
		time.Sleep(10 * time.Minute)
		first.stop()
		l.awaitHours(51)
		time.Sleep(10 * time.Minute)
		second.stop()
		if served := l.llms["first.test"].Stats(); served.Received != 0 || served.Batches.Answered != 51 {
			t.Errorf("%d live calls, %d answers of batches; want 0 and 51", served.Received, served.Batches.Answered)
		}
		l.proven()
	})
}

// Batches that the settings can't collect any more are named, with the choices, before anything is called again.
func TestOpenBatchesThatCantBeCollectedAreNamed(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newBatchesLab(t, batches.Config{}, nil)
		l.load(questions(60)...)
		first := l.start(nil, Options{})
		time.Sleep(10 * time.Minute)
		first.stop()
		for _, tt := range []struct {
			name    string
			off     bool
			changes map[string]string
			want    []string
		}{
			{"provider", false, map[string]string{"STAGE_LLM_PROVIDER": "anthropic"}, []string{"batches of this stage: 2 with 60 rows", "set it back to openai", "stage lane cancel"}},
			{"provider, without the lane", true, map[string]string{"STAGE_LLM_PROVIDER": "anthropic"}, []string{"batches of this stage: 2", "set it back to openai"}},
			{"provider without a Batch API", true, map[string]string{"STAGE_LLM_PROVIDER": "openrouter"}, []string{"set it back to openai"}},
			{"stream", false, map[string]string{"STAGE_LANE_STREAM": "LANE2"}, []string{"batches of this stage: 2", "set it back to LANE"}},
			{"journal", true, map[string]string{"STAGE_JOURNAL": "false"}, []string{"STAGE_JOURNAL", "set it to true"}},
		} {
			vars := maps.Clone(l.vars)
			if tt.off {
				l.withoutLane()
			}
			err := FindLane(t.Context(), l.config(tt.changes), natsconn.Over(l.srv.Connect(), nil), first.Log)
			l.vars = vars
			if err == nil {
				t.Errorf("%s: no error", tt.name)
				continue
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %q does not have %q", tt.name, err, part)
				}
			}
		}
		if got := l.llms["first.test"].Stats().Received; got != 0 {
			t.Errorf("%d live calls", got)
		}
		// Who gives the batches up deletes their records.
		stream := stagetest.Value(l.js.Stream(t.Context(), "LANE"))(t)
		stagetest.Must(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("lane.stage.>")))
		l.withoutLane()
		second := l.start(nil, Options{})
		l.await(60)
		second.stop()
	})
}
