//go:build long

package verify

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

// slowGroup is how many rows pass while the first of them waits, slowBlock how many are
// in the window meanwhile.
const slowGroup, slowBlock = 60_000, 1000

// slowJob is a generatedJob whose results are in order by key, with a key of its own for
// each row. The rows of each block finish in a drawn order, and the first row of each
// group after all others of it, a call for each block later.
type slowJob struct {
	generatedJob

	order  streams.Order
	done   uint64 // results so far
	places []uint64
}

// row returns the row whose result is the n-th, counted from 0.
func (g *slowJob) row(n uint64) uint64 {
	group, i := n/slowGroup*slowGroup, n%slowGroup
	if i == min(slowGroup, g.rows-group)-1 {
		return group + 1
	}
	i++ // without the slow row
	block := i / slowBlock * slowBlock
	if i%slowBlock == 0 || i == 1 {
		rng := rand.New(rand.NewPCG(group, block))
		g.places = g.places[:0]
		for _, place := range rng.Perm(slowBlock) {
			if place > 0 || block > 0 {
				g.places = append(g.places, block+uint64(place)) //nolint:gosec // not negative
			}
		}
	}
	return group + g.places[i%slowBlock-uint64(slowBlock-len(g.places))] + 1 //nolint:gosec // not negative
}

func (g *slowJob) result() (*stored.ResultRow, error) {
	for {
		if g.done == g.rows {
			return nil, nil
		}
		n := g.done
		seq := g.row(n)
		g.done++
		if seq == g.lost {
			continue
		}
		group := n / slowGroup * slowGroup
		p := stored.Progress{Named: true, Low: group, Ahead: n - group + 1, From: group + 2}
		if seq == group+1 {
			p = stored.Progress{Named: true, Low: min(g.rows, group+slowGroup)}
		}
		r := &stored.ResultRow{
			At: n + 2, Seq: seq, Owner: g.term, Status: auditlog.RowSuccess, Source: "ROWS",
			StateID: auditlog.StateID("stage", "ROWS", 0, seq), Subject: subjectOf(seq), Progress: p,
		}
		if g.order == streams.OrderKey {
			r.Key = &r.Subject
		}
		return r, nil
	}
}

func (g *slowJob) input() (stored.InputRow, error) {
	if g.passed++; g.passed > g.rows {
		return stored.InputRow{}, nil
	}
	return stored.InputRow{Seq: g.passed, Subject: subjectOf(g.passed)}, nil
}

func subjectOf(seq uint64) string { return "rows." + strconv.FormatUint(seq, 10) }

// events yields the events of the rows: the calls of a block, then the row events in the
// order of the results, and a call of the slow row with each block.
func (g *slowJob) events(tb testing.TB, handle func(*auditlog.Event) error) {
	tb.Helper()
	head := auditlog.Header{Time: time.Unix(1, 0), RunID: "run1", Stage: "stage"}
	usage := &auditlog.Usage{PromptTokens: 10, CompletionTokens: 1, TotalTokens: 11}
	call := func(seq uint64, index int, status auditlog.CallStatus) *auditlog.Event {
		c := &auditlog.Call{Header: head, Owner: g.term, Sequence: seq, CallIndex: index, Status: status}
		if status == auditlog.CallSuccess {
			c.Usage = usage
		}
		return &auditlog.Event{Header: head, Call: c}
	}
	send := func(e *auditlog.Event) {
		stagetest.Must(tb, handle(e))
	}
	order, calls := slowJob{generatedJob: generatedJob{rows: g.rows}}, slowJob{generatedJob: generatedJob{rows: g.rows}}
	retries := 0
	for n := range g.rows {
		seq, slow := order.row(n), n/slowGroup*slowGroup+1
		if n%slowBlock == 0 {
			send(call(slow, retries, auditlog.CallCapacityRetry))
			retries++
			for i := n; i < min(n+slowBlock, g.rows); i++ { // the block is in the window
				if of := calls.row(i); of != slow {
					send(call(of, 0, auditlog.CallSuccess))
				}
			}
		}
		first := 0
		if seq == slow {
			send(call(seq, retries, auditlog.CallSuccess))
			first, retries = retries, 0
		}
		send(&auditlog.Event{Header: head, Row: &auditlog.Row{
			Header: head, Owner: g.term, Sequence: seq, Status: auditlog.RowSuccess, Attempts: 1, CapacityRetries: first,
			Source: auditlog.SourceCall, Usage: usage,
		}})
	}
}

