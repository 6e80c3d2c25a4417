package consumer

import (
	"crypto/sha256"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/nats-io/nats.go"
)

// Executor works on rows: it renders, calls and answers. [Consumer] hands it each row in
// stream order.
type Executor interface {
	// Start begins the work on a row and returns without waiting for it. The executor
	// answers with [Row.Reply] exactly once for each Start, from any goroutine. A row
	// that it hands back ([Reply.HandedBack]) may be started again.
	Start(row *Row)
}

// Fitter is an [Executor] that replaces a result which is too large for the streams. That
// happens only if their limit was lowered after the executor had looked at it.
// ResultTooLarge returns the body of an error with reason result_too_large, of at most
// room bytes. The row is answered by then. The consumer's goroutine calls it.
type Fitter interface {
	ResultTooLarge(row *Row, size, room int) (body []byte)
}

// Row is one message of the input, taken in stream order. From [Executor.Start] to
// [Row.Reply] only Spent changes, which is the executor's. Before a start the consumer may
// fill in Body, Unreadable, Kept and KeptItems, which it reads from the streams, and Errand.
// The methods are safe for concurrent use.
type Row struct {
	// Partition and Seq identify the row: Seq is its sequence in the input stream.
	Partition int
	Seq       uint64
	// Subject, Header and Body are the message as it was published. They must not be
	// changed.
	Subject string
	Header  nats.Header
	Body    []byte
	// Unreadable is the reason why the object that should hold Body can't be read. It is
	// empty for any other row. Such a row gets an error as its result.
	Unreadable string
	// Key is the row's key as [streams.KeyHeader] writes it. It is empty unless results
	// are in order by key.
	Key string
	// StateID is `<name>/<input stream>/<partition>/<sequence>`.
	StateID string
	// Arrived is when the input stream stored the row, by the server's clock.
	Arrived time.Time
	// Taken is when this process received the row first. Of a row that was set aside it is
	// when the row came back.
	Taken time.Time
	// MaxBodyBytes is the largest result body that can be stored for this row: by the
	// results stream or, where there is one, in the bucket of large results.
	MaxBodyBytes int
	// Kept is the reply that an earlier term kept in the journal, or nil. It counts only
	// for the same request: an executor compares [Kept.RequestHash] with the hash of the
	// request it would send and, if they are equal, answers with Kept instead of sending.
	// Kept's body was made by the settings of that term, so the executor makes it again by
	// its own.
	Kept *Kept
	// KeptItems are the replies to elements of the row that an earlier term kept, by
	// index, as Kept is the row's, or nil.
	KeptItems map[int]*Kept
	// Spent is the executor's own: what it needs to know, when the row is started again,
	// of the attempts before it handed the row back. Nil at first.
	Spent any
	// Errand is a [Lane]'s own: what the executor must do with a row that the lane has
	// recalled. Nil for any other row.
	Errand any

	shared *shared // with the other rows of the consumer; nil for an element
	// elsewhere is the object that holds Body, which is empty until the object was read.
	// Nil means that the row's message holds Body.
	elsewhere *objects.Ref
	element   element // which one, where this is an element of a row
	trace     Trace   // nil where nothing follows the row
	elements
	signals
	answer
	inTerm  inTerm
	journal inJournal
}

// elements are the elements of a row, by index, that have a reply or a call. Calls for
// elements of one row run side by side, so mu guards them.
type elements struct {
	mu    sync.Mutex
	items map[int]*Row
}

// signals are what the goroutines of the consumer and of the executor tell each other of a
// row while both have it.
type signals struct {
	wanted   atomic.Bool // see [Row.Wanted]
	leads    atomic.Bool // it waits for no other of its key, see [Row.MayBegin]
	tenure   atomic.Pointer[tenure]
	unstored atomic.Int32 // audit events that are recorded and not stored yet, and an object that the result waits for
}

// answer is the reply to a row and what becomes of it. It lasts from one term to the next.
type answer struct {
	reply *Reply // the executor sets it before the row goes into the mailbox
	// The goroutine of the consumer owns the rest.
	answered bool // reply is there, and is no hand-back
	idle     bool // the row was taken in an earlier term, and handed back in it or since
	form     resultForm
}

