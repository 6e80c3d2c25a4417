package consumer

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// messages makes the messages of results and dead letters, and knows how large a reply's
// body may be: what the headers leave of the largest message that the results stream
// takes, or the room of the bucket for large results. For example, a stream takes
// messages of 1 MB, the stage's headers have 900 bytes and the row's own 300: then the
// body may have 1 MB less 1,200 bytes.
//
// It is safe for concurrent use: the goroutine of the term asks for the room of a row, and
// the emitter makes the messages.
type messages struct {
	*connection
	cfg     *Config
	order   order
	subject string // of results
	// maxMessage is the largest message that the results stream takes.
	maxMessage atomic.Int32
}

// roomMin is the room that a result body is given at least: if the row's own headers
// leave less, they go.
const roomMin = 1024

// room is the room for a row's result body in one message of the results stream, in bytes.
// bare says that the row's own headers don't go with it, because they would leave less than
// roomMin, or be more than a server takes.
func (m *messages) room(row *Row) (bytes int, bare bool) {
	stage, own := m.headerBytes(row)
	left := int(m.maxMessage.Load()) - stage
	if left-own < roomMin || stage+own > streams.HeaderBytesMax {
		return max(0, left), own > 0
	}
	return left - own, false
}

// chainHeaderBytes is what the chain and the name of the row event take.
const chainHeaderBytes = len(streams.HeaderChain+streams.HeaderEvent) + 2*sha256.Size + 22 + 2*len(": \r\n")

// headerBytes returns how many bytes the headers of a row's result take: stage counts the
// headers that the stage adds, with the subject, and own the row's own headers.
func (m *messages) headerBytes(row *Row) (stage, own int) {
	// Status line, our own headers with generous values, the condition and the batch.
	const fixed, separators = 640 + chainHeaderBytes, len(": \r\n")
	stage = fixed + len(m.cfg.RunID) + len(m.subject) + len(row.Subject) + 2*len(row.StateID)
	if m.replaced(row) > 0 {
		stage += len(streams.HeaderReplaces) + len("18446744073709551615") + separators
	}
	if stream, seq := streams.Origin(row.Header); seq != "" {
		stage += len(streams.HeaderOriginStream+streams.HeaderOriginSeq) + len(stream) + len(seq) + 2*separators
	}
	trace := row.traceHeader()
	stage += m.order.headerBytes(row) + carriedBytes(trace, nil)
	return stage, carriedBytes(row.Header, trace)
}

// carriedBytes is the size of the headers of a row that go with its result, but for those
// that its trace replaces.
func carriedBytes(row, trace nats.Header) (bytes int) {
	const separators = len(": \r\n")
	for name, values := range row {
		if !streams.PassHeader(name) || trace[name] != nil {
			continue
		}
		name = streams.CarriedName(name)
		for _, value := range values {
			bytes += len(name) + len(value) + separators
		}
	}
	return bytes
}

// replaced returns the row whose place the result of a redriven row takes, or 0.
func (m *messages) replaced(row *Row) uint64 {
	return streams.Replaced(row.Header, m.cfg.Name, m.cfg.InputStream)
}

// roomInBucket is the largest body that goes to the bucket; 0 without one.
func (m *messages) roomInBucket() int {
	if m.cfg.ResultBucket == "" {
		return 0
	}
	return int(m.cfg.WindowBytes / largestPart)
}

// fit decides how a reply is stored: in a message of the results stream or, where that
// has no room for it, in the bucket of large results. It replaces one that neither has
// room for: a stream must never stand still for one row. That happens where the limit was
// lowered after the executor had looked at it.
func (m *messages) fit(row *Row) {
	room, bare := m.room(row)
	size := len(row.reply.Body)
	row.form.bare, row.form.large = bare, false
	switch {
	case size <= room:
		return
	case size <= m.roomInBucket():
		row.form.large = true
		stage, own := m.headerBytes(row)
		row.form.bare = bare || own > 0 && stage+own+objects.HeaderBytesMost > streams.HeaderBytesMax
		return
	}
	row.form.object = objects.Ref{}
	reply := *row.reply
	reply.Failed, reply.Event.Reason = true, reasonTooLarge
	row.MaxBodyBytes = room
	if f, ok := m.cfg.Executor.(Fitter); ok {
		reply.Body = f.ResultTooLarge(row, size, room)
	} else {
		reply.Body = fmt.Appendf(nil,
			`{"error":{"reason":%q,"error":"the result has %d bytes, the results stream has room for %d","errors":[]}}`,
			reasonTooLarge, size, room)
	}
	if len(reply.Body) > room {
		reply.Body = nil
	}
	row.reply = &reply
}

const reasonTooLarge = "result_too_large"

