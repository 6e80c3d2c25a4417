package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerLoad and headerLoadRow say of which file a row is, and which row of it, counted from 1.
	headerLoad    = "Stage-Load-Id"
	headerLoadRow = "Stage-Load-Row"
	// headerRowError marks a row whose own body no message can hold, with the reason of its error result; the others tell
	// its size and what there is room for. The body then is the beginning of the row's.
	headerRowError = "Stage-Row-Error"
	headerRowSize  = "Stage-Row-Size"
	headerRowLimit = "Stage-Row-Limit"

	loadGroupRows  = 500
	loadGroupBytes = 4 << 20
	loadRetryMax   = 5 * time.Second
)

// loader publishes the rows of one source to the input stream, in order, each once, whatever is killed. A group of rows is
// one atomic batch, on condition that the subject still ends where this loader left it; on a stream without batches it is
// one row at a time. Where it was is read from the stream: the last row there names its place in the source.
type loader struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  string
	subject string // this source's alone
	id      string
	batch   bool
	end     uint64 // stream sequence of the last message on subject
}

// loadSubject is where a source's rows are published: a subject of its own below the filter of the input.
func loadSubject(filter, id string) string {
	tokens := strings.Split(filter, ".")
	for i, t := range tokens {
		if t == "*" || t == ">" {
			tokens[i] = id
		}
	}
	return strings.Join(tokens, ".")
}

// newLoader finds out how far an earlier load of the same source came. The subject must belong to this source alone.
func newLoader(ctx context.Context, nc *nats.Conn, stream, subject, id string) (l *loader, loaded int64, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, 0, err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, 0, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	l = &loader{nc: nc, js: js, stream: stream, subject: subject, id: id, batch: s.CachedInfo().Config.AllowAtomicPublish}
	loaded, err = l.loaded(ctx, s)
	return l, loaded, err
}

// loaded reads the last row of this source, and with it where the subject ends.
func (l *loader) loaded(ctx context.Context, s jetstream.Stream) (int64, error) {
	m, err := s.GetLastMsgForSubject(ctx, l.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		l.end = 0
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the last row on %s: %w", l.subject, err)
	}
	row, err := strconv.ParseInt(m.Header.Get(headerLoadRow), 10, 64)
	if err != nil || m.Header.Get(headerLoad) != l.id {
		return 0, fmt.Errorf("somebody else publishes on %s, the subject of this load: message %d has no %s %s", l.subject, m.Sequence, headerLoad, l.id)
	}
	l.end = m.Sequence
	return row, nil
}

// run publishes what next returns until [io.EOF]. The first row that next returns is row loaded+1 of the source. stored is
// told how many rows of the source the stream holds.
func (l *loader) run(ctx context.Context, loaded int64, next func() (*nats.Msg, error), stored func(rows int64)) error {
	for {
		group, eof, err := l.gather(loaded, next)
		if len(group) > 0 {
			if storeErr := l.store(ctx, group); storeErr != nil {
				return storeErr
			}
			loaded += int64(len(group))
			stored(loaded)
		}
		if err != nil || eof {
			return err
		}
	}
}

// gather takes the next group of rows.
func (l *loader) gather(loaded int64, next func() (*nats.Msg, error)) (group []*nats.Msg, eof bool, err error) {
	most, bytes := loadGroupRows, 0
	if !l.batch {
		most = 1
	}
	for len(group) < most && bytes < loadGroupBytes {
		m, err := next()
		if errors.Is(err, io.EOF) {
			return group, true, nil
		}
		if err != nil {
			return group, false, err
		}
		if m.Header == nil {
			m.Header = make(nats.Header, 2)
		}
		m.Subject = l.subject
		m.Header.Set(headerLoad, l.id)
		m.Header.Set(headerLoadRow, strconv.FormatInt(loaded+int64(len(group))+1, 10))
		bytes += len(m.Data)
		group = append(group, m)
	}
	return group, false, nil
}

// store appends one group, and tries again until it is stored, ctx ends, or the server can't take it.
func (l *loader) store(ctx context.Context, group []*nats.Msg) error {
	last, err := strconv.ParseInt(group[len(group)-1].Header.Get(headerLoadRow), 10, 64)
	if err != nil {
		return err
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, loadRetryMax) {
		group[0].Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(l.end, 10))
		seq, err := consumer.Append(ctx, l.nc, group)
		if err == nil {
			l.end = seq
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// No answer may mean that it is stored: the stream knows.
		s, readErr := l.js.Stream(ctx, l.stream)
		if readErr == nil {
			before := l.end
			now, readErr := l.loaded(ctx, s)
			switch {
			case readErr != nil:
			case now == last:
				return nil
			case l.end != before:
				return fmt.Errorf("load rows on %s: another load of the same source is running", l.subject)
			case errors.Is(err, consumer.ErrRefused) && ctx.Err() == nil && !mayPass(err):
				return fmt.Errorf("load rows: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// mayPass tells whether the server's refusal is about the moment: no leader, a conflict that the stream does not show.
func mayPass(err error) bool {
	text := err.Error()
	return strings.Contains(text, "no stream captures") || strings.Contains(text, "wrong last") || strings.Contains(text, "unavailable")
}