// shared is what the rows of a consumer have in common: what their methods ask, from any
// goroutine.
type shared struct {
	mail     *mailbox
	gate     *gate
	pulse    *pulse
	storable *storable
	recorder *recorder.Recorder
	resumer  Resumer // the executor, or nil
}

// resumeIf wakes the executor where rows may begin that might not before.
func (s *shared) resumeIf(more bool) {
	if more && s.resumer != nil {
		s.resumer.Resume()
	}
}

// element says which element of a row this is. For a row it is zero.
type element struct {
	parent *Row
	index  int
	paid   paid // guarded by the parent's mu
}

// inTerm is what the term that has taken a row knows of it. The goroutine of the term owns
// it. Where a row is carried over, [term.take] of the next term sets again what a row
// begins with.
type inTerm struct {
	ackReply    string  // where to ack the newest delivery
	after       logMark // of its result
	bodyHash    [sha256.Size]byte
	event       string // the name of its row event, see [streams.HeaderEvent]
	submitIndex uint64
	size        int  // of the row itself, in the window
	itemBytes   int  // of the replies to elements so far, in the window
	back        bool // it was parked, and has come back
	done        bool // its reply is in the sequencer, and its row event is on its way
	fetching    bool // its body is being read from the object store
}

// inJournal is what the term knows of a row's reply in the journal. The goroutine of the
// term owns it.
type inJournal struct {
	// keep is the list of replies that must be kept, where the row is on one. It may be
	// the list of a term that has ended.
	keep         *unkept
	answeredAt   time.Time // in this term
	keepAt       time.Time // when to keep it
	stored       bool      // this term knows the reply to be in the journal
	storedBefore bool      // an earlier term of this process knew that
	// entry is the number of the entry that was sent, see [sentEntries]. It is 0 where
	// none was sent, or the last one was refused.
	entry    uint64
	restored bool // Kept and KeptItems are set, if the journal has anything
}

// Kept is a reply from the journal.
type Kept struct {
	// RequestHash is the reply's, as the executor gave it. It is never empty.
	RequestHash string
	// Reply is as it was given. An executor that uses it sets the event's source to
	// [auditlog.SourceJournal].
	Reply Reply

	object objects.Ref // that holds the body; zero where the entry itself does
}

// tenure is the term of ownership that a row's events name.
type tenure struct {
	owner string
	calls atomic.Int32
}

// Reply is the outcome of a row.
type Reply struct {
	// Body of the result.
	Body []byte
	// Failed says that the result is an error.
	Failed bool
	// Event holds what the executor knows of the row event; identity, indexes and owner
	// are filled in here.
	Event auditlog.Row
	// UpstreamReason names the reason on the dead letter subject where the event has
	// none: a row that arrived as an error.
	UpstreamReason string
	// RequestHash distinguishes requests for the journal; empty means that the reply is
	// not kept. It covers the request and the server that it is sent to. Settings that
	// shape the body, such as names of fields, are not part of it, see [Row.Kept].
	RequestHash string
	// Form is what the executor must know of Body to make it again from a kept reply, in
	// any encoding: printable ASCII. It is kept with the reply.
	Form string
	// HandedBack says that there is no outcome: the stage is stopping or the row was no
	// longer wanted. The rest is ignored.
	HandedBack bool
	// Parked says that the row is with the [Lane], which recalls it. The rest is ignored.
	Parked bool
}

// Wanted reports whether the process still owns the row and could store its result, as
// far as it can know. An executor asks before it spends money on the row, and hands back
// one that is not wanted: in the meantime another replica may have taken over, for
// instance while this process was suspended, or the disk may be full.
func (r *Row) Wanted() bool {
	return r.wanted.Load() && r.shared.pulse.sure(time.Now()) && r.canStore()
}

// canStore reports whether the reply to a call could be stored, as far as is known.
func (r *Row) canStore() bool { return r.shared.storable.room() && !r.shared.recorder.Refused() }

