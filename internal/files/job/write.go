package job

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go/jetstream"
)

// write writes the newest result of each row, in the order in which the first results
// were stored, and returns when the last is written.
//
// The result of a row that was published again comes long after its place in OUT.
// Meanwhile a file shows the failed result; at the end it is written again, with the new
// ones. Output that can't be taken back, such as standard output, is written only when no
// such result is awaited.
//
// work ends when the stage begins to stop. Until it has ended, it stores the results of the
// calls in flight. So the writer continues until storing has ended and no result is left,
// or restWait is over.
func (p *Pipeline) write(work, storing context.Context) error {
	js, err := streams.JetStream(p.Stage.Conn.NC())
	if err != nil {
		return err
	}
	if p.rewrite == nil {
		if err := p.places.wait(work); err != nil {
			return err
		}
	}
	for first := true; ; first = false {
		stale, err := p.writeAll(work, storing, js, first)
		if err != nil || stale == 0 {
			return err
		}
		if p.rewrite == nil {
			p.Stage.Log.Warn("rows were answered again after their results were written: "+
				"the same command writes the new ones", slog.Int("rows", stale))
			return nil
		}
		if err := p.rewrite(); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
}

// writeAll writes the results from the first on. first says that it is the first pass,
// which counts the rows. stale is how many results were replaced after they were written.
// If storing ends before each row has its result, the error is the cause of work.
func (p *Pipeline) writeAll(
	work, storing context.Context, js jetstream.JetStream, first bool,
) (stale int, err error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(storing))
	defer cancel(nil)
	defer stopping.After(storing, restWait, func() { cancel(context.Cause(work)) })()
	reader, err := stored.OpenResults(ctx, js, p.Stage.Cfg, 0, true)
	if err != nil {
		return 0, err
	}
	results := &resultsOf{places: p.places, reader: reader}
	defer results.Close()
	p.written, p.failed, p.failures = 0, 0, failures{}
	out := bufio.NewWriterSize(stopping.NewWriter(storing, p.progress.Writer(p.Out)), 64<<10)
	if p.header != nil {
		if err := p.header(ctx, out); err != nil {
			return 0, err
		}
	}

	flushed := time.Now()
	for !p.complete() {
		ended := storing.Err() != nil
		r, err := results.next(ctx, resultPoll)
		none := errors.Is(err, stored.ErrNoMore)
		if err != nil && !none {
			return stale, errors.Join(err, out.Flush())
		}
		if none || time.Since(flushed) > flushEvery {
			if err := out.Flush(); err != nil { // whole lines, also above a bar
				return stale, fmt.Errorf("write results: %w", err)
			}
			flushed = time.Now()
		}
		if none && ended {
			return stale, cmp.Or(context.Cause(work), context.Cause(storing))
		}
		if none {
			continue
		}

		newer, err := p.take(ctx, out, r, first)
		if err != nil {
			return stale, err
		}
		if newer {
			stale++
		}
	}
	if err := out.Flush(); err != nil {
		return stale, fmt.Errorf("write results: %w", err)
	}
	return stale, nil
}

// complete reports whether each row has its result written, and none is expected to be
// replaced.
func (p *Pipeline) complete() bool {
	return p.full() && len(p.places.pending) == 0
}

// full reports whether each row has a result written. The number of rows is unknown, and
// the answer no, while rows are being loaded.
func (p *Pipeline) full() bool {
	rows := p.rows.Load()
	return rows >= 0 && p.written >= rows || p.limit > 0 && p.written >= p.limit
}

// take writes the row of a result, if the result has a place of its own. A result that
// replaces another one is written in the place of that one: in this pass if it was known
// before its place came, otherwise in the next pass. Then stale is true.
func (p *Pipeline) take(
	ctx context.Context, out *bufio.Writer, r stored.Result, first bool,
) (stale bool, err error) {
	expected := len(p.places.pending)
	place, newer, err := p.places.note(ctx, r)
	switch {
	case err != nil:
		return false, err
	case newer:
		// The row was expected to be answered again, so its failed result was not
		// counted.
		if len(p.places.pending) < expected {
			p.progress.count(r.Failed, nil)
		}
		return true, nil // each result comes after the one that it replaces
	case place != r.Seq || p.full():
		return false, nil
	}
	if r, err = p.places.newestOf(ctx, r); err != nil {
		return false, err
	}
	if err := r.Fetch(ctx, p.places.js.Conn()); err != nil {
		return false, err
	}
	kind, err := p.writeResult(ctx, out, r)
	if err != nil {
		return false, err
	}
	if _, expected := p.places.pending[r.Seq]; first && !expected {
		p.progress.count(r.Failed, kind)
	}
	return false, nil
}

// writeResult writes one result and counts it. If it is the first that failed for its
// reason, it returns the rows of that reason. The buffer is flushed before a result that
// does not fit, so that each write to the file has whole results.
func (p *Pipeline) writeResult(
	ctx context.Context, out *bufio.Writer, r stored.Result,
) (first *failedRows, err error) {
	p.text.Reset()
	err = p.Format(&p.text, r)
	if err == nil && p.text.Len() > out.Available() {
		err = out.Flush()
	}
	if err == nil {
		_, err = out.Write(p.text.Bytes())
	}
	if err != nil {
		return nil, fmt.Errorf("write results: %w", err)
	}
	p.written++
	if !r.Failed {
		return nil, nil //nolint:nilnil // a result that has not failed is the first of no reason
	}
	p.failed++
	if first = p.failures.add(r); first != nil {
		first.number, err = p.places.number(ctx, r.Seq)
	}
	return first, err
}
