package consumer_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

const (
	resultAge  = 4 * time.Minute
	resultRows = "results.stage.0.rows"
	dropRecord = "results.stage.dropped.0"
)

// aging is a configuration whose results are dropped at resultAge.
func (b *testbed) aging(order streams.Order, run string, exec consumer.Executor) consumer.Config {
	cfg := b.ordered(order, run, exec)
	cfg.ResultMaxAge = resultAge
	return cfg
}

// proven verifies the streams and returns the report.
func (b *testbed) proven(roots ...verify.Root) *verify.Report {
	b.t.Helper()
	report := stagetest.Value(verify.RunWith(b.t.Context(), b.js, stagetest.Config(b.t), verify.Options{Roots: roots}, io.Discard))(b.t)
	if err := report.Err(); err != nil {
		var text strings.Builder
		report.WriteText(&text)
		b.t.Fatalf("%v\n%s", err, text.String())
	}
	return report
}

// dropped returns what the report says was dropped of the partition.
func dropped(report *verify.Report) (results, row uint64) {
	if d := report.Partitions[0].Dropped; d != nil {
		return d.Results, d.Row
	}
	return 0, 0
}

func (r *replica) awaitEmitted(b *testbed, n uint64) {
	b.t.Helper()
	b.await(fmt.Sprintf("%d results", n), func() bool { return r.Status().Emitted >= n })
}

// eachOrder runs a test in each order of results.
func eachOrder(t *testing.T, f func(b *testbed, order streams.Order)) {
	t.Helper()
	for _, order := range everyOrder {
		runOnTestbed(t, string(order), func(_ *testing.T, b *testbed) { f(b, order) })
	}
}

func TestOldResultsAreDroppedAndTheOthersProven(t *testing.T) {
	eachOrder(t, func(b *testbed, order streams.Order) {
		t := b.t
		b.loadKeys(100, 20)
		exec := unhurried()
		first := b.startWith(b.aging(order, "run1", exec))
		first.awaitEmitted(b, 100)
		if n, _ := dropped(b.proven()); n != 0 {
			t.Errorf("%d young results were dropped", n)
		}
		last := b.read("RESULTS", "results.stage.0.rows")[99].Headers().Get(streams.HeaderSourceSeq)
		time.Sleep(resultAge / 2)
		b.loadKeys(50, 20)
		first.awaitEmitted(b, 150)
		root := *b.proven().Roots[0]
		time.Sleep(resultAge/2 + time.Minute + time.Second)
		if n, row := dropped(b.proven(root)); n != 100 || fmt.Sprint(row) != last || b.results() != 50 {
			t.Errorf("%d results up to row %d were dropped and %d are left, want 100 up to row %s and 50", n, row, b.results(), last)
		}

		first.kill()
		second := b.startWith(b.aging(order, "run2", exec))
		b.loadKeys(30, 20)
		second.awaitEmitted(b, 30)
		b.proven(root)
		time.Sleep(2 * resultAge) // all but the last result, and the root, which is of one of them
		if n, _ := dropped(b.proven()); n < 150 || b.results()+int(n) != 180 || b.stored("RESULTS", dropRecord) != 1 {
			t.Errorf("%d results were dropped, %d are left, with %d records", n, b.results(), b.stored("RESULTS", dropRecord))
		}
		second.stop(t)
		third := b.startWith(b.aging(order, "run3", exec))
		b.loadKeys(20, 20)
		third.awaitEmitted(b, 20)
		third.stop(t)
		b.proven()
		exec.checkOnce(t)
		report := stagetest.Value(verify.RunWith(t.Context(), b.js, stagetest.Config(t), verify.Options{Roots: []verify.Root{root}}, io.Discard))(t)
		if report.Verdict != verify.VerdictCannotTell || len(report.CannotTell) != 1 || !strings.Contains(report.CannotTell[0], "is in the part of the log that is gone") {
			t.Errorf("with a root of a dropped result: %s, %q", report.Verdict, report.CannotTell)
		}
	})
}

// Rows above the low-water mark have results that the next owner must find.
func TestResultsAboveTheLowWaterMarkAreKept(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.loadKeys(300, 20)
		exec := slowRow(200, time.Hour, 50*time.Millisecond)
		first := b.startWith(b.aging(streams.OrderNone, "run1", exec))
		first.awaitEmitted(b, 299)
		time.Sleep(2 * resultAge)
		if n, _ := dropped(b.proven()); n == 0 || n > 199 {
			t.Errorf("%d results were dropped while row 200 is open", n)
		}
		first.kill()
		second := b.startWith(b.aging(streams.OrderNone, "run2", &sleeper{low: time.Second, high: time.Second}))
		second.awaitEmitted(b, 1)
		time.Sleep(3 * time.Second)
		if got := second.Status().Emitted; got != 1 {
			t.Errorf("the next owner has answered %d rows, want row 200 alone", got)
		}
		b.proven()
	})
}

