package stage

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// shapedError is an error with the request that met it.
type shapedError struct {
	error
	shape string
}

func (e *shapedError) Unwrap() error { return e.error }

func (e *shapedError) Shape() string { return e.shape }

// somePause is a pause that began at 10:03:02 and is probed in 4 s.
func somePause(kind pool.PauseKind, err error) (p pool.Pause, now time.Time) {
	since := time.Date(2026, 11, 22, 10, 3, 2, 0, time.UTC)
	now = since.Add(90 * time.Second)
	return pool.Pause{Kind: kind, Err: err, Since: since, Next: now.Add(4 * time.Second), Probes: 17}, now
}

func TestAPauseSaysSinceWhenWhyAndWhatBecomesOfTheRows(t *testing.T) {
	refused := &llm.Error{Provider: "openai", Class: llm.Transient, Origin: llm.OfNetwork, Err: errors.New("connection refused")}
	parameter := &shapedError{
		error: &llm.Error{Provider: "openai", Status: 400, Code: "unknown_parameter", Alike: "400 unknown_parameter", Err: errors.New("no top_q")},
		shape: `POST http://x/v1 {model: "m", top_q: 1}`,
	}
	for _, tt := range []struct {
		kind   pool.PauseKind
		err    error
		hold   time.Duration
		reason hold.Kind
		want   string
	}{
		{pool.Outage, refused, 0, hold.Outage, "outage since 10:03:02 UTC, last error: openai: connection refused; next probe in 4 s; no row is lost"},
		{
			pool.Outage, parameter, 10 * time.Minute, hold.Outage,
			"outage since 10:03:02 UTC, last error: openai: 400 unknown_parameter: no top_q; next probe in 4 s; rows are held, and fail after 10m0s",
		},
		{pool.Shortage, errors.New("no descriptor: raise ulimit -n"), 0, hold.Outage, "outage since 10:03:02 UTC, last error: no descriptor: raise ulimit -n; next probe in 4 s; no row is lost"},
		{
			pool.WrongSettings, parameter, 0, hold.Settings,
			`settings since 10:03:02 UTC, last error: openai: 400 unknown_parameter: no top_q; the request was POST http://x/v1 {model: "m", top_q: 1}; next probe in 4 s; no row is lost`,
		},
		{pool.FatalError, &llm.Error{Provider: "openai", Status: 401, Err: errors.New("bad key")}, 0, hold.Credentials, "openai: 401: bad key"},
	} {
		cfg := &config.Config{Rows: config.RowsConfig{OutageHold: tt.hold}}
		p, now := somePause(tt.kind, tt.err)
		if got := status.PauseText(p, rowsOfAPause(cfg), now); got != tt.want {
			t.Errorf("%v: got\n%s, want\n%s", tt.kind, got, tt.want)
		}
		if h, _ := status.OfPause(p); h.Kind != tt.reason || !slices.Contains(status.PauseReasons, h.Kind) {
			t.Errorf("%v: reason %q, want %q, one of %q", tt.kind, h.Kind, tt.reason, status.PauseReasons)
		}
	}
	if h, paused := status.OfPause(pool.Pause{}); paused {
		t.Errorf("no pause: %v", h)
	}
	p, _ := somePause(pool.Outage, refused)
	if got := status.PauseText(p, "no row is lost", p.Since.Add(30*time.Hour)); !strings.HasPrefix(got, "outage since 2026-11-22 10:03:02 UTC, ") {
		t.Errorf("after a day: %s", got)
	}
}

func TestTheStatusDescribesAPause(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) { // whose clock stands still
		s, snap := shownStage(t)
		p, now := somePause(pool.Outage, errors.New("connection refused"))
		snap.Pool.Pause = p
		snap.Process.Rows = "no row is lost"
		snap.Collect(now)
		r := s.report(snap, now)
		if r.State != status.StatePaused || r.Why != "connection refused" || !r.Since.Equal(p.Since) {
			t.Errorf("got %s, %q, since %v", r.State, r.Why, r.Since)
		}
		if g := r.Pool; g.PauseReason != hold.Outage || !g.NextProbe.Equal(p.Next) || g.Probes != 17 || g.Held != "no row is lost" {
			t.Errorf("got %+v", g)
		}
		var line strings.Builder
		record := slog.NewRecord(now, slog.LevelInfo, "working", 0)
		record.AddAttrs(s.progressAttrs(&r, 0, nil)...)
		stagetest.Must(t, slog.NewTextHandler(&line, nil).Handle(t.Context(), record))
		want := `paused="connection refused" pause_reason=outage paused_since=2026-11-22T10:03:02.000Z next_probe=2026-11-22T10:04:36.000Z probes=17`
		if !strings.Contains(line.String(), want) {
			t.Errorf("got %s, want it to contain %s", line.String(), want)
		}
	})
}