// MayBegin reports whether there is room for the row's reply. An executor that goes by it
// begins no row while replies that wait for an earlier row use up the window's bytes, and
// implements [Resumer]. A row that is no longer wanted may always begin, to be handed
// back; so may a row that waits for no other, because its reply leaves at once, with
// those that wait for it. In stream order that is the oldest row without a reply.
//
// In order by key no further rows are begun of a key whose replies wait while such
// replies take half of the window: the rest is for the other keys. And where replies that
// wait for no row use up the bytes, no row begins at all: they leave by themselves.
func (r *Row) MayBegin() bool { return r.shared.gate.admits(r) || !r.Wanted() }

// Owner is the term of ownership that the row belongs to at the moment.
func (r *Row) Owner() string { return r.tenure.Load().owner }

// Continue has the calls of the row numbered from n: it made so many in this term before
// it was parked and recalled.
func (r *Row) Continue(n int) { r.tenure.Load().calls.Store(int32(n)) } //nolint:gosec // a handful

// RecordCall stores the event of one call for this row and completes its identity: state
// id, owner, sequence, index. The row's result is published after it. RecordCall blocks
// while too many events wait for the server (see [recorder.Recorder.Hurry]), and must not be
// called after [Row.Reply]. It returns the SHA-256 of the event as recorded, see
// [auditlog.Row.CallsHash].
func (r *Row) RecordCall(e *auditlog.Call) (hash [sha256.Size]byte) {
	t := r.tenure.Load()
	e.StateID, e.Owner, e.Sequence = r.StateID, t.owner, r.Seq
	e.Partition = auditlog.Partition(r.Partition)
	e.CallIndex = int(t.calls.Add(1) - 1)
	r.unstored.Add(1)
	if e.Item == nil {
		return r.shared.recorder.RecordCall(e, r.eventStored)
	}
	item := r.item(*e.Item)
	item.called(e.Owner, e.CallIndex)
	e.StateID = item.StateID
	item.unstored.Add(1)
	return r.shared.recorder.RecordCall(e, func() {
		item.unstored.Add(-1)
		r.eventStored()
	})
}

// RecordCallOf is [Row.RecordCall] of one call that served several rows of a partition:
// each text that it sent is of the row at its index. Where the texts are elements of their
// rows, items has the index of each element, else it is empty. The results of all these
// rows are published after the event. It returns the hash as [Row.RecordCall] does.
func RecordCallOf(rows []*Row, items []int, e *auditlog.Call) (hash [sha256.Size]byte) {
	first := rows[0]
	e.StateID, e.Sequence, e.Partition = first.StateID, first.Seq, auditlog.Partition(first.Partition)
	e.Items = items
	e.Rows, e.CallIndexes, e.Owners = make([]uint64, len(rows)), make([]int, len(rows)), make([]string, len(rows))
	waiting := make([]*Row, 0, len(rows)+len(items)) // for the event
	for i, r := range rows {
		t := r.tenure.Load()
		e.Rows[i], e.Owners[i], e.CallIndexes[i] = r.Seq, t.owner, int(t.calls.Add(1)-1)
		if len(items) > 0 {
			item := r.item(items[i])
			item.called(e.Owners[i], e.CallIndexes[i])
			waiting = append(waiting, item)
		}
		waiting = append(waiting, r)
	}
	e.Owner, e.CallIndex = e.Owners[0], e.CallIndexes[0]
	if len(items) > 0 {
		e.Item, e.StateID = &items[0], auditlog.ItemStateID(first.StateID, items[0])
	}
	if !slices.ContainsFunc(e.Owners, func(owner string) bool { return owner != e.Owner }) {
		e.Owners = nil
	}
	if !slices.ContainsFunc(e.CallIndexes, func(index int) bool { return index != e.CallIndex }) {
		e.CallIndexes = nil
	}
	for _, r := range waiting {
		r.unstored.Add(1)
	}
	return first.shared.recorder.RecordCall(e, func() {
		for _, r := range waiting {
			if r.element.parent != nil {
				r.unstored.Add(-1)
			} else {
				r.eventStored()
			}
		}
	})
}

// Reply answers the row. See [Executor] for how often.
func (r *Row) Reply(reply Reply) {
	r.reply = &reply
	r.shared.mail.put(r)
}

// eventStored is called for each of the row's events that the audit stream holds, and when
// the object that its result waits for is stored.
func (r *Row) eventStored() {
	if r.unstored.Add(-1) == 0 {
		r.shared.mail.wake()
	}
}

