package job

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
)

// progress shows the progress of a job: a bar on a terminal, nothing elsewhere.
type progress struct {
	*terminal.Bar
	stage  *stage.Stage
	stderr io.Writer
	done   atomic.Int64
	total  atomic.Int64
	began  time.Time
	// ended is set once all results are written. The stage stops then, but the bar must
	// not say so: nobody has stopped the job.
	ended atomic.Bool
}

// newProgress shows progress on w. A total of 0 means that it is unknown. The caller must
// finish it.
func newProgress(ctx context.Context, w io.Writer, s *stage.Stage, total int64) *progress {
	p := &progress{stage: s, stderr: w, began: time.Now()}
	p.total.Store(total)
	p.Bar = terminal.NewBar(ctx, w, total, 0, p.line)
	return p
}

// setTotal sets how many rows there are, once that is known.
func (p *progress) setTotal(total int64) {
	p.total.Store(total)
	p.SetTotal(total)
}

// count counts a finished row. first has the rows that failed for its reason if this is
// the first of them, and is printed above the bar; otherwise it is nil.
func (p *progress) count(failed bool, first *failedRows) {
	p.Set(p.done.Add(1))
	if failed {
		p.AddFailed()
	}
	if first != nil && p.Visible() {
		terminal.PrintLine(p.Writer(p.stderr), "row %d failed: %s: %s", first.number, first.reason,
			first.text)
	}
}

// left returns how many rows have no result written yet, or -1 if that is unknown.
func (p *progress) left() int64 {
	if total := p.total.Load(); total > 0 {
		return total - p.done.Load()
	}
	return -1
}

// line returns the text beside the bar.
func (p *progress) line(done int64, short bool) terminal.Beside {
	r := p.stage.Status()
	if p.ended.Load() {
		r.Stop = nil
	}
	return progressLine(&r, done, p.total.Load(), time.Since(p.began), short)
}

// progressLine returns the parts of a job's line of progress, the most important first:
// how fast it is and when it will be done, or why it waits.
//
//	312.4 rows/s  ETA 3m10s  16 in flight  delay 50 ms  4 retries  25177 tokens  $0.0120
//
// The rate counts this run alone, since the results of earlier runs are written at once:
// 900 old results in the first second would be 900 rows/s.
func progressLine(
	r *status.Report, done, total int64, elapsed time.Duration, short bool,
) (b terminal.Beside) {
	if r.Stop != nil {
		return terminal.Beside{First: []string{stopProgress(r)}}
	}
	speed := float64(r.Rows.Succeeded+r.Rows.Failed) / max(elapsed.Seconds(), 1e-3)
	rate := fmt.Sprintf("%.1f rows/s", speed)
	if short {
		rate = fmt.Sprintf("%.1f/s", speed)
	}

	until := r.Pool.LawPausedUntil
	switch left := total - done; {
	case r.Pool.Paused != "":
		b.First = []string{pauseProgress(r), rate}
	case until != nil:
		b.First = []string{rate, "provider asked to wait " + terminal.Duration(until.Sub(r.Time))}
	case total > 0 && left > 0 && speed > 0:
		b.First = []string{
			rate,
			"ETA " + etaText(time.Duration(float64(left)/speed*float64(time.Second))),
		}
	default:
		b.First = []string{rate}
	}

	// A narrow terminal has no room for all of these, and the last ones are cut off
	// first.
	b.More = append(b.More,
		fmt.Sprintf("%d in flight", r.Pool.InFlight),
		fmt.Sprintf("delay %.0f ms", r.Pool.DelayMS),
		fmt.Sprintf("%d retries", r.Pool.CapacityRetries),
	)
	if t := r.Usage.TotalTokens; t != nil {
		b.More = append(b.More, fmt.Sprintf("%d tokens", *t))
	}
	switch u := r.Usage; {
	case u.CostUSD != nil && u.UnpricedCalls == 0:
		b.More = append(b.More, fmt.Sprintf("$%.4f", *u.CostUSD))
	case u.KnownCostUSD > 0:
		b.More = append(b.More, fmt.Sprintf("at least $%.4f", u.KnownCostUSD))
	}
	return b
}

// etaText is a duration in two units at most: 42s, 3m10s, 1h42m.
func etaText(d time.Duration) string {
	if d < time.Hour {
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// pauseProgress describes a pause: its reason, and when the next probe is.
func pauseProgress(r *status.Report) string {
	return fmt.Sprintf("PAUSED: %s, %s", r.Pool.PauseReason, r.Pool.NextProbeText(r.Time))
}
