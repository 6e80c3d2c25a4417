package lane

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

func TestNoMoreBatchesAreOpenThanAllowed(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.settings.Open = 3
		most := 0
		b.api.onCreate = func(int, batchapi.Job) error {
			n := 1
			for _, r := range b.api.batches {
				if b.api.progress(r); r.State == batchapi.Running {
					n++
				}
			}
			most = max(most, n)
			return nil
		}
		b.run(1050, 24*time.Hour)
		b.check()
		if most != 3 || len(b.api.batches) != 11 || len(b.calls) > 0 {
			t.Errorf("up to %d batches were open, of %d; %d live calls", most, len(b.api.batches), len(b.calls))
		}
	})
}

func TestABatchHasOneModel(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.settings.Open = 2
		b.model = func(seq uint64) string { return "model-" + strconv.FormatUint(seq%5, 10) }
		b.run(500, 24*time.Hour)
		b.check()
		for _, r := range b.api.batches {
			for _, seq := range r.seqs {
				if seq%5 != r.seqs[0]%5 {
					t.Fatalf("batch %s has rows %d and %d", r.ID, r.seqs[0], seq)
				}
			}
		}
		if len(b.api.batches) > 8 {
			t.Errorf("%d batches for 5 models of 100 rows", len(b.api.batches))
		}
	})
}

func TestABatchGoesByRowsBytesAndWait(t *testing.T) {
	for name, c := range map[string]struct {
		rows, n int
		bytes   int64
		batches []int
		by      time.Duration
	}{
		"rows":  {rows: 50, n: 100, bytes: 1 << 20, batches: []int{50, 50}, by: 10 * time.Second},
		"bytes": {rows: 1000, n: 100, bytes: 1000, batches: []int{33, 33, 33}, by: 10 * time.Second}, // some 30 B a line
		"wait":  {rows: 1000, n: 100, bytes: 1 << 20, batches: []int{100}, by: 70 * time.Second},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.settings.Rows, b.settings.Bytes = c.rows, config.Size(c.bytes)
			b.rows = uint64(c.n)
			b.open()
			time.Sleep(c.by)
			b.api.mu.Lock()
			for i, r := range b.api.batches {
				if i < len(c.batches) && (len(r.seqs) > c.batches[i] || len(r.seqs) < c.batches[i]*8/10) {
					t.Errorf("batch %d has %d rows, want %d", i, len(r.seqs), c.batches[i])
				}
			}
			if len(b.api.batches) < min(2, len(c.batches)) {
				t.Errorf("%d batches by %v", len(b.api.batches), c.by)
			}
			b.api.mu.Unlock()
			b.finish(4 * time.Hour)
		})
	}
}

func TestALateRowGoesLiveAndItsAnswerIsDropped(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		start := time.Now()
		b.deadline = func(seq uint64) time.Time {
			if seq%10 == 0 {
				return start.Add(30 * time.Minute)
			}
			return time.Time{}
		}
		var at time.Time
		b.rows = 100
		b.open()
		b.until(time.Hour, "the live calls", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.calls) == 10 {
				at = time.Now()
			}
			return len(b.calls) == 10
		})
		if late := at.Sub(start.Add(30 * time.Minute)); late > 5*time.Second {
			t.Errorf("live %v after the deadline", late)
		}
		b.settle(2 * time.Hour)
		b.check()
		if e := b.ended()[0]; e.Dropped != 10 || e.Answered != 100 || b.settled[e.Token] < .999 {
			t.Errorf("got %+v, settled %v", e, b.settled)
		}
		if len(b.unused) != 10 || b.unused[10] != 1 || b.unused[100] != 1 {
			t.Errorf("recorded as unused: %v", b.unused)
		}
	})
}

func TestDeadlinesOutliveACrash(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		start := time.Now()
		b.deadline = func(uint64) time.Time { return start.Add(30 * time.Minute) }
		b.rows = 100
		b.dieAt("submitted recorded")
		b.deadline = nil
		b.open()
		b.settle(31 * time.Minute)
		if len(b.calls) != 100 || len(b.api.cancels) != 1 {
			t.Errorf("%d live calls, cancelled %v", len(b.calls), b.api.cancels)
		}
		// Nothing was wanted of the batch any more.
		if e := b.ended()[0]; e.Phase != auditlog.BatchCancelled {
			t.Errorf("got %+v", e)
		}
	})
}