// forgetJournal is called when a term takes the row, or registers its reply before that:
// the journal may have changed since an earlier term looked at it.
func (r *Row) forgetJournal() {
	r.journal.entry, r.journal.restored = 0, false
	r.journal.storedBefore, r.journal.stored = r.journal.storedBefore || r.journal.stored, false
}

// emittable reports whether the row is answered and all its events are stored.
func (r *Row) emittable() bool { return r.inTerm.done && r.unstored.Load() == 0 }

// message is the body of the row's message, which is empty where the row's body is an
// object.
func (r *Row) message() []byte {
	if r.elsewhere != nil {
		return nil
	}
	return r.Body
}

// keptBytes is how many bytes the replies have that are kept of the row.
func (r *Row) keptBytes() (bytes int) {
	if r.Kept != nil {
		bytes = len(r.Kept.Reply.Body)
	}
	for _, k := range r.KeptItems {
		bytes += len(k.Reply.Body)
	}
	return bytes
}

// objects returns the objects that hold replies to a row or its elements.
func (r *Row) objects() (refs []objects.Ref) {
	add := func(ref objects.Ref) {
		if ref.Name != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	add(r.form.object)
	if r.Kept != nil {
		add(r.Kept.object)
	}
	for _, kept := range r.KeptItems {
		add(kept.object)
	}
	if r.hasItems() {
		for item := range r.eachItem() {
			add(item.form.object)
		}
	}
	return refs
}

// mailbox passes answered rows from the executor's goroutines to the consumer's without
// ever blocking them. The window bounds it. It also counts the replies that a crash would
// lose: those that have not been collected yet, and those that the term reports as not
// kept.
type mailbox struct {
	signal chan struct{} // holds one token while there may be something to see

	mu     sync.Mutex
	rows   []*Row
	fresh  int // rows that were put and not counted yet
	unkept int // counted rows whose replies are not kept
}

func newMailbox() *mailbox { return &mailbox{signal: make(chan struct{}, 1)} }

func (m *mailbox) put(r *Row) {
	m.mu.Lock()
	m.rows = append(m.rows, r)
	m.fresh++
	m.mu.Unlock()
	m.wake()
}

func (m *mailbox) wake() {
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take returns the answered rows and keeps spare for the next ones.
func (m *mailbox) take(spare []*Row) []*Row {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows := m.rows
	m.rows = spare[:0]
	return rows
}

// count takes collected rows out of the fresh ones, and sets how many of all collected
// ones are not kept. It reports whether the sum of both is less than before.
func (m *mailbox) count(collected, unkept int) (fewer bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.fresh + m.unkept
	m.fresh -= collected
	m.unkept = unkept
	return m.fresh+m.unkept < before
}

func (m *mailbox) lossy() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fresh + m.unkept
}

// Tracer follows rows on their way through the stage, for distributed traces. Its methods
// must not block.
type Tracer interface {
	// RowTaken is called for each row that this process takes, before the executor gets
	// it, from the goroutine of [Consumer.Run]. A row that was parked, or is no longer
	// carried over, is taken again when it comes back. RowTaken returns nil for a row that
	// is not followed.
	RowTaken(row *Row) Trace
}

// Trace follows one row. Exactly one of Emitted and Abandoned ends it, on the goroutine
// of [Consumer.Run].
type Trace interface {
	// Header holds what the row's result carries in place of the row's own headers of
	// these names, so that the consumer of the result continues this trace. It returns
	// the same headers at each call; they must not be changed.
	Header() nats.Header
	// Emitted is called when the row's result was stored.
	Emitted(reply *Reply, at time.Time)
	// Abandoned is called when this process gives up the row, which then is, or will be,
	// emitted by another term of ownership. Calls for the row may still be in flight.
	Abandoned(at time.Time)
}

// Trace returns the trace that follows the row, or nil.
func (r *Row) Trace() Trace { return r.trace }

// traceHeader holds the headers that the row's trace puts on its result.
func (r *Row) traceHeader() nats.Header {
	if r.trace == nil {
		return nil
	}
	return r.trace.Header()
}

// abandon ends the trace of a row that is not emitted here.
func (r *Row) abandon() {
	if r.trace != nil {
		r.trace.Abandoned(time.Now())
	}
}
