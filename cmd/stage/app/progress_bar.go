package app

import (
	"context"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// bar is a progress bar on a terminal, and nothing elsewhere. Lines that are printed through it never tear it.
type bar struct {
	bars *mpb.Progress // nil without a terminal
	bar  *mpb.Bar
}

// newBar begins to show a bar on w; total 0 or below is not known yet. aside is what stands beside it. The caller must
// finish it.
func newBar(ctx context.Context, w io.Writer, total, done int64, aside func() string) *bar {
	b := &bar{}
	if !isTerminal(w) {
		return b
	}
	b.bars = mpb.NewWithContext(ctx, mpb.WithOutput(w), mpb.WithRefreshRate(200*time.Millisecond))
	b.bar = b.bars.AddBar(max(total, 0),
		mpb.PrependDecorators(decor.CountersNoUnit("%d / %d rows ")),
		mpb.AppendDecorators(decor.Percentage(), decor.Any(func(decor.Statistics) string { return "  " + aside() })),
	)
	b.set(done)
	return b
}

func (b *bar) set(done int64) {
	if b.bar != nil {
		b.bar.SetCurrent(done)
	}
}

func (b *bar) setTotal(total int64) {
	if b.bar != nil {
		b.bar.SetTotal(total, false)
	}
}

// writer returns where whole lines go that are meant for w: above the bar, where both share a terminal.
func (b *bar) writer(w io.Writer) io.Writer {
	if b.bars != nil && isTerminal(w) {
		return b.bars
	}
	return w
}

// finish leaves the last state of the bar on the terminal.
func (b *bar) finish() {
	if b.bar == nil {
		return
	}
	if !b.bar.Completed() {
		b.bar.Abort(false)
	}
	b.bars.Wait()
}
