// Package auditlog defines the audit events of a stage, writes them as JSON, and reads
// them.
//
// There are four kinds. A [Call] is one HTTP attempt, or one line of a provider's batch.
// A [Row] is one row that is ready to be emitted. A [Run] is a change in the life of a
// process or of its ownership of a partition, and a [Batch] is a change in the life of a
// provider's batch. Each is one message. It begins with the same [Header] and then has
// its own fields, always in the order of the struct. The JSON Schemas are in
// docs/schemas.
//
//	c := auditlog.Call{Header: head, StateID: id, Owner: owner, Status: auditlog.CallSuccess, Response: body}
//	buf = c.AppendJSON(buf[:0], auditlog.PayloadsFull, maxPayload) // no allocation once buf is large enough
//	publish(buf, c.MsgID())                                        // a repeated publish stores nothing twice
//
//	e, err := auditlog.Decode(msg) // for readers
//	if err == nil && e.Kind == auditlog.KindCall { fmt.Println(e.Time, e.Call.Status) }
//
// The tag of a field gives its name in JSON and the treatment of its zero value. With the
// option null it is written as null, because an unknown value differs from 0: unknown
// tokens are not zero tokens. With the option omit the member is left out. A nil pointer
// without an option is null. Durations are in milliseconds.
//
// Credentials must never be in an event. The package does not know them, so the caller
// that fills an event leaves them out.
//
// The package is pure: it starts no goroutine and reads no clock. Events are plain
// values, and to encode one only reads it.
//
// Other programs may rely on the JSON of events, within a [SchemaVersion], and on reading
// it: Decode, the types that it returns, and their sums. Writing events serves this
// program and may change with any release.
package auditlog

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// SchemaVersion is written into every event. It changes when a field changes its meaning
// or is removed; fields may be added without a new version, so readers ignore fields that
// they do not know.
const SchemaVersion = 1

// Kind is the sort of an event: its "event" field and the last token of its subject.
type Kind string

// The kinds of events.
const (
	KindCall  Kind = "call"
	KindRow   Kind = "row"
	KindRun   Kind = "run"
	KindBatch Kind = "batch"
)

// Header is what every event begins with.
type Header struct {
	// Time is when the event happened. It is written in UTC with nanoseconds.
	Time time.Time `event:"time"`
	// RunID names the process, one for each start.
	RunID string `event:"run_id"`
	// Stage is the stage's name.
	Stage string `event:"stage"`
	// Partition is the partition that the event is about, or [All].
	Partition Partition `event:"partition"`
}

// Partition is the number of a partition, counted from 0, or [All].
type Partition int

// All stands for the whole process in place of a single partition. In JSON and in
// subjects it is "all".
const All Partition = -1

// String returns the number in decimal, or "all": the token that stands for the partition
// in a subject.
func (p Partition) String() string {
	if p == All {
		return "all"
	}
	return strconv.Itoa(int(p))
}

// MarshalJSON writes a number, or "all". It never fails.
func (p Partition) MarshalJSON() ([]byte, error) { return appendPartition(nil, p), nil }

// UnmarshalJSON reads what MarshalJSON writes. Other negative numbers than [All]
// are an error.
func (p *Partition) UnmarshalJSON(data []byte) error {
	if string(data) == `"all"` {
		*p = All
		return nil
	}
	n, err := strconv.Atoi(string(data))
	if err != nil || n < 0 {
		return fmt.Errorf(`partition %.40s: want a number from 0 or "all"`, data)
	}
	*p = Partition(n)
	return nil
}

