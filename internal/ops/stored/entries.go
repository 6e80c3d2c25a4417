package stored

import (
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// ResultRow is a result by its headers.
type ResultRow struct {
	At      uint64    // its sequence in the result stream
	Stored  time.Time // when the server stored it
	Seq     uint64    // of its row in the input stream; 0 means that it names none
	Owner   string    // the term that answered the row
	Status  string    // success or error
	StateID string
	Source  string // the input stream that it names
	// Replaces is the sequence of the row whose place it takes, as its header has it. It is
	// empty if it takes the place of no other row.
	Replaces string
	// Subject is the subject of the row. Header has the result's own headers, and the
	// headers of the row that it passes on.
	Subject string
	Header  nats.Header
	// Progress and Key are set for a result that is not in stream order. Key is nil if it
	// has none.
	Progress Progress
	Key      *string
	// Body is empty where the reader has only headers, and where it is an Object.
	Body   []byte
	Object *objects.Ref
}

// Claim is the beginning of a term: an owner took over a partition.
type Claim struct {
	At      uint64    // its sequence in the result stream
	Stored  time.Time // when the server stored it
	Owner   string    // the term
	Mark    uint64    // high-water mark: the sequence of the last row that had its result
	Version int       // of the format
	Input   string    // the input stream
	Created time.Time // when the input stream was created
	// Order is the order of the results after the claim, as it is written there. It is
	// empty for stream order. Key is where a row's key is.
	Order    streams.Order
	Key      string
	Progress Progress // of a claim whose results are not in stream order
	// Header and Body are the message.
	Header nats.Header
	Body   []byte
}

// Progress says how far the rows of the input had their results when a message of the log
// was stored, by the headers of that message.
type Progress struct {
	// Named is set if the message has these headers, and they are numbers.
	Named bool
	// Low, Ahead and From are the headers [streams.HeaderLow], [streams.HeaderAhead] and
	// [streams.HeaderAheadFrom]. A header that the message does not have is 0.
	Low, Ahead, From uint64
}

// ProgressOf reads the headers of a message of the log.
func ProgressOf(h nats.Header) (p Progress) {
	p.Named = len(h[streams.HeaderLow]) > 0
	for name, number := range map[string]*uint64{
		streams.HeaderLow: &p.Low, streams.HeaderAhead: &p.Ahead, streams.HeaderAheadFrom: &p.From,
	} {
		if text := h[name]; len(text) > 0 {
			var err error
			*number, err = strconv.ParseUint(text[0], 10, 64)
			p.Named = p.Named && err == nil
		}
	}
	return p
}

// InputRow is a row of the input.
type InputRow struct {
	Seq     uint64 // or 0 if there is no further row
	Subject string
	Header  nats.Header
	Body    []byte // empty where the reader has only headers, and until Fetch where it is an object
	// Unreadable says that there is no body, since the object that should hold it is gone
	// or damaged.
	Unreadable bool
}

// SameInput reports whether both claims are about the same input stream, and not only about
// streams of the same name.
func (c Claim) SameInput(o Claim) bool {
	return c.Input == o.Input && c.Created.Equal(o.Created)
}
