package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// States of a batch that only its records know, see [Batch].
const (
	// StateDone means that nothing is wanted of it any more.
	StateDone State = "done"
	// StateAbandoned means that it is given up, and its rows are in none or in another.
	StateAbandoned State = "abandoned"
)

// Batch is a batch as its records describe it: without the process that works on it,
// which knows more. So it is [StateIntent], [StateRunning], [StateDone] or
// [StateAbandoned].
type Batch struct {
	Partition int       `json:"partition"`
	Token     string    `json:"batch"`
	BatchID   string    `json:"batch_id"` // the provider's, empty until it has confirmed the batch
	Provider  string    `json:"provider"`
	Model     string    `json:"model"`
	State     State     `json:"state"`
	Rows      int       `json:"rows"`
	FirstRow  uint64    `json:"first_row"` // sequences in the input stream
	LastRow   uint64    `json:"last_row"`
	Bytes     int64     `json:"bytes"`
	Tokens    int64     `json:"estimated_tokens"` // or 0 if unknown
	CostUSD   float64   `json:"estimated_cost_usd"`
	Since     time.Time `json:"since"` // its intent was recorded
	AgeS      float64   `json:"age_seconds"`
	Submitted time.Time `json:"submitted,omitzero"`
	Adopted   bool      `json:"adopted"`
	Tentative bool      `json:"tentative"` // it may be another's batch: the ids of its results will tell
	Reason    string    `json:"reason"`    // why it was abandoned
	Uncertain bool      `json:"uncertain"` // it may exist at the provider all the same
	Owner     string    `json:"owner"`     // the term that recorded its intent
	Account   string    `json:"account"`   // fingerprint of the base URL and the key

	// Seqs are the sequences of its rows.
	Seqs []uint64 `json:"-"`
}

// Open reports whether the stage still wants something of the batch.
func (b *Batch) Open() bool { return b.State == StateIntent || b.State == StateRunning }

// Batches returns the batches that the stream of the lane has records of, of all
// partitions, the oldest first. A stream that does not exist is an error that wraps
// [jetstream.ErrStreamNotFound].
func Batches(ctx context.Context, js jetstream.JetStream, stream, name string, partitions int, now time.Time) ([]Batch, error) {
	if _, err := streams.Look(ctx, js, stream); err != nil {
		return nil, err
	}
	var all []Batch
	for p := range partitions {
		records, err := Records(ctx, js, stream, name, p)
		if err != nil {
			return nil, err
		}
		all = append(all, fold(records, p, now)...)
	}
	slices.SortStableFunc(all, func(a, b Batch) int { return a.Since.Compare(b.Since) })
	return all, nil
}

// fold makes batches of the records of a partition. What a purge has left of a batch
// without its intent is no batch.
func fold(records []Record, partition int, now time.Time) []Batch {
	var all []Batch
	at := make(map[string]int)
	for i := range records {
		r := &records[i]
		if r.Kind == RecordIntent {
			at[r.Token] = len(all)
			all = append(all, recordedBatch(r, partition, now))
			continue
		}
		if k, has := at[r.Token]; has {
			all[k].add(r)
		}
	}
	return all
}

func recordedBatch(r *Record, partition int, now time.Time) Batch {
	b := Batch{
		Partition: partition, Token: r.Token, Provider: r.Provider, Model: r.Model, State: StateIntent, Bytes: r.Bytes, Tokens: r.Tokens,
		CostUSD: r.Cost, Since: r.Time, AgeS: max(0, now.Sub(r.Time).Seconds()), Owner: r.Owner, Account: r.Account,
	}
	if r.Rows != nil && len(r.Rows.Seqs) > 0 {
		b.Seqs = r.Rows.Seqs
		b.Rows, b.FirstRow, b.LastRow = len(b.Seqs), b.Seqs[0], b.Seqs[len(b.Seqs)-1]
	}
	return b
}

// add changes the batch by a later record.
func (b *Batch) add(r *Record) {
	switch r.Kind {
	case RecordSubmitted:
		b.State, b.BatchID, b.Submitted, b.Adopted, b.Tentative = StateRunning, r.BatchID, r.Time, r.Adopted, r.Tentative
	case RecordDone:
		b.State = StateDone
	case RecordAbandoned:
		b.State, b.Reason, b.Uncertain = StateAbandoned, r.Reason, r.Uncertain
	case RecordClaim, RecordIntent: // of no batch, and handled by the caller
	}
}

// errNoBatch is returned by [FindBatch] where no batch, or more than one, has the name.
var errNoBatch = errors.New("no such batch")

// FindBatch returns the batch whose token, or the id that the provider has given it, is
// name, or the only one whose token begins with it.
func FindBatch(all []Batch, name string) (*Batch, error) {
	if name == "" {
		return nil, fmt.Errorf("%w: the name is empty", errNoBatch)
	}
	var found []*Batch
	for i := range all {
		b := &all[i]
		if b.Token == name || b.BatchID == name {
			return b, nil
		}
		if strings.HasPrefix(b.Token, name) {
			found = append(found, b)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%w: %q", errNoBatch, name)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%w: %d batches begin with %q, such as %s and %s", errNoBatch, len(found), name, found[0].Token, found[1].Token)
}