func TestPausesAreInLogAndAudit(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, fallback)
		r := l.start(nil, Options{ExitOnFatal: true})
		synctest.Wait()
		now := time.Now()
		outage := pool.Pause{Kind: pool.Outage, Err: errors.New("connection refused"), Since: now, Next: now.Add(250 * time.Millisecond)}
		r.pauses.paused(outage) // an outage ends no run
		time.Sleep(20 * time.Second)
		over := outage
		over.Probes, over.Lost = 8, 12
		r.pauses.resumed(over)
		over.Passed = true
		r.pauses.resumed(over)
		r.pauses.shortage(errors.New("too many open files: raise ulimit -n"))
		r.pauses.shortage(nil)
		r.stop()
		clock := now.UTC().Format(time.TimeOnly)
		for _, want := range []string{
			`level=ERROR msg="paused: the provider is down; no row is lost, calls resume when it answers"`,
			`error="connection refused" since=` + now.UTC().Format("2006-01-02T15:04:05.000Z"),
			`level=INFO msg="resumed: the provider answers again, no row was lost"`,
			"provider=openai lasted_ms=20000 probes=8 calls_without_reply=12",
			`level=WARN msg="the provider is down, rows go to the fallbacks until a probe succeeds"`,
			`level=WARN msg="this machine is short of a resource; fewer calls are in flight, no row is lost"`,
			`level=INFO msg="this machine is no longer short of a resource"`,
		} {
			if len(stagetest.Lines(l.logs.String(), want)) != 1 {
				t.Errorf("no line, or several, with %s in the log:\n%s", want, l.logs.String())
			}
		}
		var said []string
		for _, e := range l.events(auditlog.KindRun) {
			if p := e.Run.Phase; p == auditlog.PhasePause || p == auditlog.PhaseResume {
				said = append(said, string(p)+" "+e.Run.Reason)
			}
		}
		if want := []string{
			"pause outage since " + clock + " UTC, last error: connection refused; next probe in 250 ms; no row is lost",
			"resume outage is over after 20s, 8 probes; 12 calls were sent without a usable reply (may have been billed)",
			"resume openai is down; rows go to anthropic/claude, openai/small until a probe succeeds",
		}; !slices.Equal(said, want) {
			t.Errorf("run events:\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
		}
		shown := status.Report{}
		r.activity.Report(&shown, time.Now())
		if !slices.ContainsFunc(shown.Events, func(h status.Notice) bool {
			return h.Text == "fewer calls are in flight: too many open files: raise ulimit -n" && h.Level == "warn"
		}) {
			t.Errorf("the dashboard does not show the shortage: %+v", shown.Events)
		}
	})
}

func TestOnlyWhatAPersonMustFixEndsARun(t *testing.T) {
	for kind, want := range map[pool.PauseKind]string{
		pool.FatalError: "fatal provider error: refused", pool.WrongSettings: "wrong settings: the provider refuses every row: refused",
		pool.Outage: "", pool.Shortage: "",
	} {
		stagetest.Virtual(t, func(t *testing.T) {
			l := newLab(t, llmtest.Config{}, nil)
			r := l.start(nil, Options{ExitOnFatal: true})
			synctest.Wait()
			r.pauses.paused(pool.Pause{Kind: kind, Err: errors.New("refused"), Since: time.Now(), Next: time.Now()})
			synctest.Wait()
			if want == "" {
				r.soft()
			}
			err := <-r.done
			if want == "" && err != nil || want != "" && (!isFatal(err) || err.Error() != want) {
				t.Errorf("%v: got %v, want %q", kind, err, want)
			}
		})
	}
}

func TestAPauseThatLastsIsLoggedOnceAMinute(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var locked atomic.Bool
		locked.Store(true)
		l := newLab(t, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step {
			if locked.Load() {
				return &llmtest.Step{Status: http.StatusUnauthorized}
			}
			return nil
		}}, map[string]string{"STAGE_FATAL_PROBE_INTERVAL": "10s"})
		r := l.start(nil, Options{})
		time.Sleep(57 * time.Second)
		l.load("one")
		time.Sleep(5*time.Minute + 5*time.Second)
		said := stagetest.Lines(l.logs.String(), `level=WARN msg="still paused, rows are held"`)
		if len(said) != 5 || !strings.Contains(said[4], "reason=credentials") || !strings.Contains(said[4], "probes=30") && !strings.Contains(said[4], "probes=29") {
			t.Errorf("%d lines in 5 minutes:\n%s", len(said), strings.Join(said, "\n"))
		}
		locked.Store(false)
		l.await(1)
		time.Sleep(3 * time.Minute)
		if n := len(stagetest.Lines(l.logs.String(), "still paused")); n != 5 {
			t.Errorf("%d lines after the pause", n-5)
		}
		r.stop()
	})
}

func isFatal(err error) bool {
	_, is := errors.AsType[*FatalError](err)
	return is
}
