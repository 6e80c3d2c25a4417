package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readClaims returns the claims of a partition up to a sequence of the results stream.
func readClaims(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, until uint64) (claims []claimEntry, err error) {
	r, err := openReader(ctx, js, cfg.Result.Stream, logSubject(cfg, partition, "claim"), until, false)
	if err != nil {
		return nil, err
	}
	defer r.close()
	for {
		m, at, err := r.next(ctx)
		if err != nil || m == nil {
			return claims, err
		}
		var c struct {
			Owner   string    `json:"owner"`
			Mark    uint64    `json:"high_water_mark"`
			Version int       `json:"version"`
			Input   string    `json:"input_stream"`
			Created time.Time `json:"input_created"`
		}
		if err := json.Unmarshal(m.Data(), &c); err != nil {
			return nil, config.Invalid(fmt.Errorf("message %d of stream %s is no claim: %w", at, cfg.Result.Stream, err))
		}
		md, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		claims = append(claims, claimEntry{at: at, stored: md.Timestamp, owner: c.Owner, mark: c.Mark, version: c.Version, input: c.Input, created: c.Created})
	}
}

// logSubject is a subject of a partition's log: rows, claim, or > for both.
func logSubject(cfg *config.Config, partition int, what string) string {
	return cfg.Result.Subject + "." + cfg.Name + "." + strconv.Itoa(partition) + "." + what
}

// resultsOf returns a function that reads the results of a partition.
func resultsOf(ctx context.Context, r *streamReader) func() (*resultRow, error) {
	return func() (*resultRow, error) {
		m, at, err := r.next(ctx)
		if err != nil || m == nil {
			return nil, err
		}
		h := m.Headers()
		md, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		row := &resultRow{
			at: at, stored: md.Timestamp, owner: h.Get(consumer.HeaderOwner), status: h.Get(consumer.HeaderStatus),
			stateID: h.Get(consumer.HeaderStateID), source: h.Get(consumer.HeaderSourceStream),
		}
		row.seq, _ = strconv.ParseUint(h.Get(consumer.HeaderSourceSeq), 10, 64) // 0 says that there is none
		return row, nil
	}
}

// inputOf returns a function that reads the sequences of the input. A work queue allows no second reader, and on an
// interest stream one would count: there each row is asked for by itself. Only those that are not acked yet are left.
func inputOf(ctx context.Context, nc *nats.Conn, r *streamReader, stream, filter string) func() (uint64, error) {
	if r != nil {
		return func() (uint64, error) {
			_, at, err := r.next(ctx)
			return at, err
		}
	}
	last := uint64(0)
	return func() (uint64, error) {
		next, err := nextSequence(ctx, nc, stream, filter, last+1)
		last = next
		return next, err
	}
}
