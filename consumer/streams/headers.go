package streams

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// Headers of a result, and of a row that is itself a result of another stage.
const (
	HeaderSourceStream  = "Stage-Source-Stream"
	HeaderSourceSeq     = "Stage-Source-Seq"
	HeaderSourceSubject = "Stage-Source-Subject"
	HeaderStatus        = "Stage-Status"
	HeaderStateID       = "Stage-State-Id"
	HeaderOwner         = "Stage-Owner"
	// HeaderOriginStream and HeaderOriginSeq name, on a result whose row came from
	// another stage, the first row of the chain.
	HeaderOriginStream = "Stage-Origin-Stream"
	HeaderOriginSeq    = "Stage-Origin-Seq"
	// HeaderLow is, on a result or claim of a stage that is not in stream order, the
	// low-water mark: with this message stored, every row of the input at or below it has
	// its result. HeaderAhead counts the rows above it that have one, too, and
	// HeaderAheadFrom is a sequence of the result stream before which none of their
	// results lies; both are absent where there is no such row.
	HeaderLow       = "Stage-Low"
	HeaderAhead     = "Stage-Ahead"
	HeaderAheadFrom = "Stage-Ahead-From"
	// HeaderChain is, on a result or claim, the hash of all messages of the log of its
	// partition up to it: 64 hexadecimal digits, see docs/reliability.md.
	HeaderChain = "Stage-Chain"
	// HeaderEvent is, on a result, the name of its row event: the first 16 bytes of the
	// event's SHA-256, in base64url without padding.
	HeaderEvent = "Stage-Event"
	// HeaderRecorded is on an event of the audit that is stored shorter than it was
	// recorded. It is the SHA-256 of the event as recorded, in hexadecimal.
	HeaderRecorded = "Stage-Recorded"
	// HeaderKey is the row's key, on a result of a stage that is in order by key. See
	// [KeyHeader].
	HeaderKey = "Stage-Key"
	// HeaderObject names, on a result whose body is larger than a message, the object that
	// holds the body, as BUCKET/NAME. HeaderObjectDigest is the SHA-256 of the body as the
	// object store writes it, "SHA-256=" and base64url with padding, and
	// HeaderObjectBytes its size. The message itself has no body.
	HeaderObject       = "Stage-Object"
	HeaderObjectDigest = "Stage-Object-Digest"
	HeaderObjectBytes  = "Stage-Object-Bytes"
	// HeaderModel on a row overrides the model of its request.
	HeaderModel = "Stage-Model"
	// HeaderLane on a row chooses its lane, live or batch, and HeaderDeadline until when
	// its result must be there: a duration from its arrival in the stream, or an instant
	// in RFC 3339. Both mean nothing without a batch lane.
	HeaderLane     = "Stage-Lane"
	HeaderDeadline = "Stage-Deadline"
	// HeaderReason names the reason of a failed row on the dead letter subject.
	HeaderReason = "Stage-Reason"
	// HeaderTruncated says of a dead letter that the row, which is named, left no room
	// for the reason and is not in it.
	HeaderTruncated = "Stage-Truncated"
	// HeaderErased is on the tombstone of an erased row, and on what is left of an event
	// of its: when it was erased, and by whom.
	HeaderErased = "Stage-Erased"
	// HeaderErasedSeq is beside it on an event. It is the sequence in the audit stream of
	// the event that this one stands for.
	HeaderErasedSeq = "Stage-Erased-Seq"
	// HeaderRows is on the event of a call that served several rows of the input stream. It
	// is the lowest and the highest sequence of these, as "12-75", so that a search for one
	// row need not read the events of all other calls.
	HeaderRows = "Stage-Rows"
	// HeaderItem is the element of the row that an entry of the journal belongs to,
	// counted from 0. An entry without it belongs to the whole row.
	HeaderItem = "Stage-Item"
)

// Headers of a row that a load has published.
const (
	// HeaderLoadID and HeaderLoadRow name the file that a row comes from, and its place
	// there, counted from 1.
	HeaderLoadID  = "Stage-Load-Id"
	HeaderLoadRow = "Stage-Load-Row"
	// HeaderRowError marks a row whose own body no message can hold, with the reason of
	// its error result; HeaderRowSize and HeaderRowLimit say its size in bytes and what
	// there is room for. The body then is the beginning of the row's.
	HeaderRowError = "Stage-Row-Error"
	HeaderRowSize  = "Stage-Row-Size"
	HeaderRowLimit = "Stage-Row-Limit"
	// HeaderRowProblem says why a row can't be read from its file, such as a CSV record
	// with too many columns. The body then is the problem, a colon, a space and the
	// beginning of the row.
	HeaderRowProblem = "Stage-Row-Problem"
)

// Headers that speak to the server, and for which the client library has no names.
const (
	HeaderPinID       = "Nats-Pin-Id"
	HeaderBatchID     = "Nats-Batch-Id"
	HeaderBatchSeq    = "Nats-Batch-Sequence"
	HeaderBatchCommit = "Nats-Batch-Commit"
)

// HeaderBytesMax is how many bytes a server takes as the headers of one message of a
// stream.
const HeaderBytesMax = 1<<16 - 1

// PassHeader reports whether a row's header goes on to its result: all but those that
// speak to the server or of a stage.
func PassHeader(name string) bool { return !ForServer(name) && !strings.HasPrefix(name, "Stage-") }

// ForServer reports whether a header of this name speaks to the server, which does as it
// says: Nats-Rollup deletes messages, Nats-TTL the message itself. It is not copied from
// one message to another.
func ForServer(name string) bool { return strings.HasPrefix(name, "Nats-") }

// CarriedName returns the name under which a header of a stranger's message goes on to
// another message: the same, as a rule. A byte that the client library refuses in a name
// is written as % and two hexadecimal digits, so that user@tenant becomes user%40tenant.
// The S of the name Status is, too: client libraries take a message with such a header
// for one of the server's own, some only where there is no body, and others always.
func CarriedName(name string) string {
	if name == "Status" {
		return "%53tatus"
	}
	refused := 0
	for i := range len(name) {
		if !inName[name[i]] {
			refused++
		}
	}
	if refused == 0 {
		return name
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(name)+2*refused)
	for i := range len(name) {
		if c := name[i]; inName[c] {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// inName has the bytes that the client library takes in the name of a header.
var inName = func() (allowed [256]bool) {
	for c := byte('!'); c <= '~'; c++ {
		allowed[c] = !strings.ContainsRune(`"()/,:;<=>?@[\]{}`, rune(c))
	}
	return allowed
}()

// Carry copies the headers of a stranger's message that pass selects, as [CarriedName]
// names them. Where a message has a header of the carried name already, that one counts.
// In a value, the client library writes a line break as a space, and leaves out the
// blanks around it.
func Carry(to, from nats.Header, pass func(name string) bool) {
	for name, values := range from {
		if !pass(name) {
			continue
		}
		carried := CarriedName(name)
		if _, both := from[carried]; both && carried != name {
			continue
		}
		to[carried] = values
	}
}

// CarriedValues returns the values of a header of a row. It may be a copy, which has the
// header as [CarriedName] names it.
func CarriedValues(row nats.Header, name string) []string {
	if values := row[name]; len(values) > 0 {
		return values
	}
	return row[CarriedName(name)]
}

// HeaderBytes is what headers take in a message, and none of their names is refused.
func HeaderBytes(h nats.Header) int {
	bytes := len("NATS/1.0\r\n\r\n")
	for name, values := range h {
		for _, value := range values {
			bytes += len(name) + len(": \r\n") + len(value)
		}
	}
	return bytes
}
