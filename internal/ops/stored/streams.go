package stored

import (
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// embeddedDuplicates is how long an embedded server knows the ids of audit events. It
// holds them in memory, some 200 bytes a row, and needs them for as long as an event may
// be sent again: a recorder that gets no answer does so after 5 s.
const embeddedDuplicates = 15 * time.Second

// Streams returns the streams that a stage of this configuration works on.
func Streams(cfg *config.Config) streams.Config {
	var duplicates time.Duration
	if len(cfg.NATS.URL) == 0 {
		duplicates = embeddedDuplicates
	}
	lane := ""
	if cfg.LaneOn() {
		lane = cfg.Lane.Stream
	}
	batches := ""
	if cfg.Serve.Batches {
		batches = cfg.Batch.Stream
	}
	return streams.Config{
		AuditDuplicates: duplicates,
		Name:            cfg.Name, InputStream: cfg.Input.Stream, InputSubject: cfg.Input.Subject,
		ResultStream: cfg.Result.Stream, ResultSubject: cfg.Result.Subject,
		ResultBucket: cfg.Result.Bucket,
		AuditStream:  cfg.Audit.Stream, AuditSubject: cfg.Audit.Subject,
		DeadLetterSubject: cfg.Streams.DeadLetterSubject, Partitions: cfg.Streams.Partitions,
		Create: cfg.Streams.Create, Replicas: cfg.Streams.Replicas, Memory: cfg.Streams.Storage == "memory",
		AuditMaxAge: cfg.Audit.MaxAge, AuditMaxBytes: int64(cfg.Audit.MaxBytes), ResultMaxBytes: int64(cfg.Result.MaxBytes),
		Journal: cfg.Journal.Enabled, JournalStream: cfg.Journal.Stream, JournalMaxBytes: int64(cfg.Journal.MaxBytes),
		LaneStream: lane, BatchStream: batches,
	}
}

// Durable returns the durable consumer of one partition of a stage of this configuration.
func Durable(cfg *config.Config, partition int) streams.DurableConfig {
	return streams.DurableConfig{
		Name: cfg.Name, Partition: partition, InputStream: cfg.Input.Stream, InputSubject: cfg.Input.PartitionSubject(partition),
		ResultStream: cfg.Result.Stream, WindowRows: cfg.Window.Rows, Create: cfg.Streams.Create,
		Order: cfg.Order.Mode, OrderSpan: cfg.Order.Span, LaneRows: cfg.LaneRows(),
	}
}

// MissingStream returns the error of a stream that could not be read. If the stream does
// not exist that is a [config.Error], which names the variable.
func MissingStream(err error, name, variable string) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return config.Invalid(fmt.Errorf("stream %s does not exist (%s)", name, variable))
	}
	return fmt.Errorf("look at stream %s: %w", name, err)
}
