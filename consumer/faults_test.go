package consumer_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fault is something that a person must fix.
type fault struct {
	name         string
	breakIt, fix func(b *testbed)
	why          string // the status must say so
	auditLost    bool   // the fault itself removes events
}

func ensure(b *testbed) {
	b.t.Helper()
	stagetest.Must(b.t, streams.Ensure(b.t.Context(), b.nc, stageStreams()))
}

// full sets a stream's limit to what it holds.
func full(stream string) func(b *testbed) {
	return func(b *testbed) {
		b.t.Helper()
		b.limit(stream, int64(b.stream(stream).CachedInfo().State.Bytes)+100)
	}
}

func unlimited(stream string) func(b *testbed) { return func(b *testbed) { b.limit(stream, -1) } }

func drop(stream string) func(b *testbed) {
	return func(b *testbed) {
		b.t.Helper()
		stagetest.Must(b.t, b.js.DeleteStream(b.t.Context(), stream))
	}
}

// deny revokes publish permissions of the stage's user; deny() restores them.
func deny(subjects ...string) func(b *testbed) {
	return func(b *testbed) {
		b.t.Helper()
		b.options = users(subjects...)
		stagetest.Must(b.t, b.srv.ReloadOptions(b.serverOptions()))
	}
}

// asUser returns a testbed with the streams of a stage, whose replicas may not publish on the subjects denied.
func asUser(t *testing.T, denied ...string) *testbed {
	t.Helper()
	b := bareWith(t, users(denied...), nats.UserInfo("admin", "admin"))
	ensure(b)
	b.login = nats.UserInfo("stage", "stage")
	return b
}

// users are an administrator and the stage, which may do all but publish on the subjects denied.
func users(denied ...string) func(*server.Options) {
	return func(o *server.Options) {
		stage := &server.User{Username: "stage", Password: "stage", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: denied}}}
		o.Users = []*server.User{{Username: "admin", Password: "admin"}, stage}
	}
}

// unmount takes a stream's store away while the server is down, remount brings it back as a backup would.
func unmount(b *testbed) { b.t.Helper(); b.moveStore("RESULTS", "RESULTS.backup") }
func remount(b *testbed) { b.t.Helper(); b.moveStore("RESULTS.backup", "RESULTS") }

func (b *testbed) moveStore(from, to string) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "jetstream", "$G", "streams")
	aside := filepath.Join(b.dir, "aside")
	path := func(name string) string {
		if strings.HasSuffix(name, ".backup") {
			return filepath.Join(aside, name)
		}
		return filepath.Join(dir, name)
	}
	b.stopServer()
	stagetest.Must(b.t, os.MkdirAll(aside, 0o700))
	stagetest.Must(b.t, os.Rename(path(from), path(to)))
	b.startServer()
}

func pause(until time.Duration) func(b *testbed) {
	return func(b *testbed) {
		b.t.Helper()
		stagetest.Value(b.js.PauseConsumer(b.t.Context(), "ROWS", "stage-0", time.Now().Add(until)))(b.t)
	}
}

