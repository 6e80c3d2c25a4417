//go:build long

package stage

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// Everything that a provider may do to a batch, with a stop, a start and a kill in between.
func TestRowsOfNastyBatchesComeOutOnceAndInOrder(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows = 400
		l := newBatchesLab(t, batches.Config{
			Delay: time.Hour, Expire: .2, ExpireAfter: time.Hour, Fail: map[int]float64{429: .02, 500: .02, 400: .02}, Missing: .01, Doubled: .02, Foreign: .02, Torn: .01,
			ListLag: 5 * time.Second, Hidden: 3 * time.Second, BadGateway: .2, CutContent: .1,
		}, nil)
		l.load(questions(rows)...)
		first := l.start(nil, Options{})
		time.Sleep(20 * time.Minute)
		first.stop()
		second := l.start(nil, Options{})
		time.Sleep(45 * time.Minute)
		second.soft()
		second.hard()
		for range second.done {
		}
		third := l.start(nil, Options{})
		l.awaitHours(rows)
		time.Sleep(3 * time.Hour)
		third.stop()
		for i, r := range l.results() {
			if r.Q != fmt.Sprint("question ", i) {
				t.Fatalf("row %d: %+v", i, r)
			}
		}
		l.proven()
	})
}

// A reply whose row went live before it came was billed like any other: it counts once in the run's summary, its metrics,
// stage usage, the ceiling and verify, also where a process was killed between the live call and the reply.
func TestRepliesThatComeTooLateCountLikeAnyOther(t *testing.T) {
	for _, killed := range []bool{false, true} {
		stagetest.Virtual(t, func(t *testing.T) {
			const rows, late = 40, 12
			l := newBatchesLab(t, batches.Config{Delay: time.Hour}, map[string]string{"STAGE_MAX_COST_USD": "100", "STAGE_ORDER": "none"})
			for i := range rows {
				m := &nats.Msg{Data: fmt.Appendf(nil, `{"q":"question %d"}`, i), Header: nats.Header{}}
				if i < late {
					m.Header.Set("Stage-Deadline", "20m")
				}
				l.publish(m)
			}
			r := l.start(nil, Options{})
			if killed {
				time.Sleep(40 * time.Minute) // the late rows were called live, and have their results
				r.soft()
				r.hard()
				for range r.done {
				}
				r = l.start(nil, Options{})
			}
			l.awaitHours(rows)
			time.Sleep(10 * time.Minute) // the batch is done with
			r.stop()
			report := l.proven()
			served := l.llms["first.test"].Stats()
			billed := served.Batches.Prompt + served.Batches.Completion
			live := int64(0)
			for _, e := range l.events(auditlog.KindCall) {
				if c := e.Call; c.Lane == "" {
					live += c.Usage.TotalTokens
				}
			}
			if served.Batches.Answered != rows || live == 0 {
				t.Fatalf("%d rows were answered by the batch, and live calls have %d tokens", served.Batches.Answered, live)
			}
			if got := *report.Audit.Tokens; got != billed+live {
				t.Errorf("killed %v: verify has %d tokens, billed were %d", killed, got, billed+live)
			}
			if b := report.Batches; b.Calls != rows || b.Dropped != late || b.Unused != 0 {
				t.Errorf("killed %v: verify has %+v", killed, b)
			}
			book := usage.NewBook(nil)
			if err := usage.NewReader(l.config(nil), book, usage.Options{Stages: []string{"stage"}}).Read(t.Context(), l.js); err != nil {
				t.Fatal(err)
			}
			if u := book.Report(time.Now().Add(time.Hour)); *u.Total.TotalTokens != billed+live || u.Unused.Answers != 0 {
				t.Errorf("killed %v: usage has %+v and %+v", killed, u.Total, u.Unused)
			}
			if got, want := r.ledger.Spent(), *report.Audit.CostUSD; math.Abs(got-want) > 1e-9 {
				t.Errorf("killed %v: the ceiling counts %v USD, verify %v", killed, got, want)
			}
			counted := billed // of this process
			if !killed {
				counted += live
			}
			if got := r.Usage.All().Usage.TotalTokens; got != counted {
				t.Errorf("killed %v: the run counts %d tokens, want %d", killed, got, counted)
			}
		})
	}
}

func TestTheCeilingHoldsBatchesBack(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		// A row is estimated at 1,024 tokens of 4 USD a million: 50 come to about 0.2 USD.
		l := newBatchesLab(t, batches.Config{}, map[string]string{"STAGE_MAX_COST_USD": "0.25"})
		l.load(questions(150)...)
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Minute)
		submitted := 0
		for _, e := range l.events(auditlog.KindBatch) {
			if e.Batch.Phase == auditlog.BatchSubmitted {
				submitted++
			}
		}
		if submitted != 1 {
			t.Errorf("%d batches were submitted, want 1: the others do not fit below the ceiling", submitted)
		}
		l.awaitHours(150) // an answer costs far less than its estimate
		r.stop()
		if spent := r.ledger.Spent(); spent > .25 || r.ledger.Reserved() != 0 {
			t.Errorf("spent %v, reserved %v", spent, r.ledger.Reserved())
		}
		again := l.start(nil, Options{})
		time.Sleep(time.Minute)
		if got, want := again.ledger.Spent(), r.ledger.Spent(); math.Abs(got-want) > 1e-9 {
			t.Errorf("the next process counts %v, want %v", got, want)
		}
		again.stop()
	})
}

// A provider that accepts batches and refuses each of their lines ends a job as it would by live calls, and costs nothing.
func TestAJobEndsWhereEachLineOfItsBatchIsRefused(t *testing.T) {
	for _, status := range []int{401, 404} {
		stagetest.Virtual(t, func(t *testing.T) {
			l := newBatchesLab(t, batches.Config{Fail: map[int]float64{status: 1}}, nil)
			l.load(questions(50)...)
			for range 2 { // the next start tries again, with a batch of its own
				r := l.start(nil, Options{ExitOnFatal: true})
				select {
				case err := <-r.done:
					if _, ok := errors.AsType[*FatalError](err); !ok || !strings.Contains(err.Error(), "refused each line") {
						t.Errorf("%d: it ended with %v", status, err)
					}
				case <-time.After(10 * time.Hour):
					t.Errorf("%d: it did not end", status)
					r.stop()
				}
			}
			served := l.llms["first.test"].Stats()
			if served.Received > 0 || served.Batches.Created != 2 || stagetest.Stored(t, l.js, "RESULTS", "results.stage.0.rows") > 0 {
				t.Errorf("%d: %d live calls and %d batches", status, served.Received, served.Batches.Created)
			}
			l.proven()
		})
	}
}
