package logging

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"pgregory.net/rapid"
)

// logLine is a line of a JSON log.
type logLine struct {
	Time    time.Time
	Level   string
	Msg     string
	AndMore int    `json:"and_more"`
	Reason  string `json:"reason"`
	N       int    `json:"n"`

	First, Last time.Time // of those that were gathered
}

func TestAStormIsItsFirstLinesAndACountOfTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out stagetest.Buffer
		log := New(&out, "info", "json").With(slog.String("run_id", "r"))
		for i := range 1000 {
			log.Warn("row failed", slog.String("reason", "truncated"), slog.Int("n", i))
			time.Sleep(25 * time.Millisecond)
		}
		log.Warn("row failed", slog.String("reason", "refused"))
		time.Sleep(time.Minute)
		lines := stagetest.JSONLines[logLine](t, out.String())
		// 25 s of storm: five lines at once, one at the end of each of three intervals, and the one of another reason.
		if len(lines) != sampleBurst+3+1 {
			t.Fatalf("%d lines:\n%s", len(lines), out.String())
		}
		total := 0
		for _, l := range lines {
			if l.Reason == "truncated" {
				total += 1 + l.AndMore
			}
		}
		if total != 1000 {
			t.Errorf("the lines count %d, want 1000:\n%s", total, out.String())
		}
		if last := lines[len(lines)-1]; last.N != 999 || last.AndMore == 0 {
			t.Errorf("the last line is %+v, want the last of the storm with a count", last)
		}
	})
}

// A line that stands for others is written up to an interval after them: it says when they happened.
func TestAGatheredLineSaysWhenTheFirstAndTheLastHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out stagetest.Buffer
		log := New(&out, "info", "json")
		began := time.Now()
		for range sampleBurst + 3 { // one a second: three are gathered
			log.Warn("row failed")
			time.Sleep(time.Second)
		}
		time.Sleep(sampleInterval)
		lines := stagetest.JSONLines[logLine](t, out.String())
		if first := lines[0]; !first.First.IsZero() || !first.Last.IsZero() {
			t.Errorf("a line that was written at once says that it is of %v to %v", first.First, first.Last)
		}
		first, last := began.Add(sampleBurst*time.Second), began.Add((sampleBurst+2)*time.Second)
		if l := lines[len(lines)-1]; l.AndMore != 2 || !l.First.Equal(first) || !l.Last.Equal(last) || !l.Time.Equal(last) {
			t.Errorf("the gathered line is %+v, want the first of %v and the last of %v", l, first, last)
		}
	})
}

func TestLinesOfDifferentKindsAreNotGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out stagetest.Buffer
		log := New(&out, "debug", "json")
		want := 0
		for partition := range 10 {
			of := log.With(slog.Int("partition", partition)).WithGroup("x")
			for _, reason := range []string{"a", "b", "c"} {
				for range sampleBurst {
					of.Warn("row failed", slog.String("reason", reason))
					of.Error("row failed", slog.String("reason", reason))
					want += 2
				}
			}
		}
		for range 100 { // lower levels are never gathered
			log.Info("claimed the partition")
			log.Debug("call", slog.String("reason", "x"))
			want += 2
		}
		if got := len(stagetest.JSONLines[logLine](t, out.String())); got != want {
			t.Errorf("%d lines, want %d", got, want)
		}
	})
}

func TestGatheredLinesAreWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out stagetest.Buffer
		log := New(&out, "info", "json")
		for range 100 {
			log.Warn("bad row")
		}
		Flush(log.With(slog.String("run_id", "r"))) // loggers made of one share what is gathered
		lines := stagetest.JSONLines[logLine](t, out.String())
		if len(lines) != sampleBurst+1 || lines[sampleBurst].AndMore != 100-sampleBurst-1 {
			t.Errorf("got\n%s", out.String())
		}
		Flush(log)
		time.Sleep(time.Minute)
		if again := len(stagetest.JSONLines[logLine](t, out.String())); again != len(lines) {
			t.Errorf("%d lines after a second flush, want %d", again, len(lines))
		}
	})
}

func (k *sampleKinds) remembered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byKey)
}

// The kinds of lines are bounded, whatever the lines contain, and the counts stay right.
func TestTheKindsOfLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out stagetest.Buffer
		log := New(&out, "info", "json")
		const n = 10 * sampleKindsMax
		for i := range n {
			log.Warn("blocked", slog.String("reason", fmt.Sprint(i)))
		}
		kinds := log.Handler().(*sampler).kinds
		if n := kinds.remembered(); n > sampleKindsMax+1 {
			t.Errorf("%d kinds, want at most %d", n, sampleKindsMax+1)
		}
		time.Sleep(2 * time.Minute)
		total := 0
		for _, l := range stagetest.JSONLines[logLine](t, out.String()) {
			total += 1 + l.AndMore
		}
		if left := kinds.remembered(); total != n || left != 0 {
			t.Errorf("the lines count %d, want %d; %d kinds are remembered, want none", total, n, left)
		}
	})
}

// Texts differ each time (an address, a number): they do not make a line another kind.
func TestTextsMakeNoKindOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out stagetest.Buffer
		log := New(&out, "info", "json")
		for i := range 50 {
			text := fmt.Sprintf("write tcp 127.0.0.1:%d: broken pipe, and a long story of what was tried before", i)
			log.Warn("blocked", slog.String("reason", text), slog.Any("error", errors.New(text)))
		}
		Flush(log)
		if got := len(stagetest.JSONLines[logLine](t, out.String())); got != sampleBurst+1 {
			t.Errorf("%d lines, want %d", got, sampleBurst+1)
		}
	})
}

// slowWriter takes a second for each line.
type slowWriter struct{ stagetest.Buffer }

func (w *slowWriter) Write(line []byte) (int, error) {
	time.Sleep(time.Second)
	return w.Buffer.Write(line)
}

func TestFlushWaitsForALineThatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out slowWriter
		log := New(&out, "info", "json")
		for range sampleBurst + 2 {
			log.Warn("row failed")
		}
		time.Sleep(sampleInterval - sampleBurst*time.Second + time.Second/2) // the interval has ended, its line is half written
		Flush(log)
		lines := stagetest.JSONLines[logLine](t, out.String())
		if len(lines) != sampleBurst+1 || lines[sampleBurst].AndMore != 1 {
			t.Errorf("got %+v, want %d lines, the last with one more", lines, sampleBurst+1)
		}
	})
}

func TestNoLineIsLostFromTheCounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		gaps := rapid.SliceOfN(rapid.IntRange(0, 4000), 1, 200).Draw(rt, "gaps in milliseconds")
		kinds := rapid.IntRange(1, 4).Draw(rt, "kinds")
		synctest.Test(t, func(t *testing.T) {
			var out stagetest.Buffer
			log := New(&out, "info", "json")
			sent := make(map[string]int)
			for i, gap := range gaps {
				reason := fmt.Sprint(i % kinds)
				log.Warn("row failed", slog.String("reason", reason))
				sent[reason]++
				time.Sleep(time.Duration(gap) * time.Millisecond)
			}
			Flush(log)
			counted := make(map[string]int)
			for _, l := range stagetest.JSONLines[logLine](t, out.String()) {
				counted[l.Reason] += 1 + l.AndMore
			}
			for reason, n := range sent {
				if counted[reason] != n {
					t.Errorf("reason %s: the lines count %d of %d", reason, counted[reason], n)
				}
			}
		})
	})
}