// generated returns the job for the test of its size.
func (g *slowJob) generated() *generated {
	return &generated{
		rows:   g.rows,
		claim:  stored.Claim{At: 1, Owner: g.term, Version: 2, Input: "ROWS", Order: g.order, Key: "subject", Progress: stored.Progress{Named: true}},
		result: g.result, input: g.input, events: g.events,
	}
}

// A row that waits while sixty thousand others pass costs no more than these, however
// many rows and keys there are. Its events are not taken for missing, nor are theirs.
func TestVerifyHoldsTheSpanOfRowsOnly(t *testing.T) {
	for _, tt := range []struct {
		name       string
		order      streams.Order
		rows, lost uint64
		drop       func(*auditlog.Event) bool
		kinds      map[violationKind]int
	}{
		{"a million keys", streams.OrderKey, 1_000_000, 0, nil, map[violationKind]int{}},
		{"no order", streams.OrderNone, 200_000, 0, nil, map[violationKind]int{}},
		{
			"a lost row and a missing call of one that waited", streams.OrderKey, 200_000, 77_777,
			func(e *auditlog.Event) bool {
				return e.Call != nil && e.Call.Sequence == 60_001 && e.Call.CallIndex == 30
			},
			map[violationKind]int{violationLost: 1, violationNoCallEvent: 1},
		},
		{
			"no row event", streams.OrderKey, 200_000, 0, func(e *auditlog.Event) bool { return e.Row != nil },
			map[violationKind]int{violationNoRowEvent: 200_000},
		},
		{
			"a row without an event", streams.OrderKey, 200_000, 0,
			func(e *auditlog.Event) bool {
				return e.Row != nil && e.Row.Sequence == 60_001 || e.Call != nil && e.Call.Sequence == 60_001
			},
			map[violationKind]int{violationNoRowEvent: 1},
		},
		{
			"no audit at all", streams.OrderKey, 200_000, 0, func(*auditlog.Event) bool { return true },
			map[violationKind]int{violationNoRowEvent: 200_000},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &slowJob{generatedJob: generatedJob{rows: tt.rows, lost: tt.lost, term: "run1.a"}, order: tt.order}
			began := time.Now()
			report, v := verifyGenerated(t, g.generated(), tt.drop, 12<<20)
			t.Logf("%v", time.Since(began))
			if fmt.Sprint(report.Violations.ByKind) != fmt.Sprint(tt.kinds) {
				t.Errorf("got violations %v, want %v, the first %+v", report.Violations.ByKind, tt.kinds, report.Violations.First)
			}
			if v.log.mark != tt.rows || len(v.log.ahead.rows) > 0 || len(v.log.ahead.latest) > 0 || len(v.window.ahead) > 0 {
				t.Errorf("got mark %d, %d rows ahead of it, %d keys, events of %d rows in the end", v.log.mark, len(v.log.ahead.rows), len(v.log.ahead.latest), len(v.window.ahead))
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	const rows = 120_000
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone} {
		b.Run("order="+string(order), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g := &slowJob{generatedJob: generatedJob{rows: rows, term: "run1.a"}, order: order}
				v := newPartitionVerifier(newReport("stage"), newRunVerifier(), 0, 2048)
				v.log.logFacts = logFacts{name: "stage", stream: "ROWS", bound: rows}
				v.log.results, v.log.claims, v.log.input = g.result, []stored.Claim{g.generated().claim}, inputRows{last: rows, read: g.input}
				if order == streams.OrderStream {
					v.log.results, v.log.claims[0].Version = g.generatedJob.result, 1
				}
				stagetest.Must(b, v.start())
				event := func(e *auditlog.Event) error { return v.event(e, proof.Hash{}) }
				if order == streams.OrderStream {
					g.generatedJob.events(b, event)
				} else {
					g.events(b, event)
				}
				stagetest.Must(b, v.finish())
				if n := v.report.Violations.Count; n > 0 {
					b.Fatalf("got %d violations, the first %+v", n, v.report.Violations.First[0])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
		})
	}
}
