package stage

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// story answers /api/row.
func (s *Stage) story(ctx context.Context, o tail.StoryOptions) (any, error) {
	o.Payloads = s.Cfg.HTTP.DashboardPayloads
	return askStored(ctx, s, func(js jetstream.JetStream) (*tail.Story, error) { return tail.Tell(ctx, js, s.Cfg, o) })
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
