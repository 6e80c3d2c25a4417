package terminal

import (
	"context"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Bar is a progress bar on a terminal, and nothing elsewhere. Lines that are printed through it never tear it.
type Bar struct {
	bars *mpb.Progress // nil without a terminal
	Bar  *mpb.Bar
}

// NewBar begins to show a bar on w; total 0 or below is not known yet. aside is what stands beside it. The caller must
// finish it.
func NewBar(ctx context.Context, w io.Writer, total, done int64, aside func() string) *Bar {
	b := &Bar{}
	if !Is(w) {
		return b
	}
	b.bars = mpb.NewWithContext(ctx, mpb.WithOutput(w), mpb.WithRefreshRate(200*time.Millisecond))
	b.Bar = b.bars.AddBar(max(total, 0),
		mpb.PrependDecorators(decor.CountersNoUnit("%d / %d rows ")),
		mpb.AppendDecorators(decor.Percentage(), decor.Any(func(decor.Statistics) string { return "  " + aside() })),
	)
	b.Set(done)
	return b
}

func (b *Bar) Set(done int64) {
	if b.Bar != nil {
		b.Bar.SetCurrent(done)
	}
}

func (b *Bar) SetTotal(total int64) {
	if b.Bar != nil {
		b.Bar.SetTotal(total, false)
	}
}

// Writer returns where whole lines go that are meant for w: above the bar, where both share a terminal.
func (b *Bar) Writer(w io.Writer) io.Writer {
	if b.bars != nil && Is(w) {
		return b.bars
	}
	return w
}

// Finish leaves the last state of the bar on the terminal.
func (b *Bar) Finish() {
	if b.Bar == nil {
		return
	}
	if !b.Bar.Completed() {
		b.Bar.Abort(false)
	}
	b.bars.Wait()
}
