package redrive

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// chainBench has results of stage map, which are the rows of stage reduce, and failed
// results of that.
type chainBench struct{ *redriveBench }

func newChainBench(t *testing.T, input string) chainBench {
	t.Helper()
	b := chainBench{&redriveBench{Bench: stagetest.NewBench(t, nil)}}
	b.Cfg = stagetest.Config(t, "STAGE_NAME", "reduce", "STAGE_INPUT_STREAM", "RESULTS", "STAGE_INPUT_SUBJECT", input)
	return b
}

// mapped stores a result of stage map, whose row has the sequence.
func (b chainBench) mapped(seq uint64) (at uint64) {
	b.T.Helper()
	return b.Publish(&nats.Msg{Subject: "results.map.0.rows", Data: fmt.Appendf(nil, `{"n":%d,"llm_response":"x"}`, seq), Header: nats.Header{
		streams.HeaderStateID: {auditlog.StateID("map", "ROWS", 0, seq)}, streams.HeaderSourceStream: {"ROWS"}, streams.HeaderSourceSubject: {"rows.a"},
		streams.HeaderSourceSeq: {strconv.FormatUint(seq, 10)}, streams.HeaderStatus: {auditlog.RowSuccess}, streams.HeaderOwner: {"run0.a"},
		streams.HeaderOriginStream: {"BOOKS"}, streams.HeaderOriginSeq: {"7"}, streams.HeaderKey: {"c17"}, "Customer": {"c17"},
	}})
}

// reduced stores the failed result of a row of stage reduce.
func (b chainBench) reduced(seq uint64, subject string) (at uint64) {
	b.T.Helper()
	return b.Publish(&nats.Msg{Subject: "results.reduce.0.rows", Data: []byte(`{"llm_response_error":{"reason":"refused"}}`), Header: nats.Header{
		streams.HeaderStateID: {auditlog.StateID("reduce", "RESULTS", 0, seq)}, streams.HeaderSourceStream: {"RESULTS"}, streams.HeaderSourceSubject: {subject},
		streams.HeaderSourceSeq: {strconv.FormatUint(seq, 10)}, streams.HeaderStatus: {auditlog.RowError}, streams.HeaderOwner: {"run1.a"},
	}})
}

// In the log of the stage before it a copy would be an end that this stage does not know.
// The copy has the headers that make it a result, and so the origin; and other stages
// append to the stream all the time.
func TestARedriveInAChainLeavesTheLogBeforeItAlone(t *testing.T) {
	b := newChainBench(t, "results.map.*.rows")
	first, second := b.mapped(1), b.mapped(2)
	b.reduced(first, "results.map.0.rows")
	failed := b.reduced(second, "results.map.0.rows")
	end := stagetest.Value(streams.LastMessage(t.Context(), b.NC, "RESULTS", "results.map.0.>"))(t)
	want(t, b.redrive(Options{}), "2 rows published again, of 2 failed results\n")
	want(t, b.redrive(Options{}), "0 rows published again, of 2 failed results; 2 were redriven before\n")
	if now, err := streams.LastMessage(t.Context(), b.NC, "RESULTS", "results.map.0.>"); err != nil || now.Sequence != end.Sequence {
		t.Errorf("the log of the stage before ends at %d, want %d (%v)", now.Sequence, end.Sequence, err)
	}
	copies := stagetest.Read(t, b.JS, "RESULTS", "results.map.redriven-reduce.rows")
	if len(copies) != 2 {
		t.Fatalf("got %d copies, want 2", len(copies))
	}
	m := copies[1]
	stream, seq := streams.Origin(m.Header)
	if string(m.Body) != `{"n":2,"llm_response":"x"}` || streams.Upstream(m.Header) != "map" || stream != "BOOKS" || seq != "7" {
		t.Errorf("got %s with headers %v", m.Body, m.Header)
	}
	for key, value := range map[string]string{
		streams.HeaderSourceSubject: "rows.a", streams.HeaderStatus: auditlog.RowSuccess, streams.HeaderKey: "c17", "Customer": "c17", streams.HeaderOwner: "",
		streams.HeaderRedriveOf: auditlog.StateID("reduce", "RESULTS", 0, second), streams.HeaderReplaces: strconv.FormatUint(second, 10),
		headerRedriveResult: strconv.FormatUint(failed, 10),
	} {
		if got := m.Header.Get(key); got != value {
			t.Errorf("%s: got %q, want %q", key, got, value)
		}
	}
	if streams.Replaced(m.Header, "reduce", "RESULTS") != second {
		t.Errorf("the copy does not replace row %d", second)
	}
	// The copy fails as well, and a copy of it is on the same subject.
	b.reduced(m.Seq, m.Subject)
	want(t, b.redrive(Options{}), "1 rows published again, of 3 failed results; 2 were redriven before\n")
	copies = stagetest.Read(t, b.JS, "RESULTS", "results.map.redriven-reduce.rows")
	if last := copies[len(copies)-1]; len(copies) != 3 || streams.Replaces(last.Header) != second || streams.Upstream(last.Header) != "map" {
		t.Errorf("got %d copies, the last with %v", len(copies), last.Header)
	}
}

func TestARedriveInAChainIsRefusedWhereACopyHasNoSubject(t *testing.T) {
	b := newChainBench(t, "results.map.0.rows")
	b.reduced(b.mapped(1), "results.map.0.rows")
	_, err := Run(t.Context(), b.JS, b.Cfg, Options{}, nil)
	if !config.IsInvalid(err) || !strings.Contains(err.Error(), "a wildcard in place of the partition, such as results.map.*.rows,") {
		t.Errorf("got %v", err)
	}
	if n := stagetest.Stored(t, b.JS, "RESULTS", "results.map.>"); n != 1 {
		t.Errorf("%d messages in the log of the stage before, want 1", n)
	}
}

// The name alone is not enough to redrive a later stage: the rows are not in the input
// stream that a first stage has.
func TestARedriveWithTheInputOfAnotherStageSaysSo(t *testing.T) {
	b := newChainBench(t, "results.map.*.rows")
	b.reduced(b.mapped(1), "results.map.0.rows")
	b.Rows(3, "rows.a")
	b.Cfg = stagetest.Config(t, "STAGE_NAME", "reduce")
	want(t, b.redrive(Options{}), "0 rows published again, of 1 failed results; 1 have no row in the input any more; "+
		"STAGE_INPUT_STREAM is ROWS, and there are results of rows of stream RESULTS: give all settings of the stage\n")
	if n := stagetest.Stored(t, b.JS, "ROWS", ">"); n != 3 {
		t.Errorf("%d rows in the input, want 3", n)
	}
}
