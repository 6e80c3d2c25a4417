package lane

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// A key or a model that the provider refuses for each line is the stage's problem: the rows wait, are in no further batch
// but probes of one row, and are not called live.
func TestALaneWhoseEachLineIsDeniedPauses(t *testing.T) {
	for _, status := range []int{401, 404} {
		withBench(t, func(t *testing.T, b *bench) {
			var why error
			b.paused = func(err error) { why = err }
			fixed := time.Now().Add(3 * time.Hour)
			b.api.answer = func(r *remote, _ uint64) (batchapi.Kind, int) {
				if r.Created.Before(fixed) {
					return batchapi.Answered, status
				}
				return batchapi.Answered, 200
			}
			b.run(100, 24*time.Hour)
			b.check()
			if why == nil || !contains(why.Error(), "each line") {
				t.Errorf("the lane has not paused: %v", why)
			}
			sizes := []int{}
			for _, r := range b.api.batches {
				sizes = append(sizes, len(r.seqs))
			}
			probes := len(sizes) - 2
			if probes < 1 || !slices.Equal(sizes[1:probes+1], slices.Repeat([]int{1}, probes)) || sizes[0] != 100 || sizes[probes+1] != 99 {
				t.Errorf("the batches have %d rows", sizes)
			}
			if len(b.calls) > 0 || len(b.twice) > 0 {
				t.Errorf("%d live calls, rows %v twice", len(b.calls), b.twice)
			}
			if n := slices.IndexFunc(b.events, func(e *auditlog.Batch) bool { return e.Phase == auditlog.BatchAbandoned }); n < 0 {
				t.Error("no batch was given up")
			}
		})
	}
}

// With STAGE_ON_FATAL=fail rows do not wait: they fail as live calls do.
func TestDeniedRowsGoLiveWhereFatalErrorsFailRows(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.failFatal = true
		b.api.answer = func(*remote, uint64) (batchapi.Kind, int) { return batchapi.Answered, 401 }
		b.run(100, 3*time.Hour)
		b.check()
		if len(b.calls) != 100 || len(b.api.batches) != 1 {
			t.Errorf("got %d batches, %d live calls", len(b.api.batches), len(b.calls))
		}
	})
}

// inOrder are the lines of results in the order of the rows.
func (b *bench) inOrder(r *remote) (lines []batchapi.Line) {
	for i := range r.seqs {
		lines = append(lines, b.api.lineOf(r, i))
	}
	return lines
}

func TestWhichFailuresDenyABatch(t *testing.T) {
	wrong := &llm.Error{Class: llm.Permanent, Alike: "unknown parameter"}
	other := &llm.Error{Class: llm.Permanent, Alike: "too long"}
	alone := &llm.Error{Class: llm.Permanent}
	busy := &llm.Error{Class: llm.Capacity}
	key := &llm.Error{Class: llm.Fatal}
	for _, row := range []struct {
		name     string
		failures []*llm.Error
		denied   bool
	}{
		{"all alike", []*llm.Error{wrong, wrong, wrong}, true},
		{"too few", []*llm.Error{wrong, wrong}, false},
		{"two kinds", []*llm.Error{wrong, wrong, wrong, other}, false},
		{"two kinds, the other first", []*llm.Error{other, wrong, wrong, wrong}, false},
		{"one that is its row's own", []*llm.Error{wrong, alone, wrong, wrong}, false},
		{"one without room", []*llm.Error{wrong, wrong, wrong, busy}, false},
		{"one that could not be read", []*llm.Error{wrong, wrong, wrong, nil}, false},
		{"none about settings", []*llm.Error{busy, busy, busy}, false},
		{"the key", []*llm.Error{key}, true},
		{"the key among others", []*llm.Error{wrong, busy, key}, true},
	} {
		var tr trial
		for i, e := range row.failures {
			tr.add(i, &lineRead{failure: e})
		}
		if got := tr.denies(3); got != row.denied {
			t.Errorf("%s: denied %t, want %t", row.name, got, row.denied)
		}
		if row.denied && tr.first != row.failures[len(row.failures)-1] {
			t.Errorf("%s: the lane pauses for %v", row.name, tr.first)
		}
	}
}

// Settings that each row's request fails by are found before a row fails, and cost none however often a batch of one row
// finds them wrong.
func TestSettingsThatEachLineFailsByCostNoRow(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		var why error
		b.paused = func(err error) { why = err }
		fixed := time.Now().Add(4 * time.Hour)
		b.api.answer = func(r *remote, _ uint64) (batchapi.Kind, int) {
			if r.Created.Before(fixed) {
				return batchapi.Answered, 400
			}
			return batchapi.Answered, 200
		}
		b.run(100, 12*time.Hour)
		b.check()
		for seq := uint64(1); seq <= 100; seq++ {
			if !strings.HasPrefix(b.kept[seq], "200 ") {
				t.Fatalf("row %d: %q", seq, b.kept[seq])
			}
		}
		if n := len(b.api.batches); why == nil || n < 4 {
			t.Errorf("the lane has not paused: %v, or no two probes of its %d batches failed", why, n)
		}
	})
}

