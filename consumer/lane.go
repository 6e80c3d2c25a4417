package consumer

import (
	"context"
	"time"
)

// Lane has rows answered outside of the window, for hours: by a provider's Batch API. Such a row is *parked*: it keeps
// its place in the order, and nothing else is held of it. Its body stays in the input stream and its reply goes to the
// journal, from where both are read again when its turn comes.
//
// A row comes into the lane by way of the executor, which parks it ([Reply.Parked]), and comes back to the executor
// when the lane recalls it. Its methods are called from the goroutine of [Consumer.Run], and must not block but for
// Open and Close.
type Lane interface {
	// Open begins a term of ownership, after the claim: it reads what earlier terms have recorded, behind a fence of the
	// lane's own, so that they can record nothing more.
	Open(ctx context.Context, term LaneTerm) error
	// Holds is asked of each row taken of which no reply is kept. True: it is in a batch, and parked at once.
	Holds(row *Row) bool
	// Kept reports that the row does not need its batch any more: its reply is in the journal, its result stored, or the
	// row no longer in the input.
	Kept(seq uint64)
	// Stop is called once when the term begins to stop: nothing is submitted from then on.
	Stop()
	// Close ends the term, and returns when nothing of the lane runs.
	Close()
}

// LaneTerm is a term of ownership, as a [Lane] sees it. Its functions are safe for concurrent use, do not block, and do
// nothing once the term has ended.
type LaneTerm struct {
	// Owner names the term. Rows up to Low are emitted. InputCreated names the input stream that sequences refer to.
	Owner        string
	Low          uint64
	InputCreated time.Time
	// Recall brings a parked row back to the executor, with [Row.Errand] as given, as soon as the window has room: recalls
	// are served in order. A row that is parked a moment later is recalled then.
	Recall func(seq uint64, errand any)
	// Fenced ends the term: the lane has found that another owns the partition.
	Fenced func(error)
}