// resultMsg returns the message that stores the result of a row. Its [streams.HeaderChain]
// is there and has no value yet: that depends on the message before it.
func (m *messages) resultMsg(row *Row, owner string) *nats.Msg {
	own := 10 + m.order.headers() // ours and the group's; a map of more would cost two allocations more
	originStream, originSeq := streams.Origin(row.Header)
	header := make(nats.Header, len(row.Header)+own) // a row with an origin has headers that are not passed on
	if !row.form.bare {
		streams.Carry(header, row.Header, streams.PassHeader)
	}
	maps.Copy(header, row.traceHeader())
	set := headerValues{header: header, values: make([]string, 0, ownHeaders)}
	set.one(streams.HeaderSourceStream, m.cfg.InputStream)
	set.one(streams.HeaderSourceSeq, strconv.FormatUint(row.Seq, 10))
	set.one(streams.HeaderSourceSubject, row.Subject)
	set.one(streams.HeaderStatus, statusOf(row.reply))
	set.one(streams.HeaderStateID, row.StateID)
	set.one(streams.HeaderOwner, owner)
	if row.inTerm.event != "" {
		set.one(streams.HeaderEvent, row.inTerm.event)
	}
	set.one(streams.HeaderChain, "")
	m.order.setHeader(header, row)
	if originSeq != "" {
		set.one(streams.HeaderOriginStream, originStream)
		set.one(streams.HeaderOriginSeq, originSeq)
	}
	if first := m.replaced(row); first > 0 {
		set.one(streams.HeaderReplaces, strconv.FormatUint(first, 10))
	}
	msg := &nats.Msg{Subject: m.subject, Header: header, Data: row.reply.Body}
	if row.form.large {
		row.form.object.Set(header)
		msg.Data = nil
	}
	return msg
}

// ownHeaders is the most headers that the stage itself gives a result, without the
// headers of its order.
const ownHeaders = 11

// headerValues sets headers that have one value each. The values share one array: a slice
// of its own for each would be six allocations for a result in place of one.
type headerValues struct {
	header nats.Header
	values []string
}

// one sets a header.
func (h *headerValues) one(name, value string) {
	n := len(h.values)
	h.values = append(h.values, value)
	h.header[name] = h.values[n : n+1 : n+1]
}

// statusOf is the value of the Stage-Status header.
func statusOf(r *Reply) string {
	if r.Failed {
		return auditlog.RowError
	}
	return auditlog.RowSuccess
}

// headerError is why a dead letter's row failed, in one line.
const headerError = "Stage-Error"

// deadForm is how much of a failed row its dead letter holds: the most that fits into a
// message.
type deadForm int

const (
	deadWhole   deadForm = iota // the row, its reason and its error's text
	deadNoError                 // without the error's text, so that a row that fits is not lost
	deadCut                     // without body and headers of the row
)

func (m *messages) deadLetterMsg(row *Row, form deadForm) *nats.Msg {
	reason := cmp.Or(row.reply.Event.Reason, row.reply.UpstreamReason)
	msg := &nats.Msg{Subject: m.cfg.DeadLetterSubject, Data: row.message(), Header: nats.Header{
		streams.HeaderReason:  {reason},
		jetstream.MsgIDHeader: {row.StateID + "/dead-letter"},
	}}
	if form == deadCut {
		msg.Data = nil
		msg.Header[streams.HeaderTruncated] = []string{"true"}
		m.nameSource(msg.Header, row)
		return msg
	}
	streams.Carry(msg.Header, row.Header, func(name string) bool { return !streams.ForServer(name) })
	msg.Header[streams.HeaderReason] = []string{reason}
	// A row that is another stage's result has these headers already, as its lineage.
	if msg.Header[streams.HeaderSourceStream] == nil {
		msg.Header[streams.HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
		msg.Header[streams.HeaderSourceSubject] = []string{row.Subject}
	}
	delete(msg.Header, headerError) // an earlier stage's
	if text := errorLine(row); text != "" && form == deadWhole {
		msg.Header[headerError] = []string{text}
	}
	return msg
}

// nameSource writes into the headers of a dead letter which row it is.
func (m *messages) nameSource(h nats.Header, row *Row) {
	h[streams.HeaderSourceStream] = []string{m.cfg.InputStream}
	h[streams.HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
	h[streams.HeaderSourceSubject] = []string{row.Subject}
}

// tooLarge reports whether the server would refuse the message.
func (m *messages) tooLarge(msg *nats.Msg) bool {
	headers := streams.HeaderBytes(msg.Header)
	return headers > streams.HeaderBytesMax || headers+len(msg.Data) > int(m.nc.MaxPayload())
}

// errorBytesMax bounds the text of headerError.
const errorBytesMax = 500

// errorLine is the last error of a failed row as the value of a header: one line, in
// UTF-8.
func errorLine(row *Row) string {
	errs := row.reply.Event.Errors
	if len(errs) == 0 {
		return ""
	}
	text := errs[len(errs)-1].Error
	text = strings.ToValidUTF8(text[:min(len(text), errorBytesMax)], "")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}