// says reports whether a text has the words of another, in which "…" stands for any words.
func says(text, words string) bool {
	for part := range strings.SplitSeq(words, "…") {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}

func TestTheStageWaitsUntilAFaultIsFixedAndContinuesUnharmed(t *testing.T) {
	pull := "$JS.API.CONSUMER.MSG.NEXT.>"
	for _, f := range []fault{
		{name: "results full", breakIt: full("RESULTS"), fix: unlimited("RESULTS"), why: "results: row …: append to results.stage.0.rows: refused by the server: maximum bytes exceeded"},
		{name: "results gone and restored", breakIt: unmount, fix: remount, why: "ownership: look at stream RESULTS: nats: API error: code=404"},
		{name: "audit full", breakIt: full("AUDIT"), fix: unlimited("AUDIT"), why: "audit: refused by the server: maximum bytes exceeded"},
		{name: "audit gone", breakIt: drop("AUDIT"), fix: ensure, why: "audit: refused by the server: no stream captures the subject", auditLost: true},
		{name: "server gone", breakIt: (*testbed).stopServer, fix: (*testbed).startServer, why: "connection: not connected to NATS"},
		{name: "consumer paused", breakIt: pause(time.Hour), fix: pause(0), why: "consumer stage-0 delivers none: it is paused for"},
		{name: "may not append", breakIt: deny("results.>"), fix: deny(), why: `the server denied it: Permissions Violation for Publish to "results.stage.0.rows"`},
		{name: "may not audit", breakIt: deny("audit.>"), fix: deny(), why: `Permissions Violation for Publish to "audit.stage.0`},
		{name: "may not pull", breakIt: deny(pull), fix: deny(), why: `Permissions Violation for Publish to "$JS.API.CONSUMER.MSG.NEXT.ROWS.stage-0"`},
		{name: "may do nothing", breakIt: deny(">"), fix: deny(), why: "Permissions Violation for Publish"},
	} {
		runVirtual(t, f.name, func(t *testing.T) {
			b := asUser(t)
			b.load(150)
			exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
			r := b.start("run", exec)
			b.until(50)
			f.breakIt(b)
			time.Sleep(time.Minute)
			if s := r.Status(); !says(s.Problem, f.why) {
				t.Errorf("problem %q, want %q", s.Problem, f.why)
			}
			f.fix(b)
			time.Sleep(10 * time.Second) // beyond the longest wait before a retry
			b.until(150)
			time.Sleep(10 * time.Second)
			if s := r.Status(); s.Problem != "" || s.Role != consumer.Owner {
				t.Errorf("fixed: problem %q, %s", s.Problem, s.Role)
			}
			r.stop(t)
			if !f.auditLost {
				b.check(150)
			}
			exec.checkOnce(t)
		})
	}
}

// A replica that may not claim begins no term, and soon reports why in the server's words.
func TestADeniedClaimIsNamed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t)
		b.load(20)
		deny("results.stage.0.claim")(b)
		r := b.start("run", quick())
		time.Sleep(10 * time.Second)
		why := `claim the partition: append to results.stage.0.claim: the server denied it: Permissions Violation for Publish to "results.stage.0.claim": grant the NATS user that permission, or log in as another user`
		if s := r.Status(); !strings.Contains(s.Problem, why) || s.Emitted > 0 {
			t.Errorf("problem %q, %d rows emitted; want %q and none", s.Problem, s.Emitted, why)
		}
		deny()(b)
		b.finish(r, 20)
	})
}

// Each waiting event is retried every few seconds; the log reports it once a minute, and the recovery once.
func TestEventsThatCannotBeStoredAreLoggedOnceAMinute(t *testing.T) {
	for name, f := range map[string]fault{
		"denied": {breakIt: deny("audit.>"), fix: deny()},
		"full":   {breakIt: full("AUDIT"), fix: unlimited("AUDIT")},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := asUser(t)
			b.load(40)
			var logged bytes.Buffer // read when all that writes has ended
			cfg := b.config("run", &sleeper{latency: func(seq uint64) time.Duration { return time.Duration(1+seq/6) * time.Second }})
			cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			r := b.startWith(cfg)
			b.until(5)
			f.breakIt(b)
			time.Sleep(5*time.Minute + time.Second)
			f.fix(b)
			r.stopAfter(b, 40)
			warnings := strings.Count(logged.String(), "audit events are not stored, results wait for them")
			again := strings.Count(logged.String(), "audit events are stored again")
			if warnings < 4 || warnings > 6 || again != 1 {
				t.Errorf("%d warnings in five minutes and %d recoveries, want 5 and 1:\n%s", warnings, again, &logged)
			}
			b.check(40)
		})
	}
}

// An empty stream in place of the results: nothing shows what was emitted, so a person must choose.
func TestRecreatedResultsBlockTheStage(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		r := b.start("run", quick())
		b.until(100)
		drop("RESULTS")(b)
		ensure(b)
		b.loadFrom(100, 10)
		time.Sleep(time.Minute)
		s := r.Status()
		if !strings.Contains(s.Problem, consumer.ErrResumePointLost.Error()) || !strings.Contains(s.Problem, "NewInput") {
			t.Errorf("problem %q, want %q and the choices", s.Problem, consumer.ErrResumePointLost)
		}
		if got := b.results(); got != 0 {
			t.Errorf("%d results without a resume point, want none", got)
		}
		r.stop(t)
	})
}

// wordy answers each row with that many bytes, whatever the row.
type wordy struct{ bytes func(seq uint64) int }

func (w wordy) Start(row *consumer.Row) {
	row.Reply(consumer.Reply{Body: make([]byte, w.bytes(row.Seq)), Failed: row.Seq%5 == 0})
}

func TestAResultAboveTheLimitIsAnsweredInItsPlace(t *testing.T) {
	onTestbed(t, func(_ *testing.T, b *testbed) {
		b.load(30)
		r := b.start("run", wordy{func(seq uint64) int { return int(seq%3) * 600_000 }}) // every third is above 1 MiB
		r.stopAfter(b, 30)
		b.checkTooLarge(30, func(seq uint64) bool { return seq%3 == 2 })
	})
}

