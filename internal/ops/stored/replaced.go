package stored

import (
	"context"
	"fmt"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

// Replaced returns the first row of the chain of redrives that led to the row with this
// header, or 0 if the row was not redriven. Older versions of redrive name only the failed
// row before it, so the rows of such a chain are read as far as they are left.
func Replaced(ctx context.Context, nc *nats.Conn, cfg *config.Config, header nats.Header) (first uint64, err error) {
	for {
		of := streams.RedriveOf(header, cfg.Name, cfg.Input.Stream)
		if of == 0 || first > 0 && of >= first { // a chain leads back, always
			return first, nil
		}
		if seq := streams.Replaces(header); seq > 0 {
			return seq, nil
		}
		first = of
		m, err := streams.MessageAt(ctx, nc, cfg.Input.Stream, of)
		if err != nil {
			return 0, fmt.Errorf("read row %d: %w", of, err)
		}
		if m == nil {
			return first, nil
		}
		header = m.Header
	}
}
