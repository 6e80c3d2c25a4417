package app

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

func missingStream(err error, name, variable string) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return invalid(fmt.Errorf("stream %s does not exist (%s)", name, variable))
	}
	return fmt.Errorf("look at stream %s: %w", name, err)
}
