package stored

import (
	"context"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// Partitions returns the number of partitions whose logs are in the result stream, at
// least that of the configuration: a reader that took the configuration's word would
// leave out what others have stored. It looks at the last claim and the last result of
// each partition, since either may have left the stream.
func Partitions(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (int, error) {
	prefix := cfg.Result.Subject + "." + cfg.Name
	o := ReadOptions{
		Stream: cfg.Result.Stream, Filters: []string{prefix + ".*.claim", prefix + ".*.rows"},
		LastPerSubject: true, HeadersOnly: true,
	}
	n := cfg.Streams.Partitions
	err := Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		if p, ok := PartitionOf(m.Subject); ok {
			n = max(n, p+1)
		}
		return nil
	})
	return n, err
}

// PartitionOf returns the partition of a subject in the log of a partition, which is its
// last token but one. ok is false for the position of a load, which has a name there.
func PartitionOf(subject string) (partition int, ok bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) < 2 {
		return 0, false
	}
	partition, err := strconv.Atoi(tokens[len(tokens)-2])
	return partition, err == nil
}

// AllResults returns the subject of the results of all partitions. Positions of loads may
// match it, too (see [PartitionOf]).
func AllResults(cfg *config.Config) string { return cfg.Result.Subject + "." + cfg.Name + ".*.rows" }
