package stored

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// Result is one stored result with its body.
type Result struct {
	At       uint64 // its sequence in the result stream
	Seq      uint64 // of the row in the input stream
	Subject  string // of the row
	Replaces uint64 // the row whose place it takes; 0: that of no other, as far as its headers say
	Failed   bool   // the row was answered by an error
	Body     []byte
}

// OpenResults begins to read the results of one partition for [NextResult], from the first on. Without follow it ends
// with the last one that is stored. The caller must close the reader.
func OpenResults(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, follow bool) (*Reader, error) {
	subject := streams.ResultSubject(cfg.Result.Subject, cfg.Name, partition)
	return Open(ctx, js, ReadOptions{Stream: cfg.Result.Stream, Filters: []string{subject}, Follow: follow})
}

// NextResult returns the next result. The error is [ErrNoMore] at the end or, with follow, when none came within wait.
func NextResult(ctx context.Context, r *Reader, wait time.Duration) (Result, error) {
	var late <-chan time.Time
	if r.options.Follow {
		late = time.After(wait)
	}
	m, _, err := r.NextBefore(ctx, late)
	if err == nil && m == nil {
		err = ErrNoMore
	}
	if err != nil {
		return Result{}, err
	}
	return NewResult(m)
}

// NewResult reads a message of the result stream. One that is no result of a stage is an error.
func NewResult(m jetstream.Msg) (Result, error) {
	md, err := m.Metadata()
	if err != nil {
		return Result{}, err
	}
	h := m.Headers()
	r := Result{
		At: md.Sequence.Stream, Subject: h.Get(streams.HeaderSourceSubject),
		Failed: h.Get(streams.HeaderStatus) == "error", Body: m.Data(),
	}
	r.Replaces, _ = strconv.ParseUint(h.Get(streams.HeaderReplaces), 10, 64) // 0: there is none, or it is damaged
	if _, err := fmt.Sscanf(h.Get(streams.HeaderSourceSeq), "%d", &r.Seq); err != nil {
		return Result{}, fmt.Errorf("message %d has no %s header: it is no result of a stage", md.Sequence.Stream, streams.HeaderSourceSeq)
	}
	return r, nil
}

// WriteLine writes one body as one line of JSON. Bodies are JSON and mostly on one line already; one that is not JSON,
// passed on from upstream, becomes a string.
func WriteLine(w io.Writer, body []byte) error {
	var line bytes.Buffer
	switch {
	case bytes.IndexByte(body, '\n') < 0 && bytes.IndexByte(body, '\r') < 0 && json.Valid(body):
		line.Write(body)
	case json.Compact(&line, body) != nil:
		line.Reset()
		text, err := json.Marshal(string(body))
		if err != nil {
			return err
		}
		line.Write(text)
	}
	line.WriteByte('\n')
	_, err := w.Write(line.Bytes())
	return err
}
