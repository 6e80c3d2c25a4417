package stored

import (
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

func MissingStream(err error, name, variable string) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return config.Invalid(fmt.Errorf("stream %s does not exist (%s)", name, variable))
	}
	return fmt.Errorf("look at stream %s: %w", name, err)
}
