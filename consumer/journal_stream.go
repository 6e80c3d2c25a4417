package consumer

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// wholeRow takes the place of an element's index where the reply is to the whole row.
	wholeRow = -1
	// wholeRowToken is the last token of the subject then.
	wholeRowToken = "row"
)

// keptRef names a row, or an element of one, whose reply is in the journal.
type keptRef struct {
	row  uint64
	item int // the element, or wholeRow
}

func (r keptRef) compare(other keptRef) int {
	return cmp.Or(cmp.Compare(r.row, other.row), cmp.Compare(r.item, other.item))
}

// keptStream is the partition's part of the stream that holds the journal: under which
// subjects replies are kept, what their entries look like, and how they are removed. For
// example, the reply to row 7 of partition 0 is on journal.stage.0.7.row, and the reply to
// its element 1 on journal.stage.0.7.1. It never changes, and is safe for concurrent use.
type keptStream struct {
	*connection
	cfg *Config
	// created names the input stream to whose sequences the entries refer. An entry about
	// an earlier input stream is none.
	created time.Time
}

// filter matches the subjects of all replies of the partition.
func (k *keptStream) filter() string {
	return streams.JournalSubjects(k.cfg.Name, k.cfg.Partition)
}

// rowFilter matches the subjects of the replies to a row and to its elements.
func (k *keptStream) rowFilter(row uint64) string {
	return k.prefix() + strconv.FormatUint(row, 10) + ".*"
}

func (k *keptStream) prefix() string {
	return streams.JournalPrefix(k.cfg.Name, k.cfg.Partition)
}

// subject is where the reply to a row or to an element is kept, and ref reads such a
// subject.
func (k *keptStream) subject(ref keptRef) string {
	last := wholeRowToken
	if ref.item != wholeRow {
		last = strconv.Itoa(ref.item)
	}
	return k.prefix() + strconv.FormatUint(ref.row, 10) + "." + last
}

func (k *keptStream) ref(subject string) (ref keptRef, ok bool) {
	row, last, _ := strings.Cut(strings.TrimPrefix(subject, k.prefix()), ".")
	ref.item = wholeRow
	if ref.row, _ = strconv.ParseUint(row, 10, 64); last != wholeRowToken {
		ref.item, _ = strconv.Atoi(last)
	}
	return ref, k.subject(ref) == subject // which is false where a number can't be read
}

const (
	headerRequestHash  = "Stage-Request-Hash"  // of the request that the entry answers
	headerReplyForm    = "Stage-Reply-Form"    // [Reply.Form]
	headerInputCreated = "Stage-Input-Created" // of the input stream to whose sequences it refers
)

// entry returns the journal's message for a row's reply: its event as one line of JSON,
// then the result's body. A body that is an object is named in the headers.
func (k *keptStream) entry(row *Row, e *auditlog.Row) *nats.Msg {
	body := row.reply.Body
	if row.form.object.Bytes > 0 {
		body = nil
	}
	data := e.AppendJSON(make([]byte, 0, 1024+len(body)), auditlog.PayloadsFull, 0)
	data = append(append(data, '\n'), body...)
	header := nats.Header{
		streams.HeaderOwner:        {e.Owner},
		streams.HeaderSourceStream: {k.cfg.InputStream},
		streams.HeaderSourceSeq:    {strconv.FormatUint(row.Seq, 10)},
		streams.HeaderStatus:       {e.Status},
		headerInputCreated:         {k.created.Format(time.RFC3339Nano)},
		headerRequestHash:          {row.reply.RequestHash},
		headerReplyForm:            {row.reply.Form},
	}
	if row.element.parent != nil {
		header[streams.HeaderItem] = []string{strconv.Itoa(row.element.index)}
	}
	if row.form.object.Bytes > 0 {
		row.form.object.Set(header)
	}
	return &nats.Msg{Subject: k.subject(keptRef{row.Seq, row.itemIndex()}), Data: data, Header: header}
}

// parse reads a message that entry has made. kept is nil for any other message, and for an
// entry about an earlier input stream.
func (k *keptStream) parse(header nats.Header, data []byte) (ref keptRef, kept *Kept) {
	row, err := strconv.ParseUint(header.Get(streams.HeaderSourceSeq), 10, 64)
	hash := header.Get(headerRequestHash)
	if err != nil || hash == "" || header.Get(streams.HeaderSourceStream) != k.cfg.InputStream ||
		header.Get(headerInputCreated) != k.created.Format(time.RFC3339Nano) {
		return ref, nil
	}
	index := wholeRow
	if item := header.Get(streams.HeaderItem); item != "" {
		if index, err = strconv.Atoi(item); err != nil || index < 0 {
			return ref, nil
		}
	}
	line, body, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return ref, nil
	}
	e, err := auditlog.Decode(line)
	if err != nil || e.Row == nil {
		return ref, nil
	}
	object, _ := objects.RefOf(header)
	return keptRef{row, index}, &Kept{object: object, RequestHash: hash, Reply: Reply{
		Body: body, Failed: header.Get(streams.HeaderStatus) == auditlog.RowError, Event: *e.Row, RequestHash: hash,
		Form: header.Get(headerReplyForm),
	}}
}

// purgeOldInput removes the replies to rows of another input stream, before the first
// claim for a new one. Their subjects name rows of the new stream as well, and with a
// batch lane a row whose reply is kept leaves its batch:
//
//	The input is created again, and the journal still has the reply to the old row 7.
//	A seals the new row 7 into a batch, and is killed.
//	B takes row 7 out of the batch for the reply, finds that it is another row's, and
//	buys it again.
//
// It goes before the claim: a process that is killed between the two does it again.
func (k *keptStream) purgeOldInput(ctx context.Context, log *slog.Logger) {
	if !k.cfg.Journal {
		return
	}
	if err := streams.Purge(ctx, k.nc, k.cfg.JournalStream, k.filter()); err != nil {
		log.Warn("replies to rows of the earlier input stream are still in the journal", slog.Any("error", err))
	}
}
