package stage

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

const nothingListens = `openai: nothing listens at first.test:80: is the server started\? \(dial tcp: connection refused\)`

func TestAJobGivesUpWhereNothingListens(t *testing.T) {
	for name, vars := range map[string]map[string]string{"pause": nil, "fail": {"STAGE_ON_FATAL": "fail"}} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{}, vars)
				l.down.Store(true)
				l.load(times("q", 3)...)
				began := time.Now()
				r := l.start(nil, Options{ExitOnFatal: true})
				err := r.ended()
				if took := time.Since(began); took < 30*time.Second || took > 35*time.Second {
					t.Errorf("it took %v", took)
				}
				if !isFatal(err) {
					t.Fatalf("got %T, want a fatal error", err)
				}
				matches(t, "end", []string{err.Error()}, "fatal provider error: "+nothingListens+"; gave up after 30s")
				if n := len(l.results()); n != 0 {
					t.Errorf("%d rows have a result", n)
				}
				matches(t, "pause", l.runEvents(auditlog.PhasePause), "network since 00:00:00 UTC, last error: "+nothingListens+"; next probe in 250 ms; no row is lost")
				if n := len(l.events(auditlog.KindCall)); n < 15 || n > 40 {
					t.Errorf("%d calls in 30 s", n)
				}
			})
		})
	}
}

func TestAStageWaitsForAServerThatIsNotUp(t *testing.T) {
	for name, tt := range map[string]struct {
		vars map[string]string
		opts Options
		down time.Duration
	}{
		"a service":                    {nil, Options{}, 2 * time.Minute},
		"one that exits at fatal ones": {map[string]string{"STAGE_ON_FATAL": "exit"}, Options{}, 2 * time.Minute},
		"a job, for a while":           {nil, Options{ExitOnFatal: true}, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{Latency: 100 * time.Millisecond}, tt.vars)
				l.down.Store(true)
				l.load(times("q", 20)...)
				r := l.start(nil, tt.opts)
				time.Sleep(tt.down)
				_, why := r.ready()
				matches(t, "not ready", []string{why}, "paused: network since 00:00:00 UTC, last error: "+nothingListens+"; next probe (in .*|is due); no row is lost")
				if s := r.Status(); s.State != status.StatePaused || s.Pool.PauseReason != hold.Network {
					t.Errorf("status: %s, %s", s.State, s.Pool.PauseReason)
				}
				page := r.page()
				if !strings.Contains(page, `llm_stage_paused{reason="network"} 1`) {
					t.Errorf("metrics: %q", stagetest.Lines(page, "llm_stage_paused"))
				}
				l.down.Store(false)
				up := time.Now()
				l.await(20)
				if late := time.Since(up); late > 5*time.Second {
					t.Errorf("all were answered %v after the server was up", late)
				}
				r.stop()
				l.noneFailed()
				matches(t, "resume", l.runEvents(auditlog.PhaseResume), "the server is up after .*, [0-9]+ probes")
			})
		})
	}
}

func TestAfterASuccessARefusedConnectionIsAnOutage(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		closes := llmtest.Step{Delay: 100 * time.Millisecond, Header: map[string]string{"Connection": "close"}} // so that each call dials
		l := newLab(t, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step { return &closes }}, nil)
		l.load(times("q", 100)...)
		r := l.start(nil, Options{ExitOnFatal: true})
		time.Sleep(500 * time.Millisecond)
		l.down.Store(true)
		time.Sleep(time.Minute)
		if s := r.Status(); s.State != status.StatePaused || s.Pool.PauseReason != hold.Outage || strings.Contains(s.Why, "nothing listens") {
			t.Errorf("status: %s, %s: %s", s.State, s.Pool.PauseReason, s.Why)
		}
		l.down.Store(false)
		l.await(100)
		r.stop()
	})
}