// Usage counts the tokens of one call, or of all calls of a row, as the server reported
// them. A nil *Usage is written as null: nothing was reported. So are the fields that are
// nil, unless their own comments say otherwise.
type Usage struct {
	// PromptTokens counts all tokens read, cached ones included.
	PromptTokens int64 `event:"prompt_tokens"`
	// CompletionTokens counts all tokens written, hidden reasoning included.
	CompletionTokens int64 `event:"completion_tokens"`
	// TotalTokens is the server's own total, or the sum of the two.
	TotalTokens int64 `event:"total_tokens"`
	// CachedTokens is the part of PromptTokens that came from a cache. It is nil if the
	// server did not report it.
	CachedTokens *int64 `event:"cached_tokens"`
	// CacheWriteTokens is the part of PromptTokens that was written to a cache. It is
	// nil, and left out of the event, where the server did not report it.
	CacheWriteTokens *int64 `event:"cache_write_tokens,omit"`
	// CacheWrite1hTokens is the part of CacheWriteTokens that is kept for an hour. It is
	// nil, and left out of the event, where the server did not report it.
	CacheWrite1hTokens *int64 `event:"cache_write_1h_tokens,omit"`
	// ReasoningTokens is the part of CompletionTokens that was hidden reasoning. It is
	// nil if the server did not report it.
	ReasoningTokens *int64 `event:"reasoning_tokens"`
	// CostUSD is the price in US dollars. It is nil if the price is not known.
	CostUSD *float64 `event:"cost_usd"`
}

// Payloads is how much of a request and of its reply a [Call] event holds. The zero value
// is [PayloadsFull].
type Payloads uint8

// The three values of Payloads.
const (
	// PayloadsFull writes bodies and hashes.
	PayloadsFull Payloads = iota
	// PayloadsHash writes only the hashes: equal requests can still be recognised.
	PayloadsHash
	// PayloadsNone writes neither: with a hash, a guess at a short prompt could be
	// verified.
	PayloadsNone
)

var payloadsText = [...]string{PayloadsFull: "full", PayloadsHash: "hash", PayloadsNone: "none"}

// String returns "full", "hash" or "none", as the configuration spells them.
func (p Payloads) String() string {
	if int(p) < len(payloadsText) {
		return payloadsText[p]
	}
	return fmt.Sprintf("Payloads(%d)", uint8(p))
}

// MarshalText returns what String returns. It never fails.
func (p Payloads) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads "full", "hash" or "none"; anything else is an error.
func (p *Payloads) UnmarshalText(text []byte) error {
	for i, name := range payloadsText {
		if name == string(text) {
			*p = Payloads(i)
			return nil
		}
	}
	return fmt.Errorf("audit payloads %.40q: want full, hash or none", text)
}

// StateID is the permanent name of one row of one input stream: <name>/<input
// stream>/<partition>/<sequence>.
func StateID(name, stream string, partition Partition, seq uint64) string {
	var buf [96]byte
	b := append(append(append(append(buf[:0], name...), '/'), stream...), '/')
	if partition == All {
		b = append(b, "all"...)
	} else {
		b = strconv.AppendInt(b, int64(partition), 10)
	}
	return string(strconv.AppendUint(append(b, '/'), seq, 10))
}

// itemMark separates the state id of a row and the index of one of its elements.
const itemMark = '#'

// ItemStateID returns the state id of an element of a row, counted from 0: <state
// id>#<index>.
func ItemStateID(row string, index int) string {
	return string(strconv.AppendInt(append([]byte(row), itemMark), int64(index), 10))
}

// RowStateID returns the state id of the row that a state id names: one of a row, or of
// an element.
func RowStateID(id string) string {
	row, _, _ := strings.Cut(id, string(itemMark))
	return row
}

// MsgID is the permanent name of one event, for the Nats-Msg-Id header: <state
// id>/<owner>/<kind>/<index>. The same event always has the same id within a term of
// ownership, so repeating a publish after a lost answer stores nothing twice.
func MsgID(stateID, owner string, kind Kind, index int) string {
	var buf [160]byte
	b := append(append(append(append(buf[:0], stateID...), '/'), owner...), '/')
	return string(strconv.AppendInt(append(append(b, kind...), '/'), int64(index), 10))
}
