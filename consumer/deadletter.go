package consumer

import (
	"cmp"
	"strconv"
	"strings"
	"unicode"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// headerError is why a dead letter's row failed, in one line.
const headerError = "Stage-Error"

// deadForm is how much of a failed row its dead letter holds: the most that fits into a
// message.
type deadForm int

const (
	deadWhole   deadForm = iota // the row, and what is known of it
	deadNoError                 // without the error's text: a row that fits must not be lost for its sake
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
	if msg.Header[streams.HeaderSourceStream] == nil { // else the row is another stage's result, and its headers are its lineage
		msg.Header[streams.HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
		msg.Header[streams.HeaderSourceSubject] = []string{row.Subject}
	}
	delete(msg.Header, headerError) // an earlier stage's
	if text := errorLine(row); text != "" && form == deadWhole {
		msg.Header[headerError] = []string{text}
	}
	return msg
}

// message is the body of the row's message, which is empty where the row's body is an
// object.
func (r *Row) message() []byte {
	if r.elsewhere != nil {
		return nil
	}
	return r.Body
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

// errorLine is the last error of a failed row as the value of a header: one line, in UTF-8.
func errorLine(row *Row) string {
	errs := row.reply.Event.Errors
	if len(errs) == 0 {
		return ""
	}
	text := errs[len(errs)-1].Error
	text = strings.ToValidUTF8(text[:min(len(text), errorBytesMax)], "")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}
