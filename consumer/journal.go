package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// journalScan is the shortest time between two looks at the replies that wait.
	journalScan = 5 * time.Millisecond
	// journalFullScan is the same while too many entries have no answer: it only releases
	// the rows that are emitted.
	journalFullScan = 100 * time.Millisecond
	// journalStuck is how long a reply whose turn has come may wait for the streams of
	// events and results until it is kept after all: normally it is stored there by then.
	// With the time that storing takes, a crash loses no reply that is older than a tenth
	// of a second.
	//
	// Where results come so fast that hundreds of them are stored at a time, that takes
	// longer, say 50 ms. Then the limit is journalStuckGroups times as long, 200 ms: a
	// reply waits for its events, for the group before it and for its own. Without this
	// rule each reply goes to the journal, too, which makes the server slower still: a
	// quarter of all that it stored were entries that nobody needed a moment later.
	journalStuck       = 75 * time.Millisecond
	journalStuckGroups = 4
	journalStuckMost   = 250 * time.Millisecond
	// journalRetry is the wait before a reply that the journal did not take is offered
	// again.
	journalRetry = 5 * time.Second
	// journalPurge is the shortest time between two purges: one call for all rows emitted
	// since.
	journalPurge = time.Second
	// journalReadBatch and journalReadBytes bound the answers to one request for entries.
	journalReadBatch = 256
	journalReadBytes = 4 << 20
	// journalLag is how long to wait for a replica that does not have the marker yet.
	journalLag = 50 * time.Millisecond
)

// journal keeps replies that wait for an earlier row where the next owner finds them, so
// that a crash does not pay for them again. It saves money and never decides what is
// right: a journal that is full, gone or forbidden is not used.
//
// An entry is an ordinary message, sent without waiting for the answer. Its call events
// are stored before it, so no reply that is taken from it lacks its audit. At take-over a
// marker goes in behind all that came before, and the entries up to it are read; rows
// wait for that moment unstarted. Entries are purged by stream sequence, below the oldest
// that is still needed.
//
// The goroutine of the term owns it. Where [Config.Journal] is false it keeps nothing and
// has nothing to read.
type journal struct {
	c       *Consumer
	rows    journalRows
	owner   string
	subject string
	inbox   string
	sub     *nats.Subscription
	answers chan *nats.Msg // to what it has sent

	// reading is true until the entries of earlier terms are known.
	reading   bool
	marker    uint64 // journal sequence; 0 means not stored yet, or it never will be
	readNext  uint64 // where the next request for entries begins
	readBy    time.Time
	readAgain time.Time // not zero: ask again then, the marker is not in sight
	lagUntil  time.Time
	kept      map[uint64]*Kept         // by row
	keptItems map[uint64]map[int]*Kept // by row and element
	keptBytes int64
	// With a lane there may be many times more replies than memory has room for: only
	// where they are is read.
	index    map[uint64]uint64 // entry by row
	indexDue bool
	indexed  chan journalIndex
	stop     context.CancelFunc // ends the reading of the index, or nil

	fresh      []*Row    // answered, perhaps to be kept, by keepAt
	due        []*Row    // whose time had come, and that could not be kept then or have no answer yet
	next       time.Time // when to look through them; zero means nothing to do
	flushUntil time.Time // not zero: the partition is about to be handed over
	way        journalWay
	blocked    bool            // a row in due waits for answers to other entries
	sentItems  map[uint64]*Row // elements whose entries have no answer yet, by number; their rows may be gone by then
	itemsMax   int             // most of them at once
	openItems  int             // elements with a reply, here or in the journal, of rows that are not emitted

	live         []journalRef // entries of rows that are not emitted, and some that are, as stored
	last         uint64       // highest journal sequence seen
	groupTime    streams.Cost // of an append of results, however many
	lastAtAppend uint64       // last, when the group in flight went to the emitter
	knownTo      uint64       // entries up to it are known, see needed
	purged       uint64       // entries below are removed
	nextPurge    time.Time
	problem      string
	unkept       int // rows that must be kept and are not yet
}

// journalRows is what a journal must know of the rows of its term.
type journalRows interface {
	// opened returns a row that is taken and not emitted; nil means that it is not.
	opened(seq uint64) *Row
	// finished reports whether a row is emitted.
	finished(seq uint64) bool
	// itsTurn reports whether an answered row waits for no other.
	itsTurn(row *Row) bool
	// keptNow takes note that the journal has a row's reply now ([Row.stored]), or will
	// never have it.
	keptNow(row *Row)
}

