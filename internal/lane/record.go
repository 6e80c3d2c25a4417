package lane

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// RecordKind is what a [Record] says.
type RecordKind string

// The kinds of records.
const (
	// RecordClaim begins a term of ownership. All records after it are of this term, or
	// of a later one.
	RecordClaim RecordKind = "claim"
	// RecordIntent is stored before a batch is submitted.
	RecordIntent RecordKind = "intent"
	// RecordSubmitted says that the provider has the batch, under which id.
	RecordSubmitted RecordKind = "submitted"
	// RecordDone says that nothing is wanted of the batch any more: all its rows are
	// kept, or in a later batch.
	RecordDone RecordKind = "done"
	// RecordAbandoned says that the batch is given up: its rows go into others, or live.
	RecordAbandoned RecordKind = "abandoned"
)

// Record is one message of the lane's stream. The records of a batch are on
// `lane.<name>.<partition>.<token>`, claims on `lane.<name>.<partition>.claim`.
type Record struct {
	Kind  RecordKind `json:"kind"`
	Token string     `json:"token,omitempty"`
	Time  time.Time  `json:"time"`
	// Owner names the term that wrote it.
	Owner string `json:"owner"`
	// InputCreated names the input stream that the rows' sequences refer to; in claims
	// and intents.
	InputCreated time.Time `json:"input_created,omitzero"`

	// Of an intent:

	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	// Account is a fingerprint of the base URL and the key: another account does not see
	// the batch.
	Account string `json:"account,omitempty"`
	// Rows of the batch, in ascending order.
	Rows *Rows `json:"rows,omitempty"`
	// Bytes and InputSHA256 are the size and the hash of its lines.
	Bytes       int64  `json:"bytes,omitempty"`
	InputSHA256 string `json:"input_sha256,omitempty"`
	// Tokens and Cost (USD) are estimates, 0 if they are not known.
	Tokens int64   `json:"tokens,omitempty"`
	Cost   float64 `json:"cost_usd,omitempty"`

	// Of a submitted batch:

	// BatchID is the provider's id of it.
	BatchID string `json:"batch_id,omitempty"`
	// Adopted means that its creation got no answer, and that it was found at the
	// provider. Tentative means that it may be another's, as the provider's list shows no
	// token. The ids of its results will tell.
	Adopted   bool `json:"adopted,omitempty"`
	Tentative bool `json:"tentative,omitempty"`

	// Reason is why a batch is abandoned. Uncertain means that it may exist at the
	// provider all the same.
	Reason    string `json:"reason,omitempty"`
	Uncertain bool   `json:"uncertain,omitempty"`
	// RowCount is how many rows an abandoned batch has.
	RowCount int `json:"row_count,omitempty"`

	// Sequence is the record's own in the stream; not part of the message.
	Sequence uint64 `json:"-"`
}

// Rows are the rows of a batch, sorted by sequence, one entry of each slice for each row.
type Rows struct {
	// Seqs are the sequences in the input stream.
	Seqs []uint64
	// Hashes are the first 8 bytes of the hashes of their requests.
	Hashes []uint64
	// Tries counts the batches that the row was in before. It is nil if no row was in any.
	Tries []uint8
	// Deadlines are when the rows go live, in Unix milliseconds, 0 for never. It is nil
	// if no row has one.
	Deadlines []int64
}

// rowsJSON is how rows are written: 50,000 take less than a message holds.
type rowsJSON struct {
	N         int    `json:"n"`
	Seqs      string `json:"seqs"`      // varints of the differences
	Hashes    string `json:"hashes"`    // 8 bytes each
	Tries     string `json:"tries"`     // a byte each, or empty
	Deadlines string `json:"deadlines"` // varints of the differences, zigzag, or empty
}

// MarshalJSON implements [json.Marshaler].
func (r *Rows) MarshalJSON() ([]byte, error) {
	w := rowsJSON{N: len(r.Seqs)}
	var b []byte
	var last uint64
	for _, seq := range r.Seqs {
		b = binary.AppendUvarint(b, seq-last)
		last = seq
	}
	w.Seqs = base64.StdEncoding.EncodeToString(b)
	b = b[:0]
	for _, hash := range r.Hashes {
		b = binary.BigEndian.AppendUint64(b, hash)
	}
	w.Hashes = base64.StdEncoding.EncodeToString(b)
	w.Tries = base64.StdEncoding.EncodeToString(r.Tries)
	b = b[:0]
	var before int64
	for _, at := range r.Deadlines {
		b = binary.AppendVarint(b, at-before)
		before = at
	}
	w.Deadlines = base64.StdEncoding.EncodeToString(b)
	return json.Marshal(w)
}

