package consumer

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

func keptOfStage() *keptStream {
	return &keptStream{cfg: &Config{DurableConfig: streams.DurableConfig{Name: "stage", InputStream: "ROWS"}, RunID: "run"}, created: time.Unix(1700000000, 123)}
}

func TestAJournalEntryKeepsTheReplyWhole(t *testing.T) {
	kept := keptOfStage()
	usage := &auditlog.Usage{PromptTokens: 3, CompletionTokens: 4, TotalTokens: 7}
	row := &Row{Seq: 42, StateID: "stage/ROWS/0/42", answer: answer{reply: &Reply{
		Body: []byte("{\"a\":1,\n\"b\":2}"), Failed: true, RequestHash: "abc", Form: "max_bytes=5",
		Event: auditlog.Row{Reason: "refused", Attempts: 2, CapacityRetries: 5, Usage: usage, FinishedAt: time.Unix(1700000001, 5).UTC(), Source: auditlog.SourceCall},
	}}}
	msg := kept.entry(row, eventOf(row))
	ref, k := kept.parse(msg.Header, msg.Data)
	if k == nil || ref != (keptRef{42, wholeRow}) {
		t.Fatalf("reply %v to %v, want one to row 42", k, ref)
	}
	got, want := k.Reply, row.reply
	if string(got.Body) != string(want.Body) || !got.Failed || got.RequestHash != "abc" || k.RequestHash != "abc" || got.Form != want.Form {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if e := got.Event; e.Reason != "refused" || e.Attempts != 2 || e.CapacityRetries != 5 || *e.Usage != *usage || !e.FinishedAt.Equal(want.Event.FinishedAt) {
		t.Errorf("event: got %+v, want %+v", e, want.Event)
	}

	kept.created = kept.created.Add(time.Nanosecond)
	if _, k := kept.parse(msg.Header, msg.Data); k != nil {
		t.Errorf("an entry about another input stream has the reply %v", k)
	}
}

// Whatever lies in the journal, reading it neither panics nor makes a reply of something that is not an entry.
func FuzzJournalEntry(f *testing.F) {
	kept := keptOfStage()
	row := &Row{Seq: 42, answer: answer{reply: &Reply{Body: []byte("{}"), RequestHash: "abc"}}}
	msg := kept.entry(row, eventOf(row))
	f.Add(msg.Header.Get(streams.HeaderSourceSeq), msg.Header.Get(headerRequestHash), msg.Data)
	f.Add("", "", []byte(nil))
	f.Add("18446744073709551616", "x", []byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, seq, hash string, data []byte) {
		header := nats.Header{
			streams.HeaderSourceSeq: {seq}, headerRequestHash: {hash}, streams.HeaderSourceStream: {"ROWS"},
			headerInputCreated: {kept.created.Format(time.RFC3339Nano)},
		}
		if _, k := kept.parse(header, data); k != nil && k.RequestHash == "" {
			t.Fatal("a reply to no request")
		}
	})
}

// eventOf is the row's event as a term makes it.
func eventOf(row *Row) *auditlog.Row {
	e := (&Consumer{cfg: *keptOfStage().cfg}).rowEvent(row, "run.1", time.Now())
	return &e
}
