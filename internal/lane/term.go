package lane

import (
	"context"

	"github.com/llm-stage/stage/consumer"
)

// Open implements [consumer.Lane].
func (l *Lane) Open(context.Context, consumer.LaneTerm) error { return nil }

// Close implements [consumer.Lane].
func (l *Lane) Close() {}
