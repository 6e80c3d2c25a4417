package lane

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// ended returns the events of batches that are over.
func (b *bench) ended() (events []*auditlog.Batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if e.Phase == auditlog.BatchEnded || e.Phase == auditlog.BatchExpired || e.Phase == auditlog.BatchCancelled {
			events = append(events, e)
		}
	}
	return events
}

// run has n rows answered, and ends the term.
func (b *bench) run(n int, most time.Duration) {
	b.t.Helper()
	b.rows = uint64(n)
	b.open()
	b.settle(most)
}

// settle waits until all rows are kept and the lane is empty, and ends the term.
func (b *bench) settle(most time.Duration) {
	b.t.Helper()
	b.await(most)
	b.until(time.Hour, "an empty lane", func() bool { return len(b.lane.Status().Batches) == 0 })
	b.close()
}

func TestStrayLinesAreCountedAndAnswerNothing(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.lines = func(r *remote) (lines []batchapi.Line) {
			for i := range r.seqs {
				line := b.api.lineOf(r, i)
				lines = append(lines, line, batchapi.Line{Kind: batchapi.Garbled, Body: []byte("{")})
				line.Body = []byte("the second one")
				lines = append(lines, line)
			}
			token := r.Token
			for _, id := range []string{token + "-999", token + "-01", token + "-+1", token + "-", token, "other-1", "", token + "-1x"} {
				lines = append(lines, batchapi.Line{ID: id, Kind: batchapi.Answered, Status: 200, Body: []byte("stray")})
			}
			return lines
		}
		b.run(100, 2*time.Hour)
		b.check()
		for seq := uint64(1); seq <= 100; seq++ {
			if got, want := b.kept[seq], fmt.Sprintf("200 answer %d", seq); got != want {
				t.Fatalf("row %d: got %q, want %q", seq, got, want)
			}
		}
		e := b.ended()[0]
		if e.Answered != 100 || e.Foreign != 208 || e.Missing != 0 || e.Usage.PromptTokens != 1000 {
			t.Errorf("got %+v with %+v", e, e.Usage)
		}
		if got := b.settled[e.Token]; got < .999 || got > 1.001 {
			t.Errorf("settled %v USD, want 1", got)
		}
	})
}

func TestMissingLinesGoAgainAfterASecondReading(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.lines = func(r *remote) (lines []batchapi.Line) {
			for i := range r.seqs {
				if r.ID == "batch-0" && i%2 == 0 || r.ID == "batch-1" && i == 0 {
					continue
				}
				lines = append(lines, b.api.lineOf(r, i))
			}
			return lines
		}
		b.reply = func(uint64, *Errand) bool { return true }
		b.run(100, 4*time.Hour)
		b.check()
		// Half go into the next batch, and the one of these that is missing again goes live.
		if len(b.api.batches) != 2 || len(b.calls) != 1 || b.calls[1] != 1 {
			t.Errorf("got %d batches and live calls %v", len(b.api.batches), b.calls)
		}
		if e := b.ended(); e[0].Missing != 50 || e[0].Answered != 50 || e[1].Missing != 1 || b.api.passes != 4 {
			t.Errorf("got %+v, %+v after %d readings", e[0], e[1], b.api.passes)
		}
	})
}

func TestACutStreamIsReadAgain(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.cut = func(pass, line int) error {
			if line == 10*pass && pass < 5 {
				return &llm.Error{Class: llm.Transient, Status: 502, Err: errors.New("cut")}
			}
			return nil
		}
		b.run(100, 2*time.Hour)
		b.check()
		if len(b.twice) > 0 || b.api.passes != 5 {
			t.Errorf("rows %v are answered twice, %d readings", b.twice, b.api.passes)
		}
		if e := b.ended()[0]; e.Answered != 100 || e.Foreign != 0 {
			t.Errorf("got %+v", e)
		}
	})
}

func TestAStalledStreamIsCut(t *testing.T) {
	withBench(t, func(_ *testing.T, b *bench) {
		b.api.cut = func(pass, line int) error {
			if pass == 1 && line == 50 {
				time.Sleep(time.Hour)
			}
			return nil
		}
		b.run(100, 4*time.Hour)
		b.check()
	})
}