// Once the provider has answered a row, it takes more rows that fail alike to doubt the settings.
func TestALaneWithRepliesTakesFewFailuresForTheirRowsOwn(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.paused = func(err error) { t.Errorf("paused: %v", err) }
		b.settings.Rows = 20
		b.api.answer = func(_ *remote, seq uint64) (batchapi.Kind, int) {
			if seq > 20 {
				return batchapi.Answered, 400
			}
			return batchapi.Answered, 200
		}
		b.rows = 20
		b.open()
		b.await(3 * time.Hour)
		b.add(20)
		b.finish(3 * time.Hour)
		if b.kept[40] != "400 answer 40" || len(b.api.batches) != 2 || len(b.calls) > 0 {
			t.Errorf("row 40 %q, %d batches, %d live calls", b.kept[40], len(b.api.batches), len(b.calls))
		}
	})
}

// A stage that only collects has no lane to pause: the rows of a denied batch go live, where the settings of today count.
func TestDeniedRowsGoLiveWhereBatchesAreOnlyCollected(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.answer = func(*remote, uint64) (batchapi.Kind, int) { return batchapi.Answered, 401 }
		b.paused = func(err error) { t.Errorf("paused: %v", err) }
		b.rows = 100
		b.open()
		b.until(2*time.Minute, "a batch at the provider", func() bool { return b.api.created() == 1 })
		b.kill()
		b.collect = true
		b.open()
		b.finish(3 * time.Hour)
		if len(b.calls) != 100 || len(b.api.batches) != 1 {
			t.Errorf("%d live calls, %d batches", len(b.calls), len(b.api.batches))
		}
	})
}

// A row that goes live while its failed line is held does not take that line.
func TestARowThatWentLiveTakesNoHeldLine(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		late := time.Now().Add(62*time.Minute + 10*time.Second) // a batch that runs for an hour has ended half a minute ago
		b.deadline = func(seq uint64) time.Time {
			if seq == 1 {
				return late
			}
			return time.Time{}
		}
		b.liveTime = 20 * time.Minute
		b.api.answer = func(_ *remote, seq uint64) (batchapi.Kind, int) {
			if seq < 4 {
				return batchapi.Answered, 400
			}
			return batchapi.Answered, 200
		}
		// The lines of rows 1 to 3 come, the deadline of row 1 passes, and then a reply comes.
		b.api.cut = func(_, line int) error {
			if line == 3 {
				time.Sleep(90 * time.Second)
			}
			return nil
		}
		b.api.lines = b.inOrder
		b.run(10, 4*time.Hour)
		b.check()
		if b.kept[1] != "live" || len(b.twice) > 0 {
			t.Errorf("row 1 %q, rows %v twice", b.kept[1], b.twice)
		}
	})
}

// Lines that were neither held nor taken are read once more, even where the results have lines of rows that have not
// come in this term: these may wait for the rows of the lines that were left.
func TestLinesThatWereNotHeldAreReadOnceMore(t *testing.T) {
	withBench(t, func(_ *testing.T, b *bench) {
		b.api.answer = func(_ *remote, seq uint64) (batchapi.Kind, int) {
			if seq <= trialLines+5 {
				return batchapi.Answered, 400
			}
			return batchapi.Answered, 200
		}
		b.api.lines = b.inOrder
		b.rows = 100
		b.open()
		b.until(2*time.Minute, "a batch at the provider", func() bool { return b.api.created() == 1 })
		b.kill()
		b.notTaken = 90
		b.open()
		b.until(3*time.Hour, "the rows that came to be kept", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.kept) == 90
		})
		b.close()
	})
}

// Failed lines are their rows' own matter where few fail alike, where not all do, and where one reply shows that key,
// model and settings are right: the rows fail, and nothing waits.
func TestFailedLinesAreTheirRowsOwn(t *testing.T) {
	all := func(uint64) int { return 400 }
	allBut1 := func(seq uint64) int {
		if seq == 1 {
			return 200
		}
		return 400
	}
	for name, tt := range map[string]struct {
		rows   int
		status func(seq uint64) int
		lines  func(b *bench, r *remote) []batchapi.Line // of the results
	}{
		"few":            {alikeFirst - 1, all, (*bench).inOrder},
		"behind a reply": {1 + alikeLater, allBut1, (*bench).inOrder},
		"before a reply, more than are held": {80, allBut1, func(b *bench, r *remote) []batchapi.Line {
			lines := b.inOrder(r)
			return append(lines[1:], lines[0])
		}},
		"of two kinds, more than are held, the rest alike": {trialLines + alikeFirst, func(seq uint64) int {
			if seq > trialLines || seq%2 == 0 {
				return 400
			}
			return 422
		}, (*bench).inOrder},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.paused = func(err error) { t.Errorf("paused: %v", err) }
			b.api.answer = func(_ *remote, seq uint64) (batchapi.Kind, int) { return batchapi.Answered, tt.status(seq) }
			b.api.lines = func(r *remote) []batchapi.Line { return tt.lines(b, r) }
			b.run(tt.rows, 4*time.Hour)
			b.check()
			if len(b.api.batches) != 1 || len(b.calls) > 0 || len(b.twice) > 0 {
				t.Errorf("%d batches, %d live calls, rows %v twice", len(b.api.batches), len(b.calls), b.twice)
			}
			if b.kept[2] != "400 answer 2" {
				t.Errorf("row 2 %q", b.kept[2])
			}
		})
	}
}
