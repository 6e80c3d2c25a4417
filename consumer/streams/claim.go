package streams

import "time"

// ClaimVersion is the format of claims written today. A stage refuses to follow a newer one.
const ClaimVersion = 1

// Claim is the message by which an owner takes a partition over. It lies among the results, so its place in the log
// says exactly which results came before it.
type Claim struct {
	// Owner is the term of ownership that begins.
	Owner string `json:"owner"`
	// HighWaterMark is the input sequence of the last row emitted before it; 0: none.
	HighWaterMark uint64 `json:"high_water_mark"`
	// Version is the format; see [ClaimVersion].
	Version int `json:"version"`
	// InputStream and InputCreated name the input stream whose sequences the mark counts: one created again has others.
	InputStream  string    `json:"input_stream"`
	InputCreated time.Time `json:"input_created"`
}
