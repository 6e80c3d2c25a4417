package stage

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// change edits a stream while a stage works.
func (l *lab) change(stream string, edit func(*jetstream.StreamConfig)) {
	l.t.Helper()
	s := stagetest.Value(l.js.Stream(l.t.Context(), stream))(l.t)
	cfg := s.CachedInfo().Config
	edit(&cfg)
	stagetest.Value(l.js.UpdateStream(l.t.Context(), cfg))(l.t)
}

// While results come, a stream that is changed so that they push each other out takes no more of them at once: the server
// reports the change.
func TestResultsThatPushEachOtherOutAreNoLongerStored(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*jetstream.StreamConfig)
	}{
		{"few messages", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 10, jetstream.DiscardOld }},
		{"few bytes", func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 4096, jetstream.DiscardOld }},
		{"few of a subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 10 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{Latency: 100 * time.Millisecond}, nil)
				l.load(times("a", 100)...)
				r := l.start(nil, Options{})
				l.await(40)
				l.change("RESULTS", tt.change)
				before := l.ends("RESULTS")
				time.Sleep(2 * time.Minute)
				if n := l.ends("RESULTS") - before; n > 8 {
					t.Errorf("%d of 60 results were stored after the change, want at most the 8 in flight", n)
				}
				if ok, why := r.ready(); ok || !strings.Contains(why, "RESULTS was changed") {
					t.Errorf("ready %v: %s", ok, why)
				}
				if do := r.Status().Do; strings.Contains(do, "no row is lost") || !strings.Contains(do, "stage verify") {
					t.Errorf("to do: %s", do)
				}
			})
		})
	}
}

// ends is the last sequence of a stream.
func (l *lab) ends(stream string) uint64 {
	l.t.Helper()
	s := stagetest.Value(l.js.Stream(l.t.Context(), stream))(l.t)
	return s.CachedInfo().State.LastSeq
}

// A stream that is changed so that it would break a guarantee holds the stage within a minute, and the stage continues
// once it is changed back.
func TestAStreamThatIsChangedWhileTheStageWorksHoldsIt(t *testing.T) {
	for _, tt := range []struct {
		stream    string
		wrong     func(*jetstream.StreamConfig)
		right     func(*jetstream.StreamConfig)
		why, edit string
	}{
		{
			"RESULTS", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 100, jetstream.DiscardOld }, func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew },
			"drops old results", "nats stream edit RESULTS --discard=new",
		},
		{
			"RESULTS", func(c *jetstream.StreamConfig) { c.MaxAge = 400_000 * time.Hour }, func(c *jetstream.StreamConfig) { c.MaxAge = 0 },
			"loses its resume point", "nats stream edit RESULTS --max-age=0s",
		},
		{
			"JOURNAL", func(c *jetstream.StreamConfig) { c.AllowDirect = false }, func(c *jetstream.StreamConfig) { c.AllowDirect = true },
			"does not allow direct gets", "nats stream edit JOURNAL --allow-direct",
		},
		{
			"AUDIT", func(c *jetstream.StreamConfig) { c.NoAck = true }, func(c *jetstream.StreamConfig) { c.NoAck = false },
			"does not acknowledge", "nats stream edit AUDIT --ack",
		},
	} {
		t.Run(tt.stream+" "+tt.why, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{}, nil)
				l.load("a", "b")
				r := l.start(nil, Options{})
				l.await(2)
				l.change(tt.stream, tt.wrong)
				time.Sleep(2 * time.Minute)
				l.load("c", "d")
				time.Sleep(time.Minute)
				ok, why := r.ready()
				if ok || !strings.Contains(why, tt.why) || !strings.Contains(why, tt.edit) {
					t.Errorf("ready %v: %s", ok, why)
				}
				if n := stagetest.Stored(t, l.js, "RESULTS", "results.stage.0.rows"); n != 2 {
					t.Errorf("%d results, want the 2 from before", n)
				}
				if n := l.llms["first.test"].Stats().Received; n != 2 {
					t.Errorf("%d calls, want the 2 from before", n)
				}
				if log := l.logs.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, tt.edit) {
					t.Errorf("log:\n%s", log)
				}
				l.change(tt.stream, tt.right)
				l.await(4)
				if ok, why := r.ready(); !ok {
					t.Errorf("not ready: %s", why)
				}
				r.stop()
			})
		})
	}
}
