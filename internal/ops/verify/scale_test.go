package verify

import (
	"cmp"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

// generatedJob makes the streams of a partition as they are asked for: nothing of it is held.
type generatedJob struct {
	rows         uint64
	next, passed uint64
	lost         uint64 // a row without a result
	term         string
	mixed        int  // rows whose events come in a drawn order, 1000 by default
	lane         bool // calls are answers of batches
}

func (g *generatedJob) result() (*stored.ResultRow, error) {
	if g.next++; g.next == g.lost {
		g.next++
	}
	if g.next > g.rows {
		return nil, nil
	}
	return &stored.ResultRow{
		At: g.next + 1, Seq: g.next, Owner: g.term, Status: auditlog.RowSuccess, Source: "ROWS",
		StateID: auditlog.StateID("stage", "ROWS", 0, g.next),
	}, nil
}

func (g *generatedJob) input() (stored.InputRow, error) {
	if g.passed++; g.passed > g.rows {
		return stored.InputRow{}, nil
	}
	return stored.InputRow{Seq: g.passed}, nil
}

// events yields the events of the rows, some at a time in a drawn order, as a pool or a
// batch completes them. Each is valid until the next one: the verifier keeps none.
func (g *generatedJob) events(tb testing.TB, handle func(*auditlog.Event) error) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	head := auditlog.Header{Time: time.Unix(1, 0), RunID: "run1", Stage: "stage"}
	usage := &auditlog.Usage{PromptTokens: 10, CompletionTokens: 1, TotalTokens: 11}
	retry := &auditlog.Call{Header: head, Owner: g.term, Status: auditlog.CallCapacityRetry}
	call := &auditlog.Call{Header: head, Owner: g.term, CallIndex: 1, Status: auditlog.CallSuccess, Usage: usage}
	row := &auditlog.Row{Header: head, Owner: g.term, Status: auditlog.RowSuccess, Attempts: 1, CapacityRetries: 1, Source: auditlog.SourceCall, Usage: usage}
	events := []*auditlog.Event{{Header: head, Call: retry}, {Header: head, Call: call}, {Header: head, Row: row}}
	if g.lane {
		call.Lane, row.CapacityRetries, events = auditlog.LaneBatch, 0, events[1:]
	}
	mixed := cmp.Or(g.mixed, 1000)
	for block := uint64(0); block < g.rows; block += uint64(mixed) { //nolint:gosec // not negative
		for _, i := range rng.Perm(mixed) {
			seq := block + uint64(i) + 1 //nolint:gosec // not negative
			retry.Sequence, call.Sequence, row.Sequence = seq, seq, seq
			for _, e := range events {
				stagetest.Must(tb, handle(e))
			}
		}
	}
}

// Whatever is wrong with many rows, the memory to find it does not grow with them: a
// hundred thousand rows take as much as a fifth of them, which a short run has.
func TestVerifyHoldsAWindowOfRowsOnly(t *testing.T) {
	rows := uint64(100_000 / stagetest.Stride(5)) //nolint:gosec // not negative
	all := int(rows)                              //nolint:gosec // small
	for _, tt := range []struct {
		name  string
		lost  uint64
		drop  func(*auditlog.Event) bool
		kinds map[violationKind]int
	}{
		{"nothing wrong", 0, nil, map[violationKind]int{}},
		{
			"a lost row and a missing call", rows - 2222, func(e *auditlog.Event) bool {
				return e.Call != nil && e.Call.Sequence == rows/2 && e.Call.CallIndex == 0
			},
			map[violationKind]int{violationLost: 1, violationNoCallEvent: 1},
		},
		{"no row event at all", 0, func(e *auditlog.Event) bool { return e.Row != nil }, map[violationKind]int{violationNoRowEvent: all}},
		{"no audit at all", 0, func(*auditlog.Event) bool { return true }, map[violationKind]int{violationNoRowEvent: all}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &generatedJob{rows: rows, lost: tt.lost, term: "run1.a"}
			claim := stored.Claim{At: 1, Owner: g.term, Version: 1, Input: "ROWS"}
			report, _ := verifyGenerated(t, &generated{rows: rows, claim: claim, result: g.result, input: g.input, events: g.events}, tt.drop, 2<<20)
			if got := report.Violations.ByKind; len(got) != len(tt.kinds) {
				t.Errorf("got violations %v, want %v", got, tt.kinds)
			}
			for kind, n := range tt.kinds {
				if got := report.Violations.ByKind[kind]; got != n {
					t.Errorf("got %d %s, want %d", got, kind, n)
				}
			}
		})
	}
}

// generated is a job that is made as it is read.
type generated struct {
	rows   uint64
	claim  stored.Claim
	result func() (*stored.ResultRow, error)
	input  func() (stored.InputRow, error)
	events func(tb testing.TB, handle func(*auditlog.Event) error)
	// batches is how many rows may be in batches.
	batches int
}

// verifyGenerated verifies a job without the events that drop selects, and fails the test
// where the heap grows by more than most bytes.
func verifyGenerated(t *testing.T, g *generated, drop func(*auditlog.Event) bool, most uint64) (*Report, *partitionVerifier) {
	t.Helper()
	const window = 1024
	report := newReport("stage")
	v := newPartitionVerifier(report, newRunVerifier(), 0, 2*(window+g.batches))
	v.log.logFacts = logFacts{name: "stage", stream: "ROWS", bound: g.rows}
	v.log.results, v.log.claims, v.log.input = g.result, []stored.Claim{g.claim}, inputRows{last: g.rows, read: g.input}
	before, peak, seen := heapInUse(), uint64(0), 0
	stagetest.Must(t, v.start())
	g.events(t, func(e *auditlog.Event) error {
		if seen++; seen%14_750 == 0 {
			peak = max(peak, heapInUse())
		}
		if drop != nil && drop(e) {
			return nil
		}
		return v.event(e, proof.Hash{})
	})
	stagetest.Must(t, v.finish())
	if peak = max(peak, heapInUse()); peak > before+most {
		t.Errorf("got %d KiB on the heap more than at the beginning, want %d at most", (peak-before)>>10, most>>10)
	}
	t.Logf("%d KiB", (max(peak, before)-before)>>10)
	return report, v
}

// heapInUse is what is in use.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