var errRows = errors.New("the rows of a batch can't be read")

// UnmarshalJSON implements [json.Unmarshaler].
func (r *Rows) UnmarshalJSON(data []byte) error {
	var w rowsJSON
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	var parts [4][]byte
	for i, text := range []string{w.Seqs, w.Hashes, w.Tries, w.Deadlines} {
		var err error
		if parts[i], err = base64.StdEncoding.DecodeString(text); err != nil {
			return fmt.Errorf("%w: %w", errRows, err)
		}
	}
	if w.N < 0 || w.N > len(parts[0]) || len(parts[1]) != 8*w.N || len(parts[2]) != 0 && len(parts[2]) != w.N {
		return fmt.Errorf("%w: %d rows do not fit what there is of them", errRows, w.N)
	}
	*r = Rows{Seqs: make([]uint64, w.N), Hashes: make([]uint64, w.N)}
	var last uint64
	for i := range w.N {
		diff, n := binary.Uvarint(parts[0])
		if n <= 0 || i > 0 && diff == 0 || last+diff < last {
			return fmt.Errorf("%w: sequences", errRows)
		}
		last += diff
		r.Seqs[i], parts[0] = last, parts[0][n:]
		r.Hashes[i] = binary.BigEndian.Uint64(parts[1][8*i:])
	}
	if len(parts[2]) > 0 {
		r.Tries = parts[2]
	}
	if len(parts[3]) == 0 {
		return nil
	}
	r.Deadlines = make([]int64, w.N)
	var before int64
	for i := range w.N {
		diff, n := binary.Varint(parts[3])
		if n <= 0 {
			return fmt.Errorf("%w: deadlines", errRows)
		}
		before += diff
		r.Deadlines[i], parts[3] = before, parts[3][n:]
	}
	return nil
}

// Subjects of the records.
const claimToken = "claim"

func subjectPrefix(name string, partition int) string {
	return "lane." + name + "." + strconv.Itoa(partition) + "."
}

// Filter matches all records of a partition.
func Filter(name string, partition int) string { return subjectPrefix(name, partition) + ">" }

// Records returns what the lane's stream holds of a partition, in its order.
func Records(ctx context.Context, js jetstream.JetStream, stream, name string, partition int) ([]Record, error) {
	var all []Record
	err := eachRecord(ctx, js, stream, Filter(name, partition), func(r *Record) { all = append(all, *r) })
	return all, err
}

// eachRecord calls f with each record that the stream holds on the filter at the moment.
func eachRecord(ctx context.Context, js jetstream.JetStream, stream, filter string, f func(*Record)) error {
	asking, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	reading, err := streams.Read(asking, js, stream, jetstream.ConsumerConfig{FilterSubject: filter, InactiveThreshold: 2 * streams.RequestTimeout})
	if err != nil {
		return fmt.Errorf("read the batches of stream %s: %w", stream, streams.Denied(js.Conn(), err))
	}
	defer reading.Close()
	for m, err := range reading.All(ctx) {
		if err != nil {
			return fmt.Errorf("read the batches of stream %s: %w", stream, streams.Denied(js.Conn(), err))
		}
		r, err := parseRecord(m.Data)
		if err != nil {
			return fmt.Errorf("read the batches of stream %s: message %d on %s: %w", stream, m.Sequence, m.Subject, err)
		}
		r.Sequence = m.Sequence
		f(r)
	}
	return nil
}

func parseRecord(data []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("no record of the batch lane: %w", err)
	}
	known := []RecordKind{RecordClaim, RecordIntent, RecordSubmitted, RecordDone, RecordAbandoned}
	switch {
	case !slices.Contains(known, r.Kind):
		return nil, fmt.Errorf("a record of kind %q, which this stage does not know: a newer stage has written it; upgrade this one", r.Kind)
	case r.Kind == RecordIntent && r.Rows == nil:
		return nil, errors.New("the record of an intent names no rows")
	}
	return r, nil
}
