package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// rowWithin is how long the page waits for the parts that may have a row.
const rowWithin = time.Second

// story answers /api/row: with what is stored of a row and, if its result is not stored,
// what it waits for here.
func (s *Stage) story(ctx context.Context, o tail.StoryOptions) (any, error) {
	o.Payloads = s.Cfg.HTTP.DashboardPayloads
	story, err := askStored(ctx, s, func(js jetstream.JetStream) (*tail.Story, error) { return tail.Tell(ctx, js, s.Cfg, o) })
	if err != nil && !tail.IsNoEvent(err) || err == nil && story.Emitted() {
		return story, err
	}
	ctx, cancel := context.WithTimeout(ctx, rowWithin)
	defer cancel()
	partition, wait := s.rowHold(ctx, o.Row)
	switch {
	case wait == nil:
		return story, err
	case err != nil: // it has no event yet
		story = &tail.Story{Row: o.Row, Stream: s.Cfg.Input.Stream, Partition: auditlog.Partition(partition), Steps: []tail.Step{}}
	}
	story.Hold = wait
	return story, nil
}

// failures answers /api/failures.
func (s *Stage) failures(ctx context.Context, o tail.FailuresOptions) (any, error) {
	o.Payloads = s.Cfg.HTTP.DashboardPayloads
	return askStored(ctx, s, func(js jetstream.JetStream) (*tail.Failures, error) { return tail.ListFailures(ctx, js, s.Cfg, o) })
}

// askStored asks what is stored. The error says what to do.
func askStored[T any](ctx context.Context, s *Stage, ask func(jetstream.JetStream) (T, error)) (answer T, err error) {
	if why := s.Conn.Down(); why != "" {
		return answer, errors.New(why)
	}
	js, err := streams.JetStream(s.Conn.NC())
	if err != nil {
		return answer, err
	}
	answer, err = ask(js)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		err = stored.MissingStream(err, s.Cfg.Audit.Stream, "STAGE_AUDIT_STREAM")
	case err != nil && !tail.IsNoEvent(err):
		if denied := streams.Violation(s.Conn.NC(), streams.APISubjects); denied != nil && ctx.Err() != nil { // a denied request has no answer
			err = denied
		}
		if err = s.Conn.Explain(err); errors.Is(err, nats.ErrPermissionViolation) {
			err = fmt.Errorf("%w; docs/permissions.md has what rows on the dashboard need", err)
		}
	}
	return answer, err
}
