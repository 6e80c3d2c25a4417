package streams

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ClaimVersion is the newest format of claims. A stage refuses to follow a newer one.
// Version 2 is written by a stage in order by key or without order. A stage that knows
// only version 1 would resume behind the last result, and lose the rows before it that
// still wait.
const ClaimVersion = 2

// Claim is the message by which an owner takes a partition over. It lies among the
// results, so its place in the log says exactly which results came before it.
type Claim struct {
	// Owner is the term of ownership that begins.
	Owner string `json:"owner"`
	// HighWaterMark is the input sequence of the last row emitted before the claim, and 0
	// if there is none. In order by key or without order it is the low-water mark, see
	// [HeaderLow].
	HighWaterMark uint64 `json:"high_water_mark"`
	// Version is the format; see [ClaimVersion].
	Version int `json:"version"`
	// InputStream and InputCreated name the input stream whose sequences the mark counts:
	// a stream that was created again numbers its rows from 1.
	InputStream  string    `json:"input_stream"`
	InputCreated time.Time `json:"input_created"`
	// Order of the results after the claim. The empty order means [OrderStream]. Key says
	// what the key of a row is if the order is [OrderKey], as in STAGE_ORDER_KEY.
	Order Order  `json:"order,omitempty"`
	Key   string `json:"order_key,omitempty"`
	// Lane is the batch lane that the owner has, and nil if it has none. It shows a later
	// owner without a lane that batches may be open.
	Lane *ClaimedLane `json:"lane,omitempty"`
}

// ClaimedLane is the batch lane of an owner.
type ClaimedLane struct {
	Stream string `json:"stream"`  // of the records of its batches
	Rows   int    `json:"rows"`    // most rows in batches
	PollMS int64  `json:"poll_ms"` // time between two looks at a batch
	// Collects is set where the owner collects batches of earlier owners, and opens none.
	Collects bool `json:"collects,omitempty"`
}

// SameOrder reports whether the results after the claim are in this order, by this key
// where it is [OrderKey].
func (c *Claim) SameOrder(order Order, key string) bool {
	return cmp.Or(c.Order, OrderStream) == order && (order != OrderKey || c.Key == key)
}

// LastClaim returns the newest claim on a subject, and its message. Both are nil if there
// is none.
func LastClaim(
	ctx context.Context, nc *nats.Conn, stream, subject string,
) (*Claim, *jetstream.RawStreamMsg, error) {
	m, err := LastMessage(ctx, nc, stream, subject)
	if err != nil {
		return nil, nil, fmt.Errorf("read the last claim: %w", err)
	}
	if m == nil {
		return nil, nil, nil
	}
	c := new(Claim)
	if err := json.Unmarshal(m.Data, c); err != nil {
		return nil, nil, fmt.Errorf("claim %d of stream %s: %w", m.Sequence, stream, err)
	}
	return c, m, nil
}
