package consumer

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// wholeRow is the index, in place of an element's, of what is about a row as a whole, and
// wholeRowToken the last token of its subject.
const (
	wholeRow      = -1
	wholeRowToken = "row"
)

// journalFilter matches the subjects of all replies of the partition.
func (c *Consumer) journalFilter() string {
	return streams.JournalSubjects(c.cfg.Name, c.cfg.Partition)
}

// journalRowFilter matches the subjects of the replies to a row and to its elements.
func (c *Consumer) journalRowFilter(row uint64) string {
	return c.journalPrefix() + strconv.FormatUint(row, 10) + ".*"
}

func (c *Consumer) journalPrefix() string {
	return streams.JournalPrefix(c.cfg.Name, c.cfg.Partition)
}

// journalSubject is where the reply to a row or to an element is kept, and journalRef
// reads such a subject.
func (c *Consumer) journalSubject(ref keptRef) string {
	last := wholeRowToken
	if ref.item != wholeRow {
		last = strconv.Itoa(ref.item)
	}
	return c.journalPrefix() + strconv.FormatUint(ref.row, 10) + "." + last
}

func (c *Consumer) journalRef(subject string) (ref keptRef, ok bool) {
	row, last, ok := strings.Cut(strings.TrimPrefix(subject, c.journalPrefix()), ".")
	if !ok {
		return ref, false
	}
	ref.item = wholeRow
	var err, errItem error
	if ref.row, err = strconv.ParseUint(row, 10, 64); last != wholeRowToken {
		ref.item, errItem = strconv.Atoi(last)
	}
	return ref, err == nil && errItem == nil && c.journalSubject(ref) == subject
}

// headerRequestHash names the request that an entry answers, headerReplyForm is
// [Reply.Form], and headerInputCreated names the input stream to whose sequences the
// entry refers.
const (
	headerRequestHash  = "Stage-Request-Hash"
	headerReplyForm    = "Stage-Reply-Form"
	headerInputCreated = "Stage-Input-Created"
)

// journalEntry returns the journal's message for a row's reply: the row event as one line
// of JSON, then the result's body. A body that is an object is named in the headers.
func (c *Consumer) journalEntry(owner string, row *Row) *nats.Msg {
	e := c.rowEvent(row, owner, time.Now())
	body := row.reply.Body
	if row.form.object.Bytes > 0 {
		body = nil
	}
	data := e.AppendJSON(make([]byte, 0, 1024+len(body)), auditlog.PayloadsFull, 0)
	data = append(append(data, '\n'), body...)
	header := nats.Header{
		streams.HeaderOwner: {owner}, streams.HeaderSourceStream: {c.cfg.InputStream}, streams.HeaderSourceSeq: {strconv.FormatUint(row.Seq, 10)},
		headerInputCreated: {c.inputCreated.Format(time.RFC3339Nano)}, streams.HeaderStatus: {e.Status}, headerRequestHash: {row.reply.RequestHash},
		headerReplyForm: {row.reply.Form},
	}
	if row.element.parent != nil {
		header[streams.HeaderItem] = []string{strconv.Itoa(row.element.index)}
	}
	if row.form.object.Bytes > 0 {
		row.form.object.Set(header)
	}
	return &nats.Msg{Subject: c.journalSubject(keptRef{row.Seq, row.itemIndex()}), Data: data, Header: header}
}

// errNoEntry is returned for a message of the journal that is no entry about the present
// input.
var errNoEntry = errors.New("not an entry of the journal")

// parseEntry reads what journalEntry wrote; index is that of the element, or wholeRow.
func (c *Consumer) parseEntry(header nats.Header, data []byte) (seq uint64, index int, k *Kept, err error) {
	seq, err = strconv.ParseUint(header.Get(streams.HeaderSourceSeq), 10, 64)
	hash := header.Get(headerRequestHash)
	if err != nil || hash == "" || header.Get(streams.HeaderSourceStream) != c.cfg.InputStream ||
		header.Get(headerInputCreated) != c.inputCreated.Format(time.RFC3339Nano) {
		return 0, 0, nil, errNoEntry
	}
	index = wholeRow
	if item := header.Get(streams.HeaderItem); item != "" {
		if index, err = strconv.Atoi(item); err != nil || index < 0 {
			return 0, 0, nil, errNoEntry
		}
	}
	line, body, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return 0, 0, nil, errNoEntry
	}
	e, err := auditlog.Decode(line)
	if err != nil {
		return 0, 0, nil, fmt.Errorf("%w: %w", errNoEntry, err)
	}
	if e.Row == nil {
		return 0, 0, nil, errNoEntry
	}
	object, _ := objects.RefOf(header)
	return seq, index, &Kept{object: object, RequestHash: hash, Reply: Reply{
		Body: body, Failed: header.Get(streams.HeaderStatus) == auditlog.RowError, Event: *e.Row, RequestHash: hash,
		Form: header.Get(headerReplyForm),
	}}, nil
}
