package usage

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// calls builds events of one stage.
type calls struct {
	stage string
	at    time.Time
}

// of returns the call of a row, whose tokens are its sequence.
func (c *calls) of(owner string, seq uint64, index int, status auditlog.CallStatus, change ...func(*auditlog.Call)) *auditlog.Event {
	e := &auditlog.Call{
		Header: auditlog.Header{Time: c.at, RunID: "run", Stage: c.stage}, Owner: owner, Sequence: seq, CallIndex: index,
		StateID: auditlog.StateID(c.stage, "ROWS", 0, seq), CallID: fmt.Sprint(owner, seq, index), Provider: "openai", Model: "small", Status: status,
	}
	if status == auditlog.CallSuccess {
		e.Usage = &auditlog.Usage{PromptTokens: int64(seq), CompletionTokens: 1, TotalTokens: int64(seq) + 1, CostUSD: new(0.5)}
	}
	for _, f := range change {
		f(e)
	}
	return &auditlog.Event{Kind: auditlog.KindCall, Header: e.Header, Call: e}
}

func add(b *Book, events ...*auditlog.Event) {
	for _, e := range events {
		b.Add(e)
	}
}

func batched(c *auditlog.Call) {
	c.BatchID, c.Sequence, c.StateID, c.Partition = "req-1", 0, "", auditlog.All
}

func TestCallsAreCountedByTheirStatus(t *testing.T) {
	b, c := NewBook(nil), calls{stage: "a"}
	unpriced := func(c *auditlog.Call) { c.Usage.CostUSD = nil }
	billed := func(c *auditlog.Call) { c.StatusCode = 200 } // a reply that was not accepted
	counted := func(c *auditlog.Call) {
		c.Usage = &auditlog.Usage{PromptTokens: 7, TotalTokens: 7, CachedTokens: new(int64(5)), ReasoningTokens: new(int64(0)), CostUSD: new(0.25)}
	}
	add(b,
		c.of("run.a", 10, 0, auditlog.CallSuccess),
		c.of("run.a", 11, 0, auditlog.CallCapacityRetry),
		c.of("run.a", 11, 1, auditlog.CallSuccess, unpriced),
		c.of("run.a", 12, 0, auditlog.CallFailure),
		c.of("run.a", 12, 1, auditlog.CallFailure, billed),
		c.of("run.a", 12, 2, auditlog.CallFailure, counted),
		c.of("run.a", 13, 0, auditlog.CallUnknown),
	)
	n := b.Report(c.at).Total
	if n.Calls != 7 || n.Succeeded != 2 || n.CapacityRetries != 1 || n.Failed != 3 || n.Unknown != 1 {
		t.Errorf("got %+v, want 7 calls: 2 succeeded, 1 retried, 3 failed, 1 unknown", n)
	}
	if *n.PromptTokens != 28 || *n.CompletionTokens != 2 || *n.TotalTokens != 30 || *n.CachedTokens != 5 || *n.ReasoningTokens != 0 || n.CacheWriteTokens != nil {
		t.Errorf("tokens %d+%d of %d, cached %d, reasoning %d", *n.PromptTokens, *n.CompletionTokens, *n.TotalTokens, *n.CachedTokens, *n.ReasoningTokens)
	}
	// The failure without usage and a status of its own costs nothing; that which was
	// answered may have been billed.
	if n.CostUSD != nil || n.KnownCostUSD != 0.75 || n.UnpricedCalls != 3 {
		t.Errorf("cost %v, known %v, unpriced %d; want unknown, 0.75 and 3", n.CostUSD, n.KnownCostUSD, n.UnpricedCalls)
	}
}

func TestACallCountsOnceHoweverOftenItIsStored(t *testing.T) {
	item := func(i int) func(*auditlog.Call) {
		return func(c *auditlog.Call) { c.Item, c.StateID = &i, auditlog.ItemStateID(c.StateID, i) }
	}
	line := func(c *auditlog.Call) {
		c.Lane, c.BatchID, c.CallID = auditlog.LaneBatch, "batch_1", fmt.Sprintf("to-ken-%d", c.Sequence)
	}
	c := calls{stage: "a"}
	distinct := []*auditlog.Event{
		c.of("run.a", 1, 0, auditlog.CallSuccess),
		c.of("run.a", 1, 1, auditlog.CallSuccess),                                                        // the next call of the row
		c.of("run.b", 1, 0, auditlog.CallSuccess),                                                        // that of another term
		c.of("run.a", 1+1<<16, 0, auditlog.CallSuccess),                                                  // of a row far behind
		c.of("run.a", 1, 0, auditlog.CallSuccess, func(c *auditlog.Call) { c.Partition = 1 }),            //
		c.of("run.a", 1, 0, auditlog.CallSuccess, func(c *auditlog.Call) { c.Stage = "b" }),              // in one process
		c.of("run.c", 5, 0, auditlog.CallSuccess, item(1)),                                               // elements are numbered together
		c.of("run.c", 5, 1, auditlog.CallSuccess, item(0)),                                               //
		c.of("run", 0, 0, auditlog.CallSuccess, batched),                                                 // of a batched request
		c.of("run", 0, 1, auditlog.CallSuccess, batched),                                                 //
		c.of("run", 0, 0, auditlog.CallSuccess, batched, func(c *auditlog.Call) { c.BatchID = "req-2" }), //
		c.of("run.a", 9, 0, auditlog.CallSuccess, line),
		c.of("run.a", 10, 0, auditlog.CallSuccess, line),
	}
	b := NewBook(nil)
	add(b, distinct...)
	add(b, distinct...)
	add(b, c.of("run2.a", 9, 0, auditlog.CallSuccess, line), c.of("run2.a", 10, 3, auditlog.CallSuccess, line)) // another owner reads the batch
	r := b.Report(c.at)
	if want := uint64(len(distinct)); r.Total.Calls != want || r.Doubled != want+2 {
		t.Errorf("%d calls and %d doubled events, want %d and %d", r.Total.Calls, r.Doubled, want, want+2)
	}
}