func TestAKillBetweenRecordAndPurge(t *testing.T) {
	eachOrder(t, func(b *testbed, order streams.Order) {
		t := b.t
		b.loadKeys(100, 20)
		for run := range 3 { // a first record, and one behind others
			nc := b.connect()
			killed := make(chan struct{}, 1)
			cfg := consumer.WithHook(b.aging(order, fmt.Sprintf("run%d", run), unhurried()), func(step string) {
				if step == "drop recorded" {
					nc.Close()
					killed <- struct{}{}
				}
			})
			r := b.startOn(nc, cfg)
			if run > 0 {
				b.loadKeys(50, 20)
				r.awaitEmitted(b, 50)
			} else {
				r.awaitEmitted(b, 100)
			}
			left := b.results()
			<-killed
			r.kill()
			if now := b.results(); run == 0 && now != left || b.stored("RESULTS", dropRecord) > 2 {
				t.Errorf("%d of %d results are left, with %d records", now, left, b.stored("RESULTS", dropRecord))
			}
			b.proven()
		}
		last := b.startWith(b.aging(order, "last", unhurried()))
		b.loadKeys(5, 20)
		last.awaitEmitted(b, 5)
		time.Sleep(2 * time.Minute)
		if n := b.stored("RESULTS", dropRecord); n != 1 {
			t.Errorf("%d records are left, want 1", n)
		}
		last.stop(t)
		b.proven()
	})
}

// A purge that the server had done in part when it was killed.
func TestHalfAPurge(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		nc := b.connect()
		killed := make(chan struct{}, 1)
		r := b.startOn(nc, consumer.WithHook(b.aging(streams.OrderStream, "run1", unhurried()), func(step string) {
			if step == "drop recorded" {
				nc.Close()
				killed <- struct{}{}
			}
		}))
		<-killed
		r.kill()
		stagetest.Must(t, streams.PurgeBelow(t.Context(), b.nc, "RESULTS", resultRows, 30))
		report := b.proven()
		if n, row := dropped(report); n != 99 || row != 99 || len(report.Notes) == 0 || !strings.Contains(report.Notes[0], "71 results up to row 99 are still there") {
			t.Errorf("%d results up to row %d, notes %q", n, row, report.Notes)
		}
	})
}

func TestAPurgeThatIsRefusedHoldsNoRow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t, "$JS.API.STREAM.PURGE.RESULTS")
		b.load(100)
		r := b.startWith(b.aging(streams.OrderStream, "run1", unhurried()))
		r.awaitEmitted(b, 100)
		time.Sleep(2 * resultAge)
		s := r.Status()
		if !strings.Contains(s.DropProblem, `Permissions Violation for Publish to "$JS.API.STREAM.PURGE.RESULTS"`) || s.Problem != "" || len(s.Holds) != 0 {
			t.Errorf("problem %q of the results, problem %q, holds %v", s.DropProblem, s.Problem, s.Holds)
		}
		b.loadFrom(100, 50)
		r.awaitEmitted(b, 150)
		if n := b.stored("RESULTS", dropRecord); n != 1 {
			t.Errorf("%d records, want 1", n)
		}
		b.proven()
		r.stop(t)
		b.check(150)
	})
}

// A stream that gives no answer to the dropper does not hold the end of a term up.
func TestADropWithoutAnAnswerHoldsNoStopUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t, "$JS.API.STREAM.PURGE.RESULTS")
		b.load(10)
		recorded := make(chan struct{}, 1)
		r := b.startWith(consumer.WithHook(b.aging(streams.OrderStream, "run1", unhurried()), func(step string) {
			if step == "drop recorded" {
				recorded <- struct{}{}
			}
		}))
		<-recorded
		began := time.Now()
		r.stop(t)
		if took := time.Since(began); took > streams.RequestTimeout/2 {
			t.Errorf("a stop took %v while a purge had no answer", took)
		}
	})
}

// Nothing but the owner may say what was dropped.
func TestABeginningThatIsGoneWithoutARecordIsNotProven(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		r := b.startWith(b.aging(streams.OrderStream, "run1", unhurried()))
		r.awaitEmitted(b, 100)
		time.Sleep(resultAge + 2*time.Minute)
		b.loadFrom(100, 50)
		r.awaitEmitted(b, 150)
		r.stop(t)
		b.proven()
		last := b.read("RESULTS", dropRecord)[0]
		for name, change := range map[string]func(){
			"another chain": func() {
				chain := stagetest.Value(b.js.Publish(t.Context(), dropRecord, []byte(strings.Replace(string(last.Data()), `"chain":"`, `"chain":"00`, 1)[:len(last.Data())])))(t)
				stagetest.Must(t, streams.PurgeBelow(t.Context(), b.nc, "RESULTS", dropRecord, chain.Sequence))
			},
			"none": func() { stagetest.Must(t, streams.Purge(t.Context(), b.nc, "RESULTS", dropRecord)) },
		} {
			change()
			if report := stagetest.Value(verify.Run(t.Context(), b.js, stagetest.Config(t), io.Discard))(t); report.Verdict == verify.VerdictProven {
				t.Errorf("%s: proven", name)
			}
			stagetest.Value(b.js.PublishMsg(t.Context(), &nats.Msg{Subject: dropRecord, Data: last.Data()}))(t)
		}
	})
}
