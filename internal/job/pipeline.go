package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// resultPoll is how long the writer waits for a result before it looks whether all rows are loaded.
const resultPoll = 250 * time.Millisecond

// flushEvery is how long a result may wait for others before it is written, where they come without a pause.
const flushEvery = time.Second

// Pipeline is a finite job: rows go in at one end, results come out at the other, and the stage ends with the last.
type Pipeline struct {
	Stage  *stage.Stage
	Stderr io.Writer
	Source load.Rows
	Total  int64 // rows in the source; -1: not known
	limit  int64 // rows to process; 0: all
	Out    io.Writer
	Format func(io.Writer, stored.Result) error
	// endInput, when set, ends a read of the source that is under way.
	endInput func(cause error)
	// resumed says what an interrupted job goes on by; empty: it begins anew.
	resumed string

	progress *progress
	written  int64
	failed   int64
	loaded   chan int64 // how many rows there are, once all are in the stream
}

// Run returns nil when every row has its result written.
func (p *Pipeline) Run(soft, hard context.Context) error {
	if err := p.Stage.Prepare(soft); err != nil {
		if soft.Err() != nil { // else every stream's error would say so
			return context.Cause(soft)
		}
		return err
	}
	work, finish := context.WithCancelCause(soft)
	defer finish(nil)
	total := p.Total
	if p.limit > 0 && (total < 0 || total > p.limit) {
		total = p.limit
	}
	p.loaded = make(chan int64, 1)
	p.progress = newProgress(hard, p.Stderr, p.Stage, max(total, 0))
	began := time.Now()
	var parts errgroup.Group
	part := func(f func(context.Context) error) {
		parts.Go(func() error {
			err := f(work)
			if err != nil {
				finish(err) // one part's fault ends the others softly
			}
			return err
		})
	}
	part(p.load)
	part(func(ctx context.Context) error {
		err := p.write(ctx)
		finish(err) // all is written: the stage may stop
		return err
	})
	if p.progress.Bar.Bar == nil {
		part(func(ctx context.Context) error { p.Stage.LogProgress(ctx, p.progress.left); return nil })
	}
	err := p.Stage.Run(work, hard)
	finish(err)
	if p.endInput != nil {
		p.endInput(err)
	}
	partErr := parts.Wait()
	p.progress.Finish()
	p.summary(time.Since(began))
	switch {
	case hard.Err() != nil:
		return context.Cause(hard)
	case err != nil:
		return err
	case soft.Err() != nil && partErr != nil: // a signal that came when all was written changes nothing
		if p.resumed == "" {
			return fmt.Errorf("%w before the end", context.Cause(soft))
		}
		return fmt.Errorf("%w before the end: %s", context.Cause(soft), p.resumed)
	}
	return partErr
}

// load publishes the rows of the input that are not in the stream yet.
func (p *Pipeline) load(ctx context.Context) error {
	cfg, nc := p.Stage.Cfg, p.Stage.Conn.NC
	l, loaded, err := load.New(ctx, nc, cfg, "in", nil)
	if err != nil {
		return err
	}
	if err := p.Source.Skip(loaded); err != nil {
		return err
	}
	left := int64(-1)
	if p.limit > 0 {
		left = max(0, p.limit-loaded)
	}
	last := loaded
	err = l.Run(ctx, loaded, func() (*nats.Msg, error) {
		if left == 0 {
			return nil, io.EOF
		}
		left--
		return p.Source.Read()
	}, func(n int64) { last = n })
	if err != nil {
		return err
	}
	if p.limit > 0 {
		last = min(last, p.limit)
	}
	p.loaded <- last
	return nil
}

// write writes the stored results from the first on, and returns when the last is written.
func (p *Pipeline) write(ctx context.Context) error {
	js, err := jetstream.New(p.Stage.Conn.NC)
	if err != nil {
		return err
	}
	results, err := stored.OpenResults(ctx, js, p.Stage.Cfg, 0, true)
	if err != nil {
		return err
	}
	defer results.Close()
	out := bufio.NewWriterSize(stopping.NewWriter(ctx, p.progress.Writer(p.Out)), 64<<10)
	total, flushed := int64(-1), time.Now()
	for total < 0 || p.written < total {
		if total < 0 {
			select {
			case total = <-p.loaded:
				p.progress.know(total)
				continue
			default:
			}
		}
		r, err := results.Next(ctx, resultPoll)
		if err != nil && !errors.Is(err, stored.ErrNoMore) {
			return errors.Join(err, out.Flush())
		}
		if err != nil || out.Available() < len(r.Body) || time.Since(flushed) > flushEvery {
			if err := out.Flush(); err != nil { // whole lines, also above a bar
				return fmt.Errorf("write results: %w", err)
			}
			flushed = time.Now()
		}
		if err != nil {
			continue
		}
		if err := p.Format(out, r); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
		p.written++
		if r.Failed {
			p.failed++
		}
		p.progress.add(1)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// summary says on standard error what was done.
func (p *Pipeline) summary(took time.Duration) {
	sum := p.Stage.Summary()
	used, tokens := p.Stage.Usage.All(), "unknown"
	if u := used.Usage; u != nil {
		tokens = strconv.FormatInt(u.TotalTokens, 10)
	} else if used.Calls == 0 {
		tokens = "0"
	}
	fmt.Fprintf(p.Stderr, "%d results written, %d of them errors, in %s: %d calls, %d capacity retries, %s tokens, cost in USD %s, peak delay %s\n", //nolint:errcheck // nowhere left to say it
		p.written, p.failed, took.Round(100*time.Millisecond), sum.Total.Calls, sum.CapacityRetries, tokens, used.Cost(), sum.PeakDelay.Round(time.Millisecond))
}
