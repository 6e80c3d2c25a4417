package terminal

import (
	"context"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Bar is a progress bar on a terminal, and nothing elsewhere. Lines that are printed through its Writer appear above
// it. Create it with [NewBar]. Safe for concurrent use.
type Bar struct {
	container *mpb.Progress // nil without a terminal, as is bar
	bar       *mpb.Bar
}

// NewBar shows a bar on w with done of total rows; total 0 or below: unknown. aside returns the text beside it at each
// refresh, given how many rows are done. The caller must call Finish.
func NewBar(ctx context.Context, w io.Writer, total, done int64, aside func(done int64) string) *Bar {
	b := &Bar{}
	if !Is(w) {
		return b
	}
	b.container = mpb.NewWithContext(ctx, mpb.WithOutput(w), mpb.WithRefreshRate(200*time.Millisecond))
	b.bar = b.container.AddBar(max(total, 0),
		mpb.PrependDecorators(decor.CountersNoUnit("%d / %d rows ")),
		mpb.AppendDecorators(decor.Percentage(), decor.Any(func(s decor.Statistics) string { return "  " + aside(s.Current) })),
	)
	b.Set(done)
	return b
}

// Visible reports whether there is a terminal to show the bar.
func (b *Bar) Visible() bool { return b.bar != nil }

// Set sets how many rows are done.
func (b *Bar) Set(done int64) {
	if b.bar != nil {
		b.bar.SetCurrent(done)
	}
}

// SetTotal sets how many rows there are, once that is known.
func (b *Bar) SetTotal(total int64) {
	if b.bar != nil {
		b.bar.SetTotal(total, false)
	}
}

// Writer returns the writer for whole lines to w: above the bar if both share a terminal, else w.
func (b *Bar) Writer(w io.Writer) io.Writer {
	if b.container != nil && Is(w) {
		return b.container
	}
	return w
}

// Finish leaves the last state of the bar on the terminal.
func (b *Bar) Finish() {
	if b.bar == nil {
		return
	}
	if !b.bar.Completed() {
		b.bar.Abort(false)
	}
	b.container.Wait()
}