// openJournal publishes the marker; its answer starts the reading.
func (c *Consumer) openJournal(owner string, rows journalRows, now time.Time) *journal {
	if !c.cfg.Journal {
		return &journal{c: c, rows: rows}
	}
	j := &journal{
		c: c, rows: rows, owner: owner, subject: streams.JournalSubject(c.cfg.Name, c.cfg.Partition), inbox: c.nc.NewInbox(),
		// What may come at once: an answer for each row of the window, or for as many
		// elements as may be on their way, and as many of emitted ones as may be, and
		// those to one request for entries.
		answers:  make(chan *nats.Msg, max(c.cfg.WindowRows, journalItems)+journalVoid+journalReadBatch+64),
		itemsMax: max(c.cfg.WindowRows, journalItems),
		kept:     make(map[uint64]*Kept), keptItems: make(map[uint64]map[int]*Kept), sentItems: make(map[uint64]*Row), reading: true, readBy: now.Add(streams.RequestTimeout),
	}
	var err error
	if j.sub, err = c.nc.ChanSubscribe(j.inbox+".>", j.answers); err == nil {
		err = j.send("m", &nats.Msg{Subject: j.subject, Header: nats.Header{streams.HeaderOwner: {owner}, headerMarker: {"1"}}})
	}
	if err != nil {
		j.setProblem(err.Error())
		j.reading = false
	}
	return j
}

func (j *journal) close() {
	if j.stop != nil {
		j.stop()
	}
	if j.sub != nil {
		_ = j.sub.Unsubscribe()
	}
}

// send publishes a message or request; its answer arrives under the topic.
func (j *journal) send(topic string, msg *nats.Msg) error {
	msg.Reply = j.inbox + "." + topic
	return j.c.nc.PublishMsg(msg)
}

// wait registers an answered row. Once it has waited long enough for its turn, its reply
// is kept.
func (j *journal) wait(row *Row, now time.Time) {
	if !j.c.cfg.Journal || row.reply.RequestHash == "" || row.reply.Event.Source == auditlog.SourceJournal {
		return
	}
	row.keep, row.answeredAt, row.keepAt = true, now, now.Add(j.c.cfg.JournalAfter)
	j.unkept++
	j.fresh = append(j.fresh, row)
	j.next = earlier(j.next, row.keepAt)
}

// waitNow registers an answered row whose reply is to be kept at once.
func (j *journal) waitNow(row *Row, now time.Time) {
	j.wait(row, now)
	row.keepAt = now
	j.next = earlier(j.next, now)
}

// step keeps what has waited long enough, purges what is no longer needed, and returns
// when it wants to be called again; zero means not before something happens.
func (j *journal) step(now time.Time) time.Time {
	if j.reading {
		j.readStep(now)
	}
	if !j.next.IsZero() && !now.Before(j.next) {
		j.keepDue(now)
	}
	j.moveUp(now)
	if !now.Before(j.nextPurge) && j.purge() {
		j.nextPurge = now.Add(journalPurge)
	}
	next := j.next
	if j.reading {
		next = earlier(next, earlier(j.readBy, j.readAgain))
	}
	if j.needed() > max(1, j.purged) {
		next = earlier(next, j.nextPurge)
	}
	return next
}

// earlier returns the earlier of two instants; a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// keepDue looks through the replies whose time has come. One look covers them all, so
// that no row needs a timer; and most rows are emitted by then, so a look costs next to
// nothing.
func (j *journal) keepDue(now time.Time) {
	n := 0
	for n < len(j.fresh) && (!j.fresh[n].keep || !now.Before(j.fresh[n].keepAt)) {
		n++
	}
	j.due = append(j.due, j.fresh[:n]...)
	clear(j.fresh[:n])
	j.fresh = j.fresh[n:]
	j.next = time.Time{}
	if len(j.fresh) > 0 {
		j.next = j.fresh[0].keepAt
	}
	j.blocked = false
	j.due = slices.DeleteFunc(j.due, func(row *Row) bool {
		if row.keep && !now.Before(row.keepAt) {
			j.offer(row, now)
		}
		if row.keep {
			j.next = earlier(j.next, row.keepAt)
		}
		return !row.keep
	})
	scan := journalScan
	if j.blocked {
		scan = journalFullScan
	}
	if earliest := now.Add(scan); !j.next.IsZero() && j.next.Before(earliest) {
		j.next = earliest
	}
}

// offer keeps a row whose time has come, unless it has to wait or there is no need.
func (j *journal) offer(row *Row, now time.Time) {
	stuckAt := row.answeredAt.Add(j.stuck())
	switch {
	case j.holds(row): // an earlier term has kept it
		j.settle(row)
	case j.flushUntil.IsZero() && j.c.cfg.JournalAfter > 0 && now.Before(stuckAt) && j.rows.itsTurn(row):
		row.keepAt = stuckAt // nothing but the streams is in its way
	case j.reading || row.unstored.Load() > 0:
		row.keepAt = now.Add(journalScan) // its events go first, and an earlier term may have kept it
	case j.flushUntil.IsZero() && j.way.full(now), row.parent != nil && row.entry == 0 && len(j.sentItems) >= j.itemsMax:
		j.blocked = true
	default:
		j.keep(row, now)
	}
}

