package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// guess reconstructs the settings of a stage without a recorded run: as many partitions
// as have a log, the input stream that its claims name, and the filters of its consumers.
// If the consumers are gone, too, every result of the stage before counts as a row; the
// first stage gets the configured input subject.
func (c *chain) guess(ctx context.Context, found, before *config.Config) (err error) {
	found.Streams.Partitions = 1
	if found.Streams.Partitions, err = stored.Partitions(ctx, c.js, found); err != nil {
		return fmt.Errorf("look for the partitions of stage %s: %w", found.Name, err)
	}
	claim, err := c.lastClaim(ctx, found)
	if err != nil {
		return err
	}
	found.Input.Stream = cmp.Or(claim.InputStream, found.Input.Stream)
	subject := c.filtersOf(ctx, found)
	switch {
	case subject != "":
	case before == nil && found.Streams.Partitions > 1 && !strings.Contains(found.Input.Subject, streams.PartitionToken):
		return config.Invalid(fmt.Errorf("--chain: stage %s has %d partitions, and neither a run of it in stream %s nor its consumers on stream %s say which rows each of them reads: "+
			"set STAGE_INPUT_SUBJECT to its input subject, with %s", found.Name, found.Streams.Partitions, found.Audit.Stream, found.Input.Stream, streams.PartitionToken))
	case before == nil:
		subject = found.Input.Subject
	case found.Streams.Partitions > 1:
		subject = resultsOf(before, streams.PartitionToken)
	default:
		subject = resultsOf(before, "*")
	}
	found.Input.Subject = subject
	return nil
}

// lastClaim returns the last claim of the first partition, or the zero value if there is
// none.
func (c *chain) lastClaim(ctx context.Context, cfg *config.Config) (claim streams.Claim, err error) {
	m, err := streams.LastMessage(ctx, c.js.Conn(), cfg.Result.Stream, stored.LogSubject(cfg, 0, "claim"))
	if err == nil && m != nil {
		err = json.Unmarshal(m.Data, &claim)
	}
	if err != nil {
		return claim, fmt.Errorf("read the last claim of stage %s: %w", cfg.Name, err)
	}
	return claim, nil
}

// filtersOf returns the input subject that gives each partition the filter that its
// consumer has. It is empty if a consumer is gone or may not be read, or if no single
// subject yields all these filters.
func (c *chain) filtersOf(ctx context.Context, cfg *config.Config) (subject string) {
	filters := make([]string, cfg.Streams.Partitions)
	for p := range filters {
		consumer, err := c.js.Consumer(ctx, cfg.Input.Stream, streams.DurableName(cfg.Name, p))
		if err != nil {
			return ""
		}
		filters[p] = consumer.CachedInfo().Config.FilterSubject
	}
	first := filters[0]
	if len(filters) == 1 {
		return first
	}
	for i := range len(first) {
		subject, fits := first[:i]+streams.PartitionToken+first[i+1:], first[i] == '0'
		for p, filter := range filters {
			fits = fits && streams.InputFilter(subject, p) == filter
		}
		if fits {
			return subject
		}
	}
	return ""
}