func TestRowsThatGatherOrWaitGoLiveInTime(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.settings.Open, b.settings.Wait = 1, time.Hour
		start := time.Now()
		b.deadline = func(uint64) time.Time { return start.Add(10 * time.Minute) }
		b.run(350, 12*time.Minute)
		if len(b.calls) != 350 {
			t.Errorf("%d live calls", len(b.calls))
		}
	})
}

// The bodies of rows that are recalled are in memory, so there is a bound for them: of those that join a batch, and of
// those that go live, which make room for others once they are kept.
func TestRowsAreRecalledAFewAtATime(t *testing.T) {
	for name, tt := range map[string]struct {
		rows, most int
		late       bool
	}{
		"into a batch": {rows: 4 * recallMost, most: recallMost},
		"live":         {rows: liveMost + recallMost, most: liveMost, late: true},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.settings.Open, b.settings.Rows, b.readTime = 1, 2*recallMost, 2*time.Second
			if tt.late {
				b.deadline = func(uint64) time.Time { return b.created.Add(-time.Second) }
			}
			b.run(tt.rows, 24*time.Hour)
			b.check()
			if b.readMost > tt.most || b.readMost < recallMost/2 {
				t.Errorf("%d bodies were read at a time, want some of %d", b.readMost, tt.most)
			}
		})
	}
}

// Rows that went live while their batch could not be created are not bought again.
func TestABatchThatNobodyWantsIsNotCreated(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		start := time.Now()
		b.deadline = func(uint64) time.Time { return start.Add(10 * time.Minute) }
		b.api.onUpload = func() error {
			if time.Since(start) < 20*time.Minute {
				return apiError(llm.Transient, 500, "no files today")
			}
			return nil
		}
		b.run(100, time.Hour)
		b.check()
		if len(b.calls) != 100 || len(b.api.batches) != 0 {
			t.Errorf("%d live calls, %d batches", len(b.calls), len(b.api.batches))
		}
	})
}

func TestARowThatIsLateOrTooLargeForABatchGoesLive(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"late":      func(b *bench) { b.deadline = func(uint64) time.Time { return b.created.Add(-time.Second) } },
		"too large": func(b *bench) { b.api.limits.Bytes = 25 },
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			change(b)
			b.run(20, time.Minute)
			if len(b.api.batches) > 0 || len(b.calls) != 20 {
				t.Errorf("%d batches, %d live calls", len(b.api.batches), len(b.calls))
			}
		})
	}
}

func TestAStopLeavesBatchesRunningUnlessToldNotTo(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		runVirtual(t, strconv.FormatBool(cancels), func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.cancels = cancels
			b.rows = 250
			b.open()
			time.Sleep(10 * time.Minute)
			began := time.Now()
			b.close()
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("the stop took %v", took)
			}
			want := 0
			if cancels {
				want = 3
			}
			if len(b.api.cancels) != want {
				t.Errorf("cancelled %v", b.api.cancels)
			}
			b.cancels = false
			b.open()
			b.finish(3 * time.Hour)
			if !cancels && len(b.api.batches) != 3 {
				t.Errorf("%d batches", len(b.api.batches))
			}
		})
	}
}

// A stop while a batch is being created waits for its record, so that the next owner need not look for it.
func TestAStopRecordsWhatIsBeingCreated(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 100
		b.open()
		b.onStep(func(s string) {
			if s == "creating" {
				b.lane.Stop()
				go b.lane.Close()
			}
		})
		time.Sleep(time.Minute)
		b.onStep(nil)
		records, err := Records(t.Context(), b.nats.JS, "LANE", "stage", 0)
		if err != nil || len(records) == 0 || records[len(records)-1].Kind != RecordSubmitted {
			t.Fatalf("got %+v, %v", records, err)
		}
		b.open()
		b.finish(2 * time.Hour)
	})
}

// An open batch holds some 17 B a row; recorded ones are taken over at once.
func TestATakeOverOfManyRowsIsCheap(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		const rows = 100_000 // what else the process holds is little of it
		b.settings.Rows, b.api.takes = 50_000, 1000*time.Hour
		b.rows = rows
		b.open()
		b.until(time.Hour, "the batches to run", func() bool { return b.lane.Status().Rows.Submitted == rows })
		b.kill()
		b.lane.Close()
		b.lane = nil
		runtime.GC()
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		b.open()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the term began after %v", took)
		}
		b.until(time.Minute, "the rows", func() bool { return b.lane.Status().Rows.Submitted == rows })
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / rows //nolint:gosec // small
		t.Logf("%d B a row", each)
		if each > 60 { // with what the server in this process holds of the records
			t.Errorf("%d B a row", each)
		}
		b.close()
	})
}
