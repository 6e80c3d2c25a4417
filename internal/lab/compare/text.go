package compare

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
)

const (
	// lineEvery is the time between two lines of progress where there is no terminal.
	lineEvery = 5 * time.Second
	// recently is the time over which the rates of the bars are.
	recently = 2 * time.Second
	barWidth = 40
	// jobRows is the size of the job whose time is estimated.
	jobRows = 100_000
)

// progress prints how far the ways have come.
type progress struct {
	c      Config
	report *Report
	drawn  bool          // there are bars on the terminal, to be drawn over
	next   time.Duration // of the next line
}

// show prints the newest sample.
func (p *progress) show() {
	r := p.report
	now := r.Samples[len(r.Samples)-1]
	if !p.c.Screen {
		if now.At >= max(p.next, lineEvery) {
			p.next = now.At.Truncate(lineEvery) + lineEvery
			p.line(now)
		}
		return
	}
	var b strings.Builder
	if p.drawn {
		fmt.Fprintf(&b, "\x1b[%dA", ways+1)
	}
	p.drawn = true
	fmt.Fprintf(&b, "\x1b[2Kthe LLM admits %.0f calls/s now; %.0f s of %.0f s\n", r.rate(now.At), now.At.Seconds(), p.c.For.Seconds())
	most := max(now.Answered[optimum], 1)
	for way, name := range names {
		full := int(min(now.Answered[way], most) * barWidth / most)
		fmt.Fprintf(&b, "\x1b[2K%-18s  %s%s %6d rows  %5.1f/s\n", name,
			strings.Repeat("█", full), strings.Repeat("░", barWidth-full), now.Answered[way], r.recentRate(way))
	}
	_, _ = io.WriteString(p.c.Out, b.String()) // the table at the end fails, too
}

// line prints the sample as a line.
func (p *progress) line(now Sample) {
	var cells []string
	for way, name := range names {
		cells = append(cells, fmt.Sprintf("%s %d", name, now.Answered[way]))
	}
	terminal.PrintLine(p.c.Out, "%3.0f s  the LLM admits %.0f/s; rows: %s", now.At.Seconds(), p.report.rate(now.At), strings.Join(cells, ", "))
}

// recentRate is how many rows a second a way has answered of late.
func (r *Report) recentRate(way int) float64 {
	last := r.Samples[len(r.Samples)-1]
	before := r.Samples[max(0, len(r.Samples)-1-int(recently/sampleEvery))]
	if last.At == before.At {
		return 0
	}
	return float64(last.Answered[way]-before.Answered[way]) / (last.At - before.At).Seconds()
}

// WriteTable prints what the ways came to, and how long a large job would take in each.
func (r *Report) WriteTable(w io.Writer) error {
	out := terminal.NewTable(w)
	out.Line("", "ROWS", "ROWS/S", "OF THE OPTIMUM", "REFUSED CALLS", "100,000 ROWS TAKE")
	for way, l := range r.Lanes {
		perSec := float64(l.Answered) / r.elapsed().Seconds()
		share := float64(l.Answered) / float64(max(r.Lanes[optimum].Answered, 1))
		takes := "-"
		if perSec > 0 {
			takes = hours(time.Duration(jobRows / perSec * float64(time.Second)))
		}
		out.Line(names[way], fmt.Sprint(l.Answered), fmt.Sprintf("%.1f", perSec), fmt.Sprintf("%.0f%%", 100*share), fmt.Sprint(l.Refused), takes)
	}
	return out.Flush()
}

// hours is a time as in "2 h 15 min".
func hours(d time.Duration) string {
	minutes := int(d.Round(time.Minute).Minutes())
	if minutes < 60 {
		return fmt.Sprintf("%d min", minutes)
	}
	return fmt.Sprintf("%d h %d min", minutes/60, minutes%60)
}
