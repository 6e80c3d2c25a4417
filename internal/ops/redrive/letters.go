package redrive

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// letters are the dead letters of a stage: the rows of failed results as they came in. An
// input that is a work queue has deleted them, since they are acked.
type letters struct {
	stream string
	// at is the sequence of a row's newest letter, by the row's state id. It takes some 100
	// bytes for each row.
	at map[string]uint64
}

// letterID ends the message id of a dead letter, after the row's state id.
const letterID = "/dead-letter"

// readLetters reads which rows have dead letters. Without STAGE_DEAD_LETTER_SUBJECT there
// are none.
func readLetters(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (*letters, error) {
	l := &letters{at: make(map[string]uint64)}
	subject := cfg.Streams.DeadLetterSubject
	if subject == "" {
		return l, nil
	}
	asking, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	var err error
	if l.stream, err = js.StreamNameBySubject(asking, subject); errors.Is(err, jetstream.ErrStreamNotFound) {
		return l, nil
	} else if err != nil {
		return nil, fmt.Errorf("look for the stream of the dead letters on %s: %w", subject, streams.Denied(js.Conn(), err))
	}
	o := stored.ReadOptions{Stream: l.stream, Filters: []string{subject}}
	err = stored.Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		if row, ok := strings.CutSuffix(m.Header.Get(jetstream.MsgIDHeader), letterID); ok && strings.HasPrefix(row, cfg.Name+"/") {
			l.at[row] = m.Sequence
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the dead letters: %w", err)
	}
	return l, nil
}

// row returns the row of a failed result from its dead letter, as the input had it. It is
// nil if there is no letter, or if the letter is from an earlier stream of the same name.
func (l *letters) row(ctx context.Context, r *redriver, seq uint64, subject, stateID string) (*jetstream.RawStreamMsg, error) {
	at := l.at[stateID]
	if at == 0 {
		return nil, nil //nolint:nilnil // no letter
	}
	m, err := streams.MessageAt(ctx, r.js.Conn(), l.stream, at)
	if err != nil {
		return nil, fmt.Errorf("read the dead letter of row %d: %w", seq, err)
	}
	if m == nil || m.Header.Get(jetstream.MsgIDHeader) != stateID+letterID || m.Time.Before(r.input.CachedInfo().Created) {
		return nil, nil //nolint:nilnil // gone meanwhile
	}
	// The letter was cut. Its row counts as too large, as a row does that is cut itself.
	if len(m.Data) == 0 && m.Header.Get(streams.HeaderTruncated) != "" {
		m.Header.Set(streams.HeaderRowError, "row_too_large")
	}
	m.Sequence, m.Subject = seq, subject
	return m, nil
}
