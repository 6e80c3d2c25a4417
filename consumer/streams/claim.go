package streams

import (
	"cmp"
	"time"
)

// ClaimVersion is the newest format of claims. A stage refuses to follow a newer one. Version 2 is written where the
// order is not that of the stream: a stage that knows version 1 alone would take the last result for the place to go
// on at, and lose the rows that wait.
const ClaimVersion = 2

// Claim is the message by which an owner takes a partition over. It lies among the results, so its place in the log
// says exactly which results came before it.
type Claim struct {
	// Owner is the term of ownership that begins.
	Owner string `json:"owner"`
	// HighWaterMark is the input sequence of the last row emitted before it; 0: none. Where the order is not that of the
	// stream it is the low-water mark, see [HeaderLow].
	HighWaterMark uint64 `json:"high_water_mark"`
	// Version is the format; see [ClaimVersion].
	Version int `json:"version"`
	// InputStream and InputCreated name the input stream whose sequences the mark counts: one created again has others.
	InputStream  string    `json:"input_stream"`
	InputCreated time.Time `json:"input_created"`
	// Order of the results after it; empty: that of the stream. Key says what the key of a row is where the order is
	// [OrderKey], as in STAGE_ORDER_KEY.
	Order Order  `json:"order,omitempty"`
	Key   string `json:"order_key,omitempty"`
}

// SameOrder reports whether the results after the claim are in this order, by this key where it is [OrderKey].
func (c *Claim) SameOrder(order Order, key string) bool {
	return cmp.Or(c.Order, OrderStream) == order && (order != OrderKey || c.Key == key)
}
