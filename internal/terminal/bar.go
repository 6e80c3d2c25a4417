package terminal

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
)

// Bar is a progress bar on a terminal, and nothing elsewhere. Lines that are printed
// through its Writer appear above it. Create it with [NewBar]. Safe for concurrent use.
type Bar struct {
	container *mpb.Progress // nil without a terminal, as is bar
	bar       *mpb.Bar
	total     atomic.Int64
	failed    atomic.Int64
}

// NewBar shows a bar on w with done of total rows; total 0 or below: unknown. aside
// returns the text beside it at each refresh, given how many rows are done and whether
// the terminal is so narrow that the text should be short. The caller must call Finish.
func NewBar(ctx context.Context, w io.Writer, total, done int64, aside func(done int64, short bool) Beside) *Bar {
	b := &Bar{}
	b.total.Store(total)
	if !Is(w) {
		return b
	}
	b.container = mpb.NewWithContext(ctx, mpb.WithOutput(w), mpb.WithRefreshRate(200*time.Millisecond))
	b.bar = b.container.AddBar(max(total, 0), b.layout(aside)...)
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

// AddFailed counts a row that has failed. Such rows are done, too.
func (b *Bar) AddFailed() { b.failed.Add(1) }

// SetTotal sets how many rows there are, once that is known.
func (b *Bar) SetTotal(total int64) {
	b.total.Store(total)
	if b.bar != nil {
		b.bar.SetTotal(total, false)
	}
}

// Writer returns the writer for whole lines to w: above the bar if both share a terminal,
// else w.
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
	b.bar.Abort(false) // which one that is complete ignores; to ask it is a race in mpb
	b.container.Wait()
}

// Console is a stream for whole lines that may be a terminal with a bar: then they appear
// above the bar, which would overwrite them otherwise. Create it with [NewConsole]. Safe
// for concurrent use.
type Console struct {
	w   io.Writer
	bar atomic.Pointer[Bar]
}

// NewConsole returns a console that writes to w.
func NewConsole(w io.Writer) *Console { return &Console{w: w} }

// Show is called with the bar that the terminal shows from now on.
func (c *Console) Show(b *Bar) { c.bar.Store(b) }

// Write writes one or more whole lines.
func (c *Console) Write(lines []byte) (int, error) {
	if b := c.bar.Load(); b != nil && b.container != nil {
		if n, err := b.container.Write(lines); err == nil { // else the bar has ended
			return n, nil
		}
	}
	return c.w.Write(lines)
}