func TestLapsedRowsGoIntoTheNextBatch(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.onGet = func(r *remote) error {
			if r.State == batchapi.Ended && r.ID == "batch-0" {
				r.State = batchapi.Expired
			}
			return nil
		}
		b.api.answer = func(r *remote, seq uint64) (batchapi.Kind, int) {
			if r.ID == "batch-0" && seq%5 == 0 {
				return batchapi.Lapsed, 0
			}
			return batchapi.Answered, 200
		}
		b.run(100, 4*time.Hour)
		b.check()
		if len(b.api.batches) != 2 || len(b.calls) > 0 {
			t.Errorf("got %d batches and live calls %v", len(b.api.batches), b.calls)
		}
		if e := b.ended()[0]; e.Phase != auditlog.BatchExpired || e.Lapsed != 20 || e.Answered != 80 {
			t.Errorf("got %+v", e)
		}
		for seq, n := range b.api.billed {
			if n > 1 {
				t.Errorf("row %d is billed %d times", seq, n)
			}
		}
	})
}

func TestRefusedLinesGoAgainAndBadOnesFail(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.answer = func(_ *remote, seq uint64) (batchapi.Kind, int) {
			switch {
			case seq == 7:
				return batchapi.Answered, 400
			case seq%4 == 0 && seq <= 80:
				return batchapi.Answered, []int{429, 500}[seq/4%2]
			}
			return batchapi.Answered, 200
		}
		b.run(100, 5*time.Hour)
		b.check()
		// 20 rows go into a second and a third batch, where they fail again; then they go live.
		if len(b.api.batches) != 3 || len(b.calls) != 20 || b.kept[7] != "400 answer 7" {
			t.Errorf("got %d batches, %d live calls, row 7 %q", len(b.api.batches), len(b.calls), b.kept[7])
		}
		if e := b.ended()[0]; e.Failed != 21 || e.Answered != 79 {
			t.Errorf("got %+v", e)
		}
	})
}

func TestFewUnansweredRowsGoLive(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.answer = func(_ *remote, seq uint64) (batchapi.Kind, int) {
			if seq <= 10 {
				return batchapi.Lapsed, 0
			}
			return batchapi.Answered, 200
		}
		b.run(100, 2*time.Hour)
		b.check()
		if len(b.api.batches) != 1 || len(b.calls) != 10 {
			t.Errorf("got %d batches, %d live calls", len(b.api.batches), len(b.calls))
		}
	})
}

// Answers wait where the executor is slow: no more than some are on their way.
func TestAnswersOnTheirWayAreBounded(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.settings.Rows, b.late = 2000, time.Second
		most := 0
		b.onStep(func(s string) {
			if s == "line" {
				most = max(most, b.lane.Status().Rows.Answered)
			}
		})
		b.run(2000, 3*time.Hour)
		b.check()
		if most > linesMost || most < linesMost/2 {
			t.Errorf("up to %d answers were on their way", most)
		}
	})
}

// After a crash rows come again one by one; an answer for one that has not come can't be taken.
func TestAnswersWaitForRowsThatHaveNotCome(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 100
		b.dieAt("submitted recorded")
		b.notTaken = 40
		time.Sleep(2 * time.Hour)
		b.open()
		b.until(time.Hour, "the rows that have come", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.kept) == 40
		})
		time.Sleep(time.Hour)
		if b.api.passes > 3 {
			t.Errorf("the results were read %d times", b.api.passes)
		}
		for seq := uint64(41); seq <= 100; seq++ {
			b.take(b.lane, b.proc, seq)
		}
		b.finish(time.Hour)
		if len(b.api.batches) != 1 || len(b.calls) > 0 || len(b.twice) > 0 {
			t.Errorf("got %d batches, %d live calls, rows %v twice", len(b.api.batches), len(b.calls), b.twice)
		}
	})
}

func TestABatchThatSeemedOursIsLeftAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := newBench(t, inlineProvider())
		b.rows = 100
		// Somebody else's batch of as many rows, created at the same time.
		other := &remote{Batch: batchapi.Batch{ID: "other", State: batchapi.Running, Created: time.Now(), Rows: 100}, ends: time.Now().Add(30 * time.Minute)}
		for seq := range uint64(100) {
			other.seqs, other.ids = append(other.seqs, seq+1), append(other.ids, fmt.Sprintf("else-%d", seq+1))
		}
		b.api.batches = append(b.api.batches, other)
		b.dieAt("created")
		b.open()
		b.await(6 * time.Hour)
		b.close()
		if len(b.api.batches) != 2 || slices.Contains(b.api.deleted, "other") || slices.Contains(b.api.cancels, "other") {
			t.Errorf("got %d batches, deleted %v, cancelled %v", len(b.api.batches), b.api.deleted, b.api.cancels)
		}
		if len(b.calls) > 0 {
			t.Errorf("%d live calls", len(b.calls))
		}
	})
}