// checkTooLarge reads n results: those of large are errors with that reason.
func (b *testbed) checkTooLarge(n int, large func(uint64) bool) {
	b.t.Helper()
	results := b.read("RESULTS", "results.stage.0.rows")
	if len(results) != n {
		b.t.Fatalf("%d results, want %d", len(results), n)
	}
	for i, m := range results {
		seq := uint64(i + 1)
		isError := m.Headers().Get(streams.HeaderStatus) == "error" && strings.Contains(string(m.Data()), "result_too_large")
		if isError != large(seq) {
			b.t.Errorf("row %d: too large %v, want %v: status %s, %.100s", seq, isError, large(seq), m.Headers().Get(streams.HeaderStatus), m.Data())
		}
	}
}

func TestALimitLoweredWhileRowsAreHeld(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(30)
		exec := &sleeper{latency: func(uint64) time.Duration { return time.Minute }, body: make([]byte, 5000)}
		r := b.start("run", exec)
		time.Sleep(time.Second)
		b.largestResult(3000)
		r.stopAfter(b, 30)
		b.checkTooLarge(30, func(uint64) bool { return true })
		exec.checkOnce(t)
	})
}

// The headers of a row go with its result as long as there is room for both.
func TestHeadersThatLeaveNoRoomStayBehind(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.largestResult(8000)
		trace := func(size int) nats.Header { return nats.Header{"X-Trace": {strings.Repeat("x", size)}} }
		results := b.answered(b.config("run", wordy{func(uint64) int { return 500 }}), trace(10), trace(10_000))
		if got := len(results[0].Headers().Get("X-Trace")); got != 10 {
			t.Errorf("a small header has %d bytes, want 10", got)
		}
		if got := len(results[1].Headers().Get("X-Trace")); got != 0 || len(results[1].Data()) != 500 {
			t.Errorf("a large header: %d bytes, body %d; want none and 500", got, len(results[1].Data()))
		}
	})
}

// The place that a result takes is its own header, not one of the row's that may stay behind.
func TestAResultNamesTheRowThatItReplaces(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.largestResult(8000)
		for i, m := range b.answered(b.config("run", wordy{func(uint64) int { return 500 }}),
			nats.Header{},
			nats.Header{streams.HeaderRedriveOf: {"stage/ROWS/0/1"}, streams.HeaderReplaces: {"1"}},
			nats.Header{streams.HeaderRedriveOf: {"stage/ROWS/0/2"}, streams.HeaderReplaces: {"1"}, "X-Trace": {strings.Repeat("x", 10_000)}},
			nats.Header{streams.HeaderRedriveOf: {"other/ROWS/0/1"}, streams.HeaderReplaces: {"1"}},
		) {
			if got, want := m.Headers().Get(streams.HeaderReplaces), []string{"", "1", "1", ""}[i]; got != want {
				t.Errorf("the result of row %d replaces %q, want %q", i+1, got, want)
			}
		}
	})
}

func TestDeadLetters(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		dead := jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}}
		stagetest.Value(b.js.CreateStream(t.Context(), dead))(t)
		b.load(24)
		// The original fills a message to the brim: with the reason it would not fit.
		stagetest.Value(b.js.Publish(t.Context(), "rows.a", make([]byte, 1<<20)))(t)
		cfg := b.config("run", wordy{func(uint64) int { return 10 }}) // fails each fifth row
		cfg.DeadLetterSubject = "dead"
		cfg.WindowRows = 12
		drop("DEAD")(b)
		r := b.startWith(cfg)
		time.Sleep(time.Minute)
		if s := r.Status(); !strings.Contains(s.Problem, "dead letter: row 5: append to dead: refused by the server: no stream captures") || s.Emitted > 4 {
			t.Errorf("problem %q, %d rows emitted; want the dead letter's, and no row emitted after the fourth", s.Problem, s.Emitted)
		}
		stagetest.Value(b.js.CreateStream(t.Context(), dead))(t)
		r.stopAfter(b, 25)
		letters := b.read("DEAD", "dead")
		if len(letters) != 5 {
			t.Fatalf("%d dead letters, want 5", len(letters))
		}
		if got, want := string(letters[0].Data()), `{"n":4}`; got != want {
			t.Errorf("first dead letter: %s, want %s", got, want)
		}
		if h := letters[4].Headers(); h.Get("Stage-Truncated") != "true" || h.Get(streams.HeaderSourceSeq) != "25" {
			t.Errorf("the last dead letter, which had no room: %v", h)
		}
	})
}