// What is remembered of calls is bounded whatever they are, and those of the generation
// before are known again.
func TestMemoryOfDoublesIsBounded(t *testing.T) {
	for name, call := range map[string]func(c *auditlog.Call, n uint64){
		"rows in a row":   func(c *auditlog.Call, n uint64) { c.Sequence = n },
		"rows far apart":  func(c *auditlog.Call, n uint64) { c.Sequence = n << 16 },
		"terms of a call": func(c *auditlog.Call, n uint64) { c.Owner = fmt.Sprint(n) },
		"retries":         func(c *auditlog.Call, n uint64) { c.CallIndex = int(n) },
		"requests":        func(c *auditlog.Call, n uint64) { c.Sequence, c.BatchID = 0, fmt.Sprint(n) },
	} {
		t.Run(name, func(t *testing.T) {
			const most = 1 << 16
			s := seen{most: most}
			c := auditlog.Call{Sequence: 1}
			rotations, before := 0, 0
			for n := uint64(1); rotations < 3; n++ {
				call(&c, n)
				if !s.add(&c) {
					t.Fatalf("call %d is taken for an earlier one", n)
				}
				if s.size > most+runSize+2*chunkSize || s.size < 0 {
					t.Fatalf("size %d after %d calls", s.size, n)
				}
				if s.size < before {
					rotations++
				}
				before = s.size
				if s.add(&c) {
					t.Fatalf("call %d is new a second time", n)
				}
				if n > 600 { // those of the generation before are known
					if call(&c, n-600); s.add(&c) {
						t.Fatalf("call %d is new again 600 calls later", n-600)
					}
				}
				if n := len(s.now.requests) + len(s.before.requests); n > 2*most/requestSize {
					t.Fatalf("%d requests are held", n)
				}
				if runs := len(s.now.rows) + len(s.before.rows); runs-2 > 2*most/(runSize+chunkSize) {
					t.Fatalf("%d runs are held", runs)
				}
			}
		})
	}
}

func TestGroups(t *testing.T) {
	day := time.Date(2026, 11, 24, 23, 59, 59, 0, time.UTC)
	book := func(by ...Dimension) *Report {
		b := NewBook(by)
		for i, e := range []struct {
			stage, provider, model string
			at                     time.Time
		}{
			{"b", "openai", "small", day},
			{"a", "openai", "small", day.Add(time.Second)},
			{"a", "mock", "large", day},
			{"a", "mock", "large", day.In(time.FixedZone("", 7200))},
		} {
			c := calls{stage: e.stage, at: e.at}
			add(b, c.of("run.a", uint64(i+1), 0, auditlog.CallSuccess, func(c *auditlog.Call) { c.Provider, c.Model = e.provider, e.model }))
		}
		return b.Report(day)
	}
	for _, tt := range []struct {
		by   []Dimension
		want []string // names, calls and prompt tokens
	}{
		{nil, []string{"[] 4 10"}},
		{[]Dimension{ByStage}, []string{"[a] 3 9", "[b] 1 1"}},
		{[]Dimension{ByProvider, ByModel}, []string{"[mock large] 2 7", "[openai small] 2 3"}},
		{[]Dimension{ByDay}, []string{"[2026-11-24] 3 8", "[2026-11-25] 1 2"}},
		{Dimensions, []string{
			"[a mock large 2026-11-24] 2 7", "[a openai small 2026-11-25] 1 2", "[b openai small 2026-11-24] 1 1",
		}},
	} {
		r := book(tt.by...)
		var got []string
		for i := range r.Groups {
			g := &r.Groups[i]
			got = append(got, fmt.Sprint(r.names(g), g.Calls, *g.PromptTokens))
		}
		if !slices.Equal(got, tt.want) || r.Total.Calls != 4 {
			t.Errorf("by %v: %q, want %q", tt.by, got, tt.want)
		}
	}
}

