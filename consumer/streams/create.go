package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Look asks the server for a stream.
func Look(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", name, Denied(js.Conn(), err))
	}
	return stream, nil
}

// ErrSubjectTaken is returned by [Create] where another stream captures what the new one
// would.
var ErrSubjectTaken = errors.New("its subjects overlap with those of another stream")

// codeSubjectTaken is how the server refuses a stream whose subjects overlap with another
// stream's.
const codeSubjectTaken jetstream.ErrorCode = 10065

// Create creates a stream that is missing. That another process creates it with the same
// configuration at the same moment is no error. It returns [ErrSubjectTaken] with the
// name of the other stream where a subject belongs to one, and waits for an answer for
// five seconds.
func Create(
	ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig,
) (jetstream.Stream, error) {
	creating, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	stream, err := js.CreateStream(creating, cfg)
	if err == nil {
		return stream, nil
	}
	refused, ok := errors.AsType[*jetstream.APIError](err)
	if ok && refused.ErrorCode == codeSubjectTaken {
		err = fmt.Errorf("%w: %s", ErrSubjectTaken, holder(ctx, js, cfg.Subjects))
	}
	return nil, fmt.Errorf("create stream %s on subject %s: %w", cfg.Name,
		strings.Join(cfg.Subjects, ", "), Denied(js.Conn(), err))
}

// holder names a stream that captures some message on one of the subjects.
func holder(ctx context.Context, js jetstream.JetStream, subjects []string) string {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	for _, subject := range subjects {
		if name, err := js.StreamNameBySubject(ctx, subject); err == nil {
			return "stream " + name
		}
	}
	return "only a user who may list streams can see which one"
}

// captured checks that some stream takes the dead letter subject.
func captured(ctx context.Context, js jetstream.JetStream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	_, err := js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return NewSettingError(FieldDeadLetterSubject,
			"%s: no stream captures the subject %s: add it to a stream's subjects",
			FieldDeadLetterSubject, subject)
	}
	if err != nil {
		return NewSettingError(FieldDeadLetterSubject, "%s: look for the stream of subject %s: %w",
			FieldDeadLetterSubject, subject, Denied(js.Conn(), err))
	}
	return nil
}