// stuck is how long a reply whose turn has come may wait for the streams.
func (j *journal) stuck() time.Duration {
	return min(max(journalStuck, journalStuckGroups*time.Duration(j.groupTime)), journalStuckMost)
}

// keep sends the entry of one row. Without an answer in time it is sent again: a second
// copy does no harm.
func (j *journal) keep(row *Row, now time.Time) {
	if row.entry > 0 {
		j.setProblem("no answer")
		j.forgetEntry(row)
	}
	msg := j.c.journalEntry(j.subject, j.owner, row)
	if msg.Size() > int(j.c.nc.MaxPayload()) {
		j.settle(row)
		j.rows.keptNow(row)
		return
	}
	row.entry, row.keepAt = j.way.send(msg.Size(), now), now.Add(journalRetry)
	topic := "e."
	if row.parent != nil {
		topic = "i."
		j.sentItems[row.entry] = row
	}
	if err := j.send(topic+strconv.FormatUint(row.Seq, 36)+"."+strconv.FormatUint(row.entry, 36), msg); err != nil {
		j.forgetEntry(row)
		row.entry = 0
		j.setProblem(err.Error())
	}
	j.c.at("kept")
}

// forgetEntry notes that nobody waits any more for the answer to the entry that was sent
// for a row.
func (j *journal) forgetEntry(row *Row) {
	j.way.forget(row.entry)
	delete(j.sentItems, row.entry)
}

// settle notes that a row need not be kept any more: it is, or is emitted, or never can be.
func (j *journal) settle(row *Row) {
	if row.keep {
		row.keep = false
		j.unkept--
	}
}

// lossy is how many replies a crash would lose that the journal should keep; 0 while it
// is not used.
func (j *journal) lossy() int {
	if j.problem != "" {
		return 0
	}
	return j.unkept
}

// received handles one answer. open holds the rows of the term.
func (j *journal) received(m *nats.Msg, open map[uint64]*Row, now time.Time) {
	topic := m.Subject[len(j.inbox)+1:]
	switch {
	case topic == "g":
		j.read(m, now)
	case topic == "m":
		j.marked(m, now)
	case topic == "p":
		if refused := streams.Refusal(m); refused != nil {
			j.setProblem("purge: " + refused.Error())
		}
	case strings.HasPrefix(topic, "e."), strings.HasPrefix(topic, "i."):
		of, numbered, _ := strings.Cut(topic[2:], ".")
		seq, err := strconv.ParseUint(of, 36, 64)
		number, errNumber := strconv.ParseUint(numbered, 36, 64)
		if err == nil && errNumber == nil {
			j.way.answered(number)
			row := open[seq]
			if topic[0] == 'i' {
				row = j.sentItems[number]
				delete(j.sentItems, number)
			}
			j.stored(m, seq, row, now)
		}
	}
}

// stored handles the answer to an entry. row is nil when it has been emitted.
func (j *journal) stored(m *nats.Msg, seq uint64, row *Row, now time.Time) {
	if j.blocked && j.way.hasRoom() && len(j.sentItems) <= j.itemsMax/2 { // a good many: each look goes through all that is due
		j.next = now
	}
	entry, err := streams.StoredAt(m)
	if err != nil {
		if row != nil {
			row.entry, row.keepAt = 0, now.Add(journalRetry)
		}
		j.setProblem(err.Error())
		return
	}
	if row != nil {
		j.settle(row)
		row.entry, row.stored = 0, entry
		defer j.rows.keptNow(row)
	}
	j.live = append(j.live, journalRef{entry: entry, row: seq})
	j.last = max(j.last, entry)
	j.setProblem("")
}

// holds reports whether a row's reply is in there from an earlier term, and this process
// still had it in memory. The reply in there may be another one to the same request,
// which the executor could not use and has paid for again.
func (j *journal) holds(row *Row) bool {
	k := j.keptOf(row.Seq, row.itemIndex())
	return k != nil && k.RequestHash == row.reply.RequestHash && k.Reply.Form == row.reply.Form && bytes.Equal(k.Reply.Body, row.reply.Body)
}