func TestGroupsAreBounded(t *testing.T) {
	b, c := NewBook([]Dimension{ByStage, ByModel}), calls{stage: "a"}
	for i := range groupsMax + 500 {
		add(b, c.of("run.a", uint64(i+1), 0, auditlog.CallSuccess, func(c *auditlog.Call) { c.Model = fmt.Sprintf("m%06d", i) }))
	}
	r := b.Report(c.at)
	last := r.Groups[len(r.Groups)-1]
	if len(r.Groups) != groupsMax+1 || *last.Model != otherGroup || last.Calls != 500 || r.Total.Calls != groupsMax+500 {
		t.Errorf("%d groups, the last is %s with %d calls, of %d", len(r.Groups), *last.Model, last.Calls, r.Total.Calls)
	}
}

func TestWordsOfDimensions(t *testing.T) {
	by, err := ParseDimensions([]string{"day", "stage", "day"})
	if err != nil || !slices.Equal(by, []Dimension{ByStage, ByDay}) {
		t.Errorf("got %v, %v", by, err)
	}
	if _, err := ParseDimensions([]string{"stage", "week"}); err == nil || err.Error() != `"week": it is stage, provider, model, day or field.NAME, or several of them separated by commas` {
		t.Errorf("got %v", err)
	}
}

// Answers of a batch that no row has used are billed, and have no call.
func TestAnswersOfBatchesThatNoRowHasUsed(t *testing.T) {
	c := calls{stage: "a", at: time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)}
	phase := func(token string, p auditlog.BatchPhase, change ...func(*auditlog.Batch)) *auditlog.Event {
		e := &auditlog.Batch{Header: auditlog.Header{Time: c.at, Stage: "a"}, Token: token, Phase: p, Rows: 4}
		for _, f := range change {
			f(e)
		}
		return &auditlog.Event{Kind: auditlog.KindBatch, Header: e.Header, Batch: e}
	}
	line := func(token string, seq uint64) *auditlog.Event {
		return c.of("run.a", seq, 0, auditlog.CallSuccess, func(c *auditlog.Call) {
			c.Lane, c.CallID = auditlog.LaneBatch, fmt.Sprintf("%s-%d", token, seq)
		})
	}
	ended := func(answered, failed int, tokens int64, usd *float64) func(*auditlog.Batch) {
		return func(e *auditlog.Batch) {
			e.Answered, e.Failed, e.Usage = answered, failed, &auditlog.Usage{TotalTokens: tokens, CostUSD: usd}
		}
	}
	for _, tt := range []struct {
		name   string
		events []*auditlog.Event
		later  time.Duration
		want   Unused
	}{
		{"all are used", []*auditlog.Event{
			phase("t", auditlog.BatchIntent), line("t", 1), line("t", 2), phase("t", auditlog.BatchEnded, ended(2, 0, 5, new(1.0))),
		}, time.Hour, Unused{}},
		{"one went live, and the end is recorded twice", []*auditlog.Event{
			phase("t", auditlog.BatchIntent), line("t", 1), phase("t", auditlog.BatchEnded, ended(2, 0, 5, new(1.25))), line("t", 1),
			phase("t", auditlog.BatchEnded, ended(2, 0, 5, new(1.25))),
		}, time.Hour, Unused{Answers: 1, TotalTokens: 3, KnownCostUSD: 0.75}},
		{"the last calls are not there yet", []*auditlog.Event{
			phase("t", auditlog.BatchIntent), phase("t", auditlog.BatchEnded, ended(2, 0, 5, new(1.25))),
		}, time.Second, Unused{}},
		{"of unknown cost", []*auditlog.Event{
			phase("t", auditlog.BatchIntent), line("t", 1), phase("t", auditlog.BatchCancelled, ended(2, 0, 5, nil)),
		}, time.Hour, Unused{Answers: 1, TotalTokens: 3, UnpricedBatches: 1}},
		{"an error is not billed", []*auditlog.Event{
			phase("t", auditlog.BatchIntent), line("t", 1), phase("t", auditlog.BatchExpired, ended(1, 1, 2, new(0.5))),
		}, time.Hour, Unused{}},
		{"its beginning was not read", []*auditlog.Event{
			line("t", 1), phase("t", auditlog.BatchEnded, ended(2, 0, 5, new(1.25))),
		}, time.Hour, Unused{}},
		{"it was given up, and turned up", []*auditlog.Event{
			phase("t", auditlog.BatchIntent), phase("t", auditlog.BatchAbandoned), phase("t", auditlog.BatchCancelled, ended(1, 0, 4, new(1.0))),
		}, time.Hour, Unused{Answers: 1, TotalTokens: 4, KnownCostUSD: 1}},
	} {
		b := NewBook(nil)
		add(b, tt.events...)
		if got := b.Report(c.at.Add(tt.later)).Unused; got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}

	b := NewBook(nil)
	for i := range batchesKept + 100 {
		token := fmt.Sprint("t", i)
		add(b, phase(token, auditlog.BatchIntent), phase(token, auditlog.BatchEnded, ended(1, 0, 2, new(0.5))))
	}
	if got := b.Report(c.at.Add(time.Hour)).Unused; len(b.batches.open) != batchesKept || got.Answers != batchesKept+100 || math.Abs(got.KnownCostUSD-0.5*(batchesKept+100)) > 1e-6 {
		t.Errorf("%d batches are held, and %+v is known of all", len(b.batches.open), got)
	}
}
