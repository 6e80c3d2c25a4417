package erase

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// store has the streams of a stage, as they were when the erasure was planned.
type store struct {
	js  jetstream.JetStream
	nc  *nats.Conn
	cfg *config.Config

	input, results, audit *jetstream.StreamInfo // input and audit may be nil
}

// open looks at the streams that every stage has. If nothing can be erased from the results
// or the audit, the error is a [config.Error].
func (s *store) open(ctx context.Context) (err error) {
	if s.results, err = s.stream(ctx, s.cfg.Result.Stream); err != nil {
		return err
	}
	if s.results == nil {
		return stored.MissingStream(jetstream.ErrStreamNotFound, s.cfg.Result.Stream, "STAGE_RESULT_STREAM")
	}
	if s.input, err = s.stream(ctx, s.cfg.Input.Stream); err != nil {
		return err
	}
	if s.audit, err = s.stream(ctx, s.cfg.Audit.Stream); err != nil {
		return err
	}
	var denied []string
	for _, info := range []*jetstream.StreamInfo{s.results, s.audit} {
		if info != nil && Denies(info.Config) {
			denied = append(denied, info.Config.Name)
		}
	}
	if len(denied) > 0 {
		return config.Invalid(fmt.Errorf("%s: %s", strings.Join(denied, ", "), WhyDenied))
	}
	return nil
}

// stream returns nil for a stream that does not exist.
func (s *store) stream(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	found, err := streams.Look(ctx, s.js, name)
	if isMissing(err) {
		return nil, nil //nolint:nilnil // that it is missing is an answer
	}
	if err != nil {
		return nil, err
	}
	return found.CachedInfo(), nil
}

// eachRow calls f with the rows of a partition that the input still has, from a sequence
// on. Rows that are objects are read, too.
func (s *store) eachRow(ctx context.Context, number int, from uint64, f func(*stored.InputRow) error) error {
	if s.input == nil {
		return nil
	}
	var r *stored.Reader
	filter := s.cfg.Input.PartitionSubject(number)
	if s.input.Config.Retention == jetstream.LimitsPolicy {
		var err error
		if r, err = stored.Open(ctx, s.js, stored.ReadOptions{
			Stream: s.cfg.Input.Stream, Filters: []string{filter}, From: from, Until: max(1, s.input.State.LastSeq),
		}); err != nil {
			return err
		}
		defer r.Close()
	}
	next := stored.NextInputFunc(ctx, s.nc, r, s.cfg.Input.Stream, filter)
	for {
		in, err := next()
		if err != nil || in.Seq == 0 {
			return err
		}
		if err := in.Fetch(ctx, s.nc); err != nil {
			return err
		}
		if in.Seq >= from {
			if err := f(&in); err != nil {
				return err
			}
		}
	}
}

// stateID is the permanent name of a row.
func (s *store) stateID(e *erasure) string {
	return auditlog.StateID(s.cfg.Name, s.cfg.Input.Stream, auditlog.Partition(e.partition), e.row)
}

// isMissing reports whether a stream does not exist.
func isMissing(err error) bool { return errors.Is(err, jetstream.ErrStreamNotFound) }

// Denies reports whether nothing can be erased from a stream.
func Denies(cfg jetstream.StreamConfig) bool { return cfg.DenyDelete || cfg.Sealed }

// WhyDenied says of a stream that denies deletes what to do.
const WhyDenied = "the stream denies deletes (deny_delete), which no server can undo, so nothing can be erased from it: " +
	"move its messages to a new stream, as docs/erase.md shows under \"A stream that denies deletes\""

// Denied returns the names of the streams of a stage that deny deletes.
func Denied(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (names []string, err error) {
	for _, name := range []string{cfg.Result.Stream, cfg.Audit.Stream} {
		s, err := streams.Look(ctx, js, name)
		if err != nil {
			return nil, err
		}
		if Denies(s.CachedInfo().Config) {
			names = append(names, name)
		}
	}
	return names, nil
}