// emitted drops rows that no longer need the journal.
func (j *journal) emitted(rows []*Row) {
	j.knownTo = max(j.knownTo, j.lastAtAppend)
	for _, row := range rows {
		delete(j.kept, row.Seq)
		j.openItems -= len(j.keptItems[row.Seq])
		delete(j.keptItems, row.Seq)
		j.settle(row)
		j.forgetEntry(row)
		for item := range row.eachItem() {
			j.settle(item)
			j.forgetEntry(item)
			if item.answered {
				j.openItems--
			}
		}
	}
	for len(j.live) > 0 && j.rows.finished(j.live[0].row) {
		j.live = j.live[1:]
	}
	for len(j.fresh) > 0 && !j.fresh[0].keep {
		j.fresh[0] = nil // let it go
		j.fresh = j.fresh[1:]
	}
}

// moveUp bounds the entries behind the oldest one that is needed. Where results are not
// in stream order that one may wait for hours, and no entry behind it can be purged: it
// is sent once more, and follows the others.
func (j *journal) moveUp(now time.Time) {
	for !j.reading && len(j.live) > 2*(j.c.cfg.WindowRows+j.openItems)+journalVoid {
		oldest := j.live[0]
		row := j.rows.opened(oldest.row)
		switch {
		case row == nil && !j.rows.finished(oldest.row):
			return // of an earlier term, and not taken yet
		case row != nil && !row.done && row.tenure.Load().calls.Load() == 0, row != nil && row.awaitsKeptItem():
			return // perhaps about to be answered by it
		case row != nil && row.fans():
			if j.moveItemsUp(row, oldest.entry, now) {
				return
			}
		case row != nil && row.done && row.stored <= oldest.entry:
			if !now.Before(row.keepAt) {
				j.keep(row, now)
			}
			return
		}
		j.live = j.live[1:]
	}
}

// moveItemsUp sends the replies to elements once more whose newest entry is the given one
// or an older one, and reports whether there are any.
func (j *journal) moveItemsUp(row *Row, entry uint64, now time.Time) (some bool) {
	for _, item := range row.answeredItems() { // to send while the row is locked would hold up its calls
		if item.reply.RequestHash == "" && item.reply.Event.Source != auditlog.SourceJournal || item.stored > entry {
			continue
		}
		if some = true; !now.Before(item.keepAt) {
			j.keep(item, now)
		}
	}
	return some
}

// needed is the journal sequence below which nothing is needed any more.
//
// It goes no further than this term is known to have owned the partition, which one of
// its own appends has proved:
//
//	A has been fenced by B, and has not noticed.
//	B answers a row, and keeps the reply.
//	A, too, keeps a reply, which follows that of B; purges all before its own; and is killed, as B is.
//	C finds nothing of B's in the journal, and pays again.
func (j *journal) needed() uint64 {
	switch {
	case j.reading:
		return 0
	case len(j.live) > 0:
		return min(j.live[0].entry, j.knownTo+1)
	default:
		return j.knownTo + 1
	}
}

// purge asks for the removal of the entries that are not needed any more, and reports
// whether there are any.
func (j *journal) purge() bool {
	below := j.needed()
	if below <= max(1, j.purged) {
		return false
	}
	body, err := json.Marshal(struct {
		Filter string `json:"filter"`
		Seq    uint64 `json:"seq"`
	}{j.subject, below})
	if err == nil {
		err = j.send("p", &nats.Msg{Subject: streams.APIPrefix(j.c.nc) + "STREAM.PURGE." + j.c.cfg.JournalStream, Data: body})
	}
	if err != nil {
		j.setProblem("purge: " + err.Error())
		return true
	}
	j.purged = below
	j.c.at("purged")
	return true
}

// flushed reports whether every reply that waits is kept, so that the partition may be
// handed over. The first call sends them off; it does not wait longer than a request may
// take.
func (j *journal) flushed(now time.Time) bool {
	if j.flushUntil.IsZero() {
		j.flushUntil = now.Add(streams.RequestTimeout)
		for row := range j.waiting() {
			if row.entry == 0 {
				row.keepAt = now
			}
		}
		j.keepDue(now)
	}
	for range j.waiting() {
		return now.After(j.flushUntil)
	}
	return true
}

// waiting yields the rows that must be kept and are not yet.
func (j *journal) waiting() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		for _, list := range [][]*Row{j.due, j.fresh} {
			for _, row := range list {
				if row.keep && !yield(row) {
					return
				}
			}
		}
	}
}

// setProblem notes why the journal is not used; empty means that it is.
func (j *journal) setProblem(why string) {
	if j.problem == why {
		return
	}
	j.problem = why
	j.c.setStatus(func(s *Status) { s.JournalProblem = why })
	log := j.c.log.With(slog.String("journal", j.c.cfg.JournalStream))
	if why == "" {
		log.Info("replies are kept again")
	} else {
		log.Warn("replies are not kept, a crash would pay for them again", slog.String("reason", why))
	}
}
