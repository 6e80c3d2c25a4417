package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Dropped is the body of the message that an owner stores before it removes old results of
// its partition. It stands for all messages of the log up to the last of them, whose place
// in the chain the results behind continue. Numbers count from the beginning of the log.
type Dropped struct {
	// Sequence is the place of the last dropped result in the results stream, Row its row,
	// Stored when it was stored, and Chain the value that it carried.
	Sequence uint64    `json:"sequence"`
	Row      uint64    `json:"row"`
	Stored   time.Time `json:"stored"`
	Chain    string    `json:"chain"`
	// Low is the low-water mark there, and Ahead counts the rows above it that had their
	// result. In stream order Low is Row.
	Low   uint64 `json:"low_water_mark"`
	Ahead int    `json:"ahead"`
	// Results and Claims count the messages that are dropped. All claims before the place
	// ClaimsBelow are among them. The claim at that place stays: it is the last one before
	// the remaining results.
	Results     uint64 `json:"results"`
	Claims      uint64 `json:"claims"`
	ClaimsBelow uint64 `json:"claims_below"`
	// Records counts these messages, with this one. Only the last is kept.
	Records uint64    `json:"records"`
	At      time.Time `json:"at"`
}

// DroppedSubject is where the owner of a partition records which results it has dropped.
// It is beside the log, so no owner is fenced by it. Name and partition may be *.
func DroppedSubject(prefix, name, partition string) string {
	return prefix + "." + name + ".dropped." + partition
}

// LastDropped returns the newest record of dropped results on a subject, and its place in
// the stream; nil where there is none.
func LastDropped(
	ctx context.Context, nc *nats.Conn, stream, subject string,
) (d *Dropped, at uint64, err error) {
	m, err := LastMessage(ctx, nc, stream, subject)
	if m == nil || err != nil {
		return nil, 0, err
	}
	d = new(Dropped)
	if err := json.Unmarshal(m.Data, d); err != nil {
		return nil, 0, fmt.Errorf("message %d of stream %s, on %s, is no record of dropped results: %w", m.Sequence, stream, subject, err)
	}
	return d, m.Sequence, nil
}
