// Package lane has rows answered by a provider's Batch API: half the price, an answer within a day.
//
// Rows gather into a batch. Before it is submitted an intent is recorded: a token, the rows, the hashes of their
// requests. The token travels with the batch, so whoever takes the partition over finds it at the provider and adopts
// it; it is given up only when it is surely absent. Answers are matched by custom id, go through the executor like
// those of live calls, and wait for their turn in the journal.
package lane

import (
	"context"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// Lane is the batch lane of one partition. It implements [consumer.Lane].
type Lane struct{}

var _ consumer.Lane = (*Lane)(nil)

// Request is a row that joins the lane.
type Request struct {
	Seq      uint64
	Key      string // of the request, see [call.Target.Key]
	Prepared *llm.Prepared
	Tokens   int64     // estimate of what the call may use
	Cost     float64   // estimate in USD at the batch's price; 0: unknown
	Deadline time.Time // when the row goes live; zero: never
}

// Errand is what a recalled row is to do ([consumer.Row.Errand]). Nil: join the lane, or be answered by what is kept.
type Errand struct {
	// Live: be called live.
	Live bool
	// Line is the row's answer, and Key the hash of the request that it answers; nil with Live.
	Line *batchapi.Line
	Key  string
	// BatchID is the provider's id of the batch, Token ours.
	BatchID, Token string
	// Tries counts the batches that the row was in before without an answer that counts.
	Tries int
}

// Add takes a row into the lane. The caller parks the row right after. Safe for concurrent use; it does not block.
func (l *Lane) Add(r Request) {}

// Again reports that the answer of an errand did not settle the row: its failure may pass, or it answers another
// request. The caller parks the row; the lane recalls it later. Safe for concurrent use; it does not block.
func (l *Lane) Again(seq uint64, e *Errand, failure *llm.Error) {}

// Open implements [consumer.Lane].
func (l *Lane) Open(ctx context.Context, term consumer.LaneTerm) error { return nil }

// Holds implements [consumer.Lane].
func (l *Lane) Holds(row *consumer.Row) bool { return false }

// Kept implements [consumer.Lane].
func (l *Lane) Kept(seq uint64) {}

// Stop implements [consumer.Lane].
func (l *Lane) Stop() {}

// Close implements [consumer.Lane].
func (l *Lane) Close() {}
