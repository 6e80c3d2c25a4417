package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// result is one stored result.
type result struct {
	Seq    uint64 // of the row in the input stream
	Failed bool
	Body   []byte
}

// resultReader reads the results of one partition from the first on, in their order. The caller must close it.
type resultReader struct{ *streamReader }

// openResults begins to read the results of one partition. Without follow it ends with the last one that is stored.
func openResults(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, follow bool) (*resultReader, error) {
	subject := consumer.ResultSubject(cfg.Result.Subject, cfg.Name, partition)
	r, err := openStream(ctx, js, readOptions{stream: cfg.Result.Stream, filters: []string{subject}, follow: follow})
	return &resultReader{r}, err
}

// errNoMore means that there is no further result, or none at the moment.
var errNoMore = errors.New("no more results")

// next returns the next result; errNoMore at the end or, where it follows what comes, when none came within wait.
func (r *resultReader) next(ctx context.Context, wait time.Duration) (result, error) {
	var late <-chan time.Time
	if r.follow {
		late = time.After(wait)
	}
	m, _, err := r.nextBefore(ctx, late)
	switch {
	case err == nil && m == nil, errors.Is(err, errNothingYet):
		return result{}, errNoMore
	case err != nil:
		return result{}, err
	}
	return newResult(m)
}

func newResult(m jetstream.Msg) (result, error) {
	md, err := m.Metadata()
	if err != nil {
		return result{}, err
	}
	h := m.Headers()
	r := result{Failed: h.Get(consumer.HeaderStatus) == "error", Body: m.Data()}
	if _, err := fmt.Sscanf(h.Get(consumer.HeaderSourceSeq), "%d", &r.Seq); err != nil {
		return result{}, fmt.Errorf("message %d has no %s header: it is no result of a stage", md.Sequence.Stream, consumer.HeaderSourceSeq)
	}
	return r, nil
}

// writeLine writes one result as one line of JSON. Bodies are JSON and mostly on one line already; one that is not even
// JSON, passed on from upstream, becomes a string.
func writeLine(w io.Writer, body []byte) error {
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
