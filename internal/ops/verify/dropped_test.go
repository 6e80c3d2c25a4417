package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// recordDrop stores the record of the results up to place 9, as an owner does before it
// purges them.
func recordDrop(b *stagetest.Bench, change func(*streams.Dropped)) {
	b.T.Helper()
	const at = 9
	m := stagetest.Value(b.Stream("RESULTS").GetMsg(b.T.Context(), at))(b.T)
	d := streams.Dropped{Sequence: at, Stored: m.Time, At: m.Time, Chain: m.Header.Get(proof.HeaderChain), Records: 1, ClaimsBelow: 1}
	d.Row = stagetest.Value(strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64))(b.T)
	d.Low, d.Results = d.Row, d.Row
	if change != nil {
		change(&d)
	}
	b.Publish(&nats.Msg{Subject: "results.stage.dropped.0", Data: stagetest.Value(json.Marshal(d))(b.T)})
}

func purgeRows(b *stagetest.Bench, stage string, upTo uint64) {
	b.T.Helper()
	stagetest.Must(b.T, streams.PurgeBelow(b.T.Context(), b.NC, "RESULTS", "results."+stage+".0.rows", upTo+1))
}

func TestVerifyGoesOnBehindDroppedResults(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(chainedJob(b))
	roots := rootsAt(b, 8, 9, 22)
	recordDrop(b, nil)
	if report, text := proven(b); report.Partitions[0].Dropped != nil || report.Partitions[0].Results != 20 {
		t.Errorf("before the purge:\n%s", text)
	}
	purgeRows(b, "stage", 9)
	report, text := proven(b)
	if d := report.Partitions[0].Dropped; d == nil || d.Results != 8 || d.Row != 8 || report.Partitions[0].Results != 12 || !strings.Contains(text, "dropped: 8 results up to row 8 of partition 0, for their age") {
		t.Errorf("after the purge:\n%s", text)
	}
	if report, text, code := verifyWith(b, Options{Roots: roots[1:]}); code != codeProven || report.RootsFound != 2 {
		t.Errorf("with the root of the last dropped result: exit code %d\n%s", code, text)
	}
	if _, text, code := verifyWith(b, Options{Roots: roots}); code != codeUnproven || !strings.Contains(text, "the root at 8 of the results stream is in the part of the log that is gone") {
		t.Errorf("with the root of a dropped result: exit code %d\n%s", code, text)
	}
	roots[1].Chain[0]++
	if _, text, code := verifyWith(b, Options{Roots: roots[1:]}); code != codeViolated || !strings.Contains(text, "root_differs") {
		t.Errorf("with another root of the last dropped result: exit code %d\n%s", code, text)
	}
}

// rootsAt returns the roots of messages of the log.
func rootsAt(b *stagetest.Bench, places ...uint64) (roots []Root) {
	b.T.Helper()
	for _, at := range places {
		m := stagetest.Value(b.Stream("RESULTS").GetMsg(b.T.Context(), at))(b.T)
		chain, _, _ := proof.ChainOf(m.Header)
		roots = append(roots, Root{Sequence: at, Chain: chain})
	}
	return roots
}

func TestWhatARecordOfDroppedResultsDoesNotExplain(t *testing.T) {
	other := func(d *streams.Dropped) { d.Chain = strings.Repeat("ab", 32) }
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name  string
		plant func(b *stagetest.Bench)
		code  int
		want  string
	}{
		{"no record", func(b *stagetest.Bench) { purgeRows(b, "stage", 9) }, codeViolated, "deleted: partition 0: the result of row 9"},
		{"another chain", func(b *stagetest.Bench) {
			recordDrop(b, other)
			purgeRows(b, "stage", 9)
		}, codeViolated, "chain_broken: partition 0: the result of row 9, at 10 of the results stream, does not follow message 9"},
		{"another chain, before the purge", func(b *stagetest.Bench) { recordDrop(b, other) }, codeViolated, "and the record of dropped results says abab"},
		{"the end of the log", func(b *stagetest.Bench) {
			recordDrop(b, func(d *streams.Dropped) { d.Sequence, d.Row, d.Low, d.Results = 21, 19, 19, 19 })
			purgeRows(b, "stage", 21)
			remove(b, "RESULTS", 22)
		}, codeViolated, "the log does not go on behind it"},
		{"no JSON", func(b *stagetest.Bench) {
			b.Publish(&nats.Msg{Subject: "results.stage.dropped.0", Data: []byte("x")})
		}, codeViolated, "is no record of dropped results"},
		{"more than it says", func(b *stagetest.Bench) {
			recordDrop(b, nil)
			purgeRows(b, "stage", 11)
		}, codeViolated, "deleted"},
		{"the last result, too", func(b *stagetest.Bench) {
			recordDrop(b, nil)
			purgeRows(b, "stage", 9)
			remove(b, "RESULTS", 22)
		}, codeUnproven, "stream RESULTS lacks 1 messages after its first one"},
		{"results of another stage", func(b *stagetest.Bench) {
			for range 5 {
				b.Publish(&nats.Msg{Subject: "results.other.0.rows"})
			}
			b.Publish(&nats.Msg{Subject: "results.other.dropped.0", Data: fmt.Appendf(nil, `{"sequence":27,"results":4,"records":1,"chain":%q}`, strings.Repeat("ab", 32))})
			purgeRows(b, "other", 27)
		}, codeUnproven, "stream RESULTS lacks 1 messages"},
		{"all results of another stage, explained", func(b *stagetest.Bench) {
			for range 5 {
				b.Publish(&nats.Msg{Subject: "results.other.0.rows"})
			}
			b.Publish(&nats.Msg{Subject: "results.other.dropped.0", Data: fmt.Appendf(nil, `{"sequence":27,"results":5,"records":1,"chain":%q}`, strings.Repeat("ab", 32))})
			purgeRows(b, "other", 27)
		}, codeProven, "proven: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			b.Store(chainedJob(b))
			tt.plant(b)
			if _, text, code := verifyAll(b); code != tt.code || !strings.Contains(text, tt.want) {
				t.Errorf("got exit code %d, want %d and %q:\n%s", code, tt.code, tt.want, text)
			}
		})
	}
}

func TestVerifyBeginsAgainWhereResultsAreDroppedMeanwhile(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(chainedJob(b))
	times := 0
	report, text, code := verifyWith(b, Options{opened: func() {
		if times++; times == 1 {
			recordDrop(b, nil)
			purgeRows(b, "stage", 9)
		}
	}})
	if code != codeProven || times != 2 || report.Partitions[0].Dropped == nil {
		t.Errorf("exit code %d after %d times:\n%s", code, times, text)
	}
}
