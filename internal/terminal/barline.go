package terminal

import (
	"fmt"
	"io"
	"strings"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const (
	narrow      = 60 // columns below which texts are short
	shortestBar = 10 // columns; where they are not left there is no bar
)

// Beside is the text beside a bar, in ASCII: one byte, one column.
type Beside struct {
	First []string // what matters most; cut off only where the terminal has no room even for these
	More  []string // each shown only if there is room for it and those before it
}

// countsText is how many of total rows are done, and how many of these have failed; total
// 0 or below: unknown.
func countsText(columns int, done, total, failed int64) string {
	of, unit, errors := " / ", " rows", " (%d failed)"
	if columns < narrow {
		of, unit, errors = "/", "", ", %d failed"
	}
	text := fmt.Sprint(done)
	if total > 0 {
		text += of + fmt.Sprint(total)
	}
	text += unit
	if failed > 0 {
		text += fmt.Sprintf(errors, failed)
	}
	return text
}

// besideText is what fits of the texts into the columns that the counts have left, with a
// bar before it if possible. The percentage is the first thing to be left out.
func besideText(columns, left int, percent string, b Beside) string {
	gap := "  "
	if columns < narrow {
		gap = " "
	}
	text := gap + strings.Join(b.First, gap)
	room := left - len(text) - shortestBar
	if percent != "" && room >= len(gap+percent) {
		text = gap + percent + text
		room -= len(gap + percent)
	}
	for _, more := range b.More {
		if room -= len(gap + more); room < 0 {
			break
		}
		text += gap + more
	}
	return text[:min(len(text), max(left, 0))]
}

// layout makes a bar of what the texts leave of the line. They are asked for at each
// refresh, so a window that changes its size changes the line.
func (b *Bar) layout(aside func(done int64, short bool) Beside) []mpb.BarOption {
	var columns int // of the terminal at this refresh: the decorators run one after the other
	counts := func(s decor.Statistics) string {
		columns = s.AvailableWidth
		text := countsText(columns, s.Current, b.total.Load(), b.failed.Load())
		return text[:min(len(text), columns)]
	}
	beside := func(s decor.Statistics) string {
		percent := ""
		if total := b.total.Load(); total > 0 {
			percent = fmt.Sprintf("%d %%", s.Current*100/total)
		}
		return besideText(columns, s.AvailableWidth, percent, aside(s.Current, columns < narrow))
	}
	return []mpb.BarOption{
		mpb.PrependDecorators(decor.Any(counts)), mpb.AppendDecorators(decor.Any(beside)),
		mpb.BarFillerTrim(), mpb.BarFillerMiddleware(atLeast(shortestBar)),
	}
}

// atLeast draws no bar where there are fewer columns for it than that.
func atLeast(columns int) func(mpb.BarFiller) mpb.BarFiller {
	return func(bar mpb.BarFiller) mpb.BarFiller {
		return mpb.BarFillerFunc(func(w io.Writer, s decor.Statistics) error {
			if s.AvailableWidth < columns {
				return nil
			}
			if _, err := io.WriteString(w, " "); err != nil {
				return err
			}
			s.AvailableWidth--
			return bar.Fill(w, s)
		})
	}
}
