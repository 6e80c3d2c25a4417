package stored

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/nats-io/nats.go/jetstream"
)

// Result is one stored result with its body.
type Result struct {
	At      uint64    // its sequence in the result stream
	Stored  time.Time // when it was stored
	Seq     uint64    // of the row in the input stream
	Subject string    // of the row
	// Low is the low-water mark: every row of the input up to it had its result when this
	// one was stored. For a stage in stream order it is the row itself.
	Low uint64
	// Replaces is the row whose place the result takes, or 0 if its headers name none.
	Replaces uint64
	Failed   bool   // the row was answered by an error
	Erased   bool   // `stage erase` has removed it, and something else stands for it
	Body     []byte // empty until Fetch where it is an Object
	Object   *objects.Ref
}

// OpenResults begins to read the results of one partition for [NextResult], from the
// first on. Without follow it ends with the last one that is stored. The caller must
// close the reader.
func OpenResults(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, follow bool) (*Reader, error) {
	return Open(ctx, js, ReadOptions{Stream: cfg.Result.Stream, Filters: []string{LogSubject(cfg, partition, "rows")}, Follow: follow})
}

// NextResult returns the next result. The error is [ErrNoMore] at the end or, with
// follow, when none came within wait.
func NextResult(ctx context.Context, r *Reader, wait time.Duration) (Result, error) {
	var late <-chan time.Time
	if r.options.Follow {
		late = time.After(wait)
	}
	m, err := r.NextBefore(ctx, late)
	if err == nil && m == nil {
		err = ErrNoMore
	}
	if err != nil {
		return Result{}, err
	}
	return NewResult(m)
}

// NewResult reads a message of the result stream. A message that is no result of a stage is
// an error.
func NewResult(m *jetstream.RawStreamMsg) (Result, error) {
	h := m.Header
	seq, err := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
	if err != nil {
		return Result{}, fmt.Errorf("message %d has no %s header: it is no result of a stage", m.Sequence, streams.HeaderSourceSeq)
	}
	low := seq
	if text := h.Get(streams.HeaderLow); text != "" {
		if low, err = strconv.ParseUint(text, 10, 64); err != nil {
			return Result{}, fmt.Errorf("message %d has %s %q, which is no sequence: it is no result of a stage", m.Sequence, streams.HeaderLow, text)
		}
	}
	return Result{
		At: m.Sequence, Stored: m.Time, Seq: seq, Low: low, Subject: h.Get(streams.HeaderSourceSubject),
		Replaces: streams.Replaces(h), Failed: h.Get(streams.HeaderStatus) == auditlog.RowError, Body: m.Data,
		Object: objectOf(h),
	}, nil
}

// WriteLine writes one body as one line of JSON. Bodies are JSON and mostly on one line
// already. A body that is not JSON, which a row from upstream may have, becomes a string.
func WriteLine(w io.Writer, body []byte) error {
	var line []byte
	if bytes.IndexByte(body, '\n') < 0 && bytes.IndexByte(body, '\r') < 0 && jsonbytes.Valid(body) {
		line = append(make([]byte, 0, len(body)+1), body...)
	} else if compact := new(bytes.Buffer); json.Compact(compact, body) == nil {
		line = compact.Bytes()
	} else {
		line, _ = json.Marshal(string(body)) // any text can be a string
	}
	_, err := w.Write(append(line, '\n')) // whole lines at a time
	return err
}
