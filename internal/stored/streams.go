package stored

import (
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
)

// Streams are the streams that a stage of this configuration works on.
func Streams(cfg *config.Config) streams.Config {
	return streams.Config{
		Name: cfg.Name, InputStream: cfg.Input.Stream, InputSubject: cfg.Input.Subject,
		ResultStream: cfg.Result.Stream, ResultSubject: cfg.Result.Subject,
		AuditStream: cfg.Audit.Stream, AuditSubject: cfg.Audit.Subject,
		DeadLetterSubject: cfg.Streams.DeadLetterSubject, Partitions: cfg.Streams.Partitions,
		Create: cfg.Streams.Create, Replicas: cfg.Streams.Replicas, Memory: cfg.Streams.Storage == "memory",
		AuditMaxAge: cfg.Audit.MaxAge, AuditMaxBytes: int64(cfg.Audit.MaxBytes), ResultMaxBytes: int64(cfg.Result.MaxBytes),
		Journal: cfg.Journal.Enabled, JournalStream: cfg.Journal.Stream, JournalMaxBytes: int64(cfg.Journal.MaxBytes),
	}
}
