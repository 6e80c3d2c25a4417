package consumer_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// hopeless answers each row with an error, after two attempts of which the last says why.
type hopeless struct{ why string }

func (f hopeless) Start(row *consumer.Row) {
	row.Reply(consumer.Reply{Body: []byte("{}"), Failed: true, Event: auditlog.Row{
		Reason: "refused", Errors: []auditlog.AttemptError{{Attempt: 1, Error: "an earlier one"}, {Attempt: 2, Error: f.why}},
	}})
}

// TestADeadLetterSaysWhichRowFailedAndWhy: by headers of its own. What a row brings of these names counts for nothing,
// unless it is the result of another stage: then its source is its lineage, and stays.
func TestADeadLetterSaysWhichRowFailedAndWhy(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}}))(t)
		of := func(stream, seq, subject, text string) nats.Header {
			h := nats.Header{streams.HeaderSourceSeq: {seq}, streams.HeaderSourceSubject: {subject}, "Stage-Error": {text}}
			if stream != "" {
				h[streams.HeaderSourceStream] = []string{stream}
			}
			return h
		}
		rows := []nats.Header{{"X-Id": {"one"}}, of("", "77", "forged", "an earlier stage's"), of("ELSEWHERE", "77", "upstream.7", "an earlier stage's")}
		cfg := b.config("run", hopeless{"status 400:\r\nno such model \x01\xff " + strings.Repeat("é", 400)})
		cfg.DeadLetterSubject = "dead"
		b.answered(cfg, rows...)
		letters := b.read("DEAD", "dead")
		if len(letters) != len(rows) {
			t.Fatalf("%d dead letters, want %d", len(letters), len(rows))
		}
		for i, want := range [][2]string{{"1", "rows.a"}, {"2", "rows.a"}, {"77", "upstream.7"}} {
			h := letters[i].Headers()
			if got := [2]string{h.Get(streams.HeaderSourceSeq), h.Get(streams.HeaderSourceSubject)}; got != want || len(h.Values(streams.HeaderSourceSeq)) != 1 {
				t.Errorf("row %d: its source is %v, want %v", i+1, got, want)
			}
			text := h.Get("Stage-Error")
			if !strings.HasPrefix(text, "status 400: no such model é") || len(text) > 500 || len(text) < 480 || !utf8.ValidString(text) || len(h.Values("Stage-Error")) != 1 {
				t.Errorf("row %d: it failed because of %d bytes: %q", i+1, len(text), text)
			}
			if h.Get(streams.HeaderReason) != "refused" {
				t.Errorf("row %d: reason %q", i+1, h.Get(streams.HeaderReason))
			}
		}
		if got := letters[0].Headers().Get("X-Id"); got != "one" {
			t.Errorf("the row's own header is %q", got)
		}
	})
}
