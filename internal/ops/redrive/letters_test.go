package redrive

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// workQueueBench is a redriveBench whose input deletes a row once it is acked, as the
// stage does with failed ones, too.
func workQueueBench(t *testing.T) *redriveBench {
	t.Helper()
	b := &redriveBench{Bench: stagetest.NewBench(t, func(all []jetstream.StreamConfig) { all[0].Retention = jetstream.WorkQueuePolicy })}
	b.job = b.Job()
	b.job.Claim("run1.a", 0)
	b.Store(b.job)
	return b
}

// failAcked is fail of a row that is acked, and has a dead letter, whole or not.
func (b *redriveBench) failAcked(data string, whole bool) (at uint64) {
	b.T.Helper()
	row := &nats.Msg{Subject: "rows.a", Data: []byte(data), Header: nats.Header{"X-Own": {"1"}}}
	at = b.fail("refused", row)
	seq := b.Stream("ROWS").CachedInfo().State.LastSeq
	stagetest.Must(b.T, b.Stream("ROWS").DeleteMsg(b.T.Context(), seq))
	letter := &nats.Msg{Subject: "dead", Data: row.Data, Header: nats.Header{
		"X-Own": {"1"}, jetstream.MsgIDHeader: {auditlog.StateID("stage", "ROWS", 0, seq) + letterID}, streams.HeaderReason: {"refused"},
		streams.HeaderSourceSeq: {strconv.FormatUint(seq, 10)}, streams.HeaderSourceSubject: {"rows.a"}, "Stage-Error": {"no"},
	}}
	if !whole {
		letter.Data, letter.Header[streams.HeaderTruncated] = nil, []string{"true"}
	}
	b.Publish(letter)
	return at
}

// The rows of a work queue are redriven from their dead letters, each once; the new row
// is as the old one was.
func TestRedriveTakesRowsThatTheInputDeletedFromTheirDeadLetters(t *testing.T) {
	b := workQueueBench(t)
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	first := b.failAcked(`{"n":1}`, true)
	b.failAcked(`{"n":2}`, false)
	want(t, b.redrive(Options{}), "0 rows published again, of 2 failed results; 2 have no row in the input any more; "+
		"stream ROWS deletes rows that are acked (WorkQueue retention): with STAGE_DEAD_LETTER_SUBJECT")
	b.Cfg.Streams.DeadLetterSubject = "dead"
	want(t, b.redrive(Options{DryRun: true}), "1 rows would be published again, of 2 failed results; 1 had a row too large for a message\n")
	want(t, b.redrive(Options{}), "1 rows published again, of 2 failed results; 1 had a row too large for a message\n")
	got := b.input(3)
	if row := fmt.Sprintf(`3 rows.a {"n":1} Nats-Expected-Last-Sequence=2 Nats-Expected-Stream=ROWS Nats-Msg-Id=stage/ROWS/0/1/redrive/%d Stage-Redrive-Of=stage/ROWS/0/1 Stage-Redrive-Result=%d Stage-Replaces=1 X-Own=1`, first, first); len(got) != 1 || got[0] != row {
		t.Errorf("got %q\nwant %q", got, row)
	}
	if err := b.Stream("ROWS").DeleteMsg(t.Context(), 3); err != nil { // acked
		t.Fatal(err)
	}
	want(t, b.redrive(Options{}), "0 rows published again, of 2 failed results; 1 were redriven before; ")
}

// A redrive that was killed after it had marked a result may have published the row,
// which was then answered and deleted: nobody can know, and it is not published a second
// time.
func TestRedriveDoesNotGuessWhatAnInterruptedOneHasPublished(t *testing.T) {
	b := workQueueBench(t)
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	b.Cfg.Streams.DeadLetterSubject = "dead"
	at := b.failAcked(`{"n":1}`, true)
	b.Publish(&nats.Msg{Subject: fmt.Sprintf("results.stage.redrive.0.%d", at), Header: nats.Header{headerRedriveFrom: {"2"}}})
	got := b.redrive(Options{})
	want(t, got, "0 rows published again, of 1 failed results; 1 may have been published again by a redrive that was interrupted")
	if rows := b.input(2); len(rows) > 0 || strings.Contains(got, "no row in the input") {
		t.Errorf("%s: published %q", got, rows)
	}
}

// A letter of an earlier stream of the same name has the name of another row.
func TestRedriveTakesNoDeadLetterOfAnotherInput(t *testing.T) {
	b := workQueueBench(t)
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	b.Cfg.Streams.DeadLetterSubject = "dead"
	b.failAcked(`{"n":"old"}`, true)
	b.Drop("ROWS")
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	b.job = b.Job()
	b.job.Claim("run2.a", 0)
	b.Store(b.job)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":"new"}`)})
	stagetest.Must(t, b.Stream("ROWS").DeleteMsg(t.Context(), 1))
	want(t, b.redrive(Options{}), "0 rows published again, of 2 failed results; 2 have no row in the input any more\n")
}
