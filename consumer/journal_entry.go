package consumer

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// journalVoid and journalVoidBytes bound the entries on their way that nobody waits
	// for: with so many the journal is too slow for what it is sent.
	journalVoid      = 256
	journalVoidBytes = 8 << 20
	// journalItems is how many entries of elements may be on their way at least, where
	// the window holds fewer rows.
	journalItems = 256
)

// journalWay counts the entries that were sent and have no answer yet. Those of open rows
// are no more than the window, but a journal that stores fewer entries a second than rows
// are emitted would gather those of emitted rows in the memory of the server, without
// end.
//
// It counts on nothing but order: an answer settles the entries sent before it, too,
// whose answers were lost.
type journalWay struct {
	entries   []wayEntry // oldest first
	first     uint64     // number of the oldest, from 1 on
	void      int        // entries that nobody waits for
	voidBytes int
	sent      time.Time // the last one
}

type wayEntry struct {
	bytes int
	void  bool
}

// full reports whether an entry has to wait for answers. Where none comes, one entry may
// go at a time: the others may be lost.
func (w *journalWay) full(now time.Time) bool {
	return (w.void >= journalVoid || w.voidBytes >= journalVoidBytes) && now.Before(w.sent.Add(journalRetry))
}

// hasRoom reports whether there is room for a good many entries.
func (w *journalWay) hasRoom() bool {
	return w.void <= journalVoid/2 && w.voidBytes <= journalVoidBytes/2
}

// send adds an entry and returns its number.
func (w *journalWay) send(bytes int, now time.Time) uint64 {
	w.first = max(w.first, 1)
	w.entries = append(w.entries, wayEntry{bytes: bytes})
	w.sent = now
	return w.first + uint64(len(w.entries)) - 1
}

// forget notes that nobody waits for an entry any more. It may be settled, or 0 for none.
func (w *journalWay) forget(number uint64) {
	if number < max(w.first, 1) || number-w.first >= uint64(len(w.entries)) {
		return
	}
	if e := &w.entries[number-w.first]; !e.void {
		e.void = true
		w.void++
		w.voidBytes += e.bytes
	}
}

// answered settles an entry and those before it.
func (w *journalWay) answered(number uint64) {
	for len(w.entries) > 0 && w.first <= number {
		if e := w.entries[0]; e.void {
			w.void--
			w.voidBytes -= e.bytes
		}
		w.entries = w.entries[1:]
		w.first++
	}
}

// headerMarker marks a marker, headerRequestHash names the request that an entry answers,
// headerReplyForm is [Reply.Form], and headerInputCreated names the input stream to whose
// sequences the entry refers.
const (
	headerMarker       = "Stage-Marker"
	headerRequestHash  = "Stage-Request-Hash"
	headerReplyForm    = "Stage-Reply-Form"
	headerInputCreated = "Stage-Input-Created"
)

// journalEntry returns the journal's message for a row's reply: the row event as one line
// of JSON, then the result's body.
func (c *Consumer) journalEntry(subject, owner string, row *Row) *nats.Msg {
	e := c.rowEvent(row, owner, time.Now())
	data := e.AppendJSON(make([]byte, 0, 1024+len(row.reply.Body)), auditlog.PayloadsFull, 0)
	data = append(append(data, '\n'), row.reply.Body...)
	header := nats.Header{
		streams.HeaderOwner: {owner}, streams.HeaderSourceStream: {c.cfg.InputStream}, streams.HeaderSourceSeq: {strconv.FormatUint(row.Seq, 10)},
		headerInputCreated: {c.inputCreated.Format(time.RFC3339Nano)}, streams.HeaderStatus: {e.Status}, headerRequestHash: {row.reply.RequestHash},
		headerReplyForm: {row.reply.Form},
	}
	if row.parent != nil {
		header[streams.HeaderItem] = []string{strconv.Itoa(row.index)}
	}
	return &nats.Msg{Subject: subject, Data: data, Header: header}
}

// errNoEntry is returned for a message of the journal that is no entry about the present
// input.
var errNoEntry = errors.New("not an entry of the journal")

// wholeRow is the index, in place of an element's, of what is about a row as a whole.
const wholeRow = -1

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
	return seq, index, &Kept{RequestHash: hash, Reply: Reply{
		Body: body, Failed: header.Get(streams.HeaderStatus) == auditlog.RowError, Event: *e.Row, RequestHash: hash,
		Form: header.Get(headerReplyForm),
	}}, nil
}
