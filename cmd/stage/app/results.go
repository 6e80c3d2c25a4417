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
	"github.com/nats-io/nats.go/jetstream"
)

// resultBatch is how many results are read ahead.
const resultBatch = 100

// result is one stored result.
type result struct {
	Seq    uint64 // of the row in the input stream
	Failed bool
	Body   []byte
}

// resultReader reads the results of one partition from the first on, in their order.
type resultReader struct {
	consumer jetstream.Consumer
	batch    jetstream.MessageBatch
}

// openResults begins to read the results of one partition.
func openResults(ctx context.Context, js jetstream.JetStream, cfg *Config, partition int) (*resultReader, error) {
	subject := consumer.ResultSubject(cfg.Result.Subject, cfg.Name, partition)
	c, err := js.OrderedConsumer(ctx, cfg.Result.Stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, fmt.Errorf("read results on %s of stream %s: %w", subject, cfg.Result.Stream, err)
	}
	return &resultReader{consumer: c}, nil
}

// errNoMore means that there is no further result at the moment.
var errNoMore = errors.New("no more results")

// next returns the next result; errNoMore when none came within wait.
func (r *resultReader) next(ctx context.Context, wait time.Duration) (result, error) {
	for fresh := false; ; fresh = true {
		if r.batch != nil {
			select {
			case m, ok := <-r.batch.Messages():
				if ok {
					return newResult(m)
				}
			case <-ctx.Done():
				return result{}, context.Cause(ctx)
			}
			err := r.batch.Error()
			r.batch = nil
			if err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
				return result{}, fmt.Errorf("read results: %w", err)
			}
		}
		if fresh {
			return result{}, errNoMore
		}
		var err error
		if r.batch, err = r.consumer.Fetch(resultBatch, jetstream.FetchMaxWait(wait)); err != nil {
			return result{}, fmt.Errorf("read results: %w", err)
		}
	}
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
