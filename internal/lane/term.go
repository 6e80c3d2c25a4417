package lane

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// opsMax bounds the requests to the provider that are under way at a time.
	opsMax = 8
	// callTime bounds a small request to the provider, uploadTime one that carries the lines beyond the time that they take.
	callTime   = time.Minute
	uploadTime = 2 * time.Minute
	// closeGrace is how long the end of a term waits for a creation and its record, so that the next owner need not look
	// for it, and for what is left to do of batches of which nothing is wanted any more: maybe there is no next owner.
	closeGrace = 2 * time.Second
	// closePoll is the least time between two looks at a batch during that.
	closePoll = 200 * time.Millisecond
	// statusEvery is the least time between two reports.
	statusEvery = 100 * time.Millisecond
)

// term is a term of ownership. Its goroutine owns everything here; requests are made by others, which report to it.
type term struct {
	l      *Lane
	cfg    *Config
	of     consumer.LaneTerm
	limits batchapi.Limits
	most   ceiling
	book   book

	done    chan func(context.Context, time.Time)
	lines   chan lineRead
	closing chan struct{}
	ops     int
	vital   int // of them those that the end of the term waits for

	batches []*batch // in the order of their intents
	gathers map[string]*gather
	split   *splitting
	splits  []*splitting
	waiting map[string]*rowSet // by model; "": not known
	coming  map[uint64]bool    // recalled to join a batch
	tried   triedRows          // were in batches already
	dues    deadlines
	bodies  int64 // bytes of lines in memory
	room    map[string]*capacity

	liveQueue []uint64
	live      rowSet
	sent      rowSet // of the live ones: recalled
	out       map[uint64]outLine
	outBytes  int64
	failing   []failing
	pass      *pass

	pause    pause
	denial   denial
	replied  bool      // a line was a reply in this term
	held     time.Time // no batch is sealed before: there is no money
	heldBy   error
	heldIdle bool // no other batch was under way then
	refusals int  // in a row, without a line that is named, and none accepted
	lost     []*lostToken
	left     []string // tokens of which a last record is to be purged

	purging   bool
	purgeNext time.Time
	sizing    []byte

	stopping, closed, fenced bool
	toldPause                bool      // that the lane pauses is reported
	toldFatal                error     // likewise, for good
	graceEnd                 time.Time // when the end of the term waits for nothing more; zero: it does not end yet
	now, wake                time.Time
	dirty                    bool
	shown                    time.Time
}

// Open implements [consumer.Lane].
func (l *Lane) Open(ctx context.Context, of consumer.LaneTerm) error {
	l.mail.take(nil)
	l.held.Store(nil)
	l.taken.Store(of.Low)
	t := &term{
		l: l, cfg: &l.cfg, of: of, limits: l.cfg.API.Limits(),
		done: make(chan func(context.Context, time.Time)), lines: make(chan lineRead), closing: make(chan struct{}),
		gathers: make(map[string]*gather), waiting: make(map[string]*rowSet), coming: make(map[uint64]bool),
		room: make(map[string]*capacity), out: make(map[uint64]outLine), dirty: true,
	}
	t.most = ceilingOf(l.cfg.Settings.Rows, int64(l.cfg.Settings.Bytes), t.limits)
	t.book.filter, t.book.prefix = Filter(l.cfg.Name, l.cfg.Partition), subjectPrefix(l.cfg.Name, l.cfg.Partition)
	end, err := l.claim(ctx, &t.book, &Record{Kind: RecordClaim, Time: time.Now(), Owner: of.Owner, InputCreated: of.InputCreated})
	if err != nil {
		return err
	}
	t.book.end, t.book.endToken = end, claimToken
	records, err := l.readTo(ctx, end)
	if err != nil {
		return err
	}
	t.recover(records, time.Now())
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.abort = cancel
	l.close = func() {
		close(t.closing)
		l.running.Wait()
	}
	l.running.Go(func() {
		defer cancel()
		t.run(running)
	})
	return nil
}

// readTo reads the records up to the one at a sequence. A replica that answers may lag.
func (l *Lane) readTo(ctx context.Context, end uint64) (records []Record, err error) {
	for wait := range streams.Retry(ctx, bookRetryFirst, bookRetryMost) {
		records, err = Records(ctx, l.cfg.jetStream(), l.cfg.Settings.Stream, l.cfg.Name, l.cfg.Partition)
		if err == nil && len(records) > 0 && records[len(records)-1].Sequence >= end {
			return records, nil
		}
		if wait >= bookRetryMost/2 {
			return nil, cmp.Or(err, fmt.Errorf("the records of the batch lane in stream %s end before the claim", l.cfg.Settings.Stream))
		}
	}
	return nil, context.Cause(ctx)
}

// Close implements [consumer.Lane].
func (l *Lane) Close() {
	if l.close != nil {
		l.close()
		l.close = nil
	}
	l.held.Store(nil)
	l.status.Store(nil)
}

// run is the goroutine of the term.
func (t *term) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	closing := t.closing
	var grace <-chan time.Time
	var spare []letter
	for {
		t.now = time.Now()
		if t.dirty || !t.now.Before(t.wake) {
			t.schedule(ctx, t.now)
			t.tellPause()
			t.show()
		}
		if t.closed && t.vital == 0 && !t.book.busy && !t.tidying() {
			return
		}
		timer.Reset(max(0, time.Until(t.wake)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			t.dirty = true
		case <-t.l.mail.signal:
			spare = t.readAll(spare)
		case then := <-t.done:
			t.ops--
			t.dirty = true
			then(ctx, time.Now())
		case r := <-t.admit():
			t.line(r)
		case <-closing:
			spare = t.readAll(spare)
			closing, t.closed, t.stopping, t.dirty = nil, true, true, true
			grace = time.After(closeGrace)
		case <-grace:
			return
		}
	}
}

// readAll takes the letters that there are.
func (t *term) readAll(spare []letter) []letter {
	letters := t.l.mail.take(spare)
	for _, m := range letters {
		t.read(m, time.Now())
	}
	clear(letters)
	return letters[:0]
}

// do makes requests in a goroutine of their own. What f returns is called by the goroutine of the term.
func (t *term) do(ctx context.Context, bound time.Duration, f func(context.Context) func(context.Context, time.Time)) {
	t.ops++
	t.l.running.Go(func() {
		doing, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		then := f(doing)
		select {
		case t.done <- then:
		case <-ctx.Done():
		}
	})
}

// call makes a request to the provider for a batch.
func (t *term) call(ctx context.Context, b *batch, bound time.Duration, f func(context.Context) func(context.Context, time.Time)) {
	b.busy = true
	probing := t.pause.begin() || t.denial.err != nil
	reload := t.cfg.ReloadKey
	t.do(ctx, bound, func(ctx context.Context) func(context.Context, time.Time) {
		if probing && reload != nil {
			if err := reload(); err != nil {
				return func(_ context.Context, now time.Time) {
					b.busy = false
					t.pause.set(err, now, t.cfg.ProbeInterval)
				}
			}
		}
		then := f(ctx)
		return func(ctx context.Context, now time.Time) {
			b.busy = false
			t.pause.over()
			then(ctx, now)
		}
	})
}

// wait reports whether at is in the future, and has the term look again then.
func (t *term) wait(at, now time.Time) bool {
	if at.IsZero() || !now.Before(at) {
		return false
	}
	if at.Before(t.wake) {
		t.wake = at
	}
	return true
}

// schedule does everything that is due.
func (t *term) schedule(ctx context.Context, now time.Time) {
	t.dirty, t.wake = false, now.Add(time.Hour)
	if t.fenced {
		return
	}
	t.write(ctx, now)
	if t.closed {
		t.tidy(ctx, now)
		return
	}
	t.overdue(now)
	t.sendLive()
	t.sendFailing()
	t.seal(ctx, now)
	for _, b := range slices.Clone(t.batches) {
		if !b.busy {
			t.advance(ctx, b, now)
		}
	}
	t.startPass(ctx, now)
	t.recall(now)
	t.sweep(ctx, now)
	t.write(ctx, now)
}

// mayCall reports whether a request to the provider may be made now.
func (t *term) mayCall(now time.Time) bool {
	return t.ops < opsMax && !t.wait(t.pause.next(now), now)
}

// fence ends the term's work: another owns the partition.
func (t *term) fence(err error) {
	t.fenced, t.stopping = true, true
	t.l.log.Warn("the batch lane is fenced", slog.Any("error", err))
	t.of.Fenced(err)
}

// drop forgets a batch.
func (t *term) drop(b *batch) {
	t.batches = slices.DeleteFunc(t.batches, func(other *batch) bool { return other == b })
	t.freeBody(b)
	t.reindex()
}

func (t *term) freeBody(b *batch) {
	for _, r := range b.body {
		t.bodies -= int64(r.size)
	}
	b.body = nil
}

// reindex tells [Lane.Holds] in which batches rows are.
func (t *term) reindex() {
	x := make(index, 0, len(t.batches))
	for _, b := range t.batches {
		if b.stage != stageClosed && b.stage != stageSealed {
			x = append(x, b.rows.Seqs)
		}
	}
	t.l.held.Store(&x)
}

// event records a change in the life of a batch.
func (t *term) event(b *batch, phase auditlog.BatchPhase, reason string) *auditlog.Batch {
	return &auditlog.Batch{
		Header: auditlog.Header{Time: time.Now(), Partition: auditlog.Partition(t.cfg.Partition)},
		Owner:  t.of.Owner, Phase: phase, Token: b.token, BatchID: b.id, Provider: t.cfg.Provider, Model: b.model,
		Rows: len(b.state), Bytes: b.bytes, Reason: reason,
	}
}

func (t *term) audit(b *batch, e *auditlog.Batch) {
	t.tell(b, e, false)
	t.l.log.Info("batch", slog.String("phase", string(e.Phase)), slog.String("token", e.Token), slog.String("batch_id", e.BatchID),
		slog.Int("rows", e.Rows), slog.String("reason", e.Reason))
}

// tell records an event. The records of a batch stay until all its events are stored, so what a kill has lost is
// recorded again by the next term.
func (t *term) tell(b *batch, e *auditlog.Batch, again bool) {
	if t.cfg.Record == nil {
		return
	}
	b.untold++
	mail := &t.l.mail
	t.cfg.Record(e, again, func() { mail.put(letter{kind: letterStored, body: b}) })
}

// tellAgain records what earlier terms should have recorded of a batch.
func (t *term) tellAgain(b *batch, abandoned *Record) {
	t.tell(b, t.event(b, auditlog.BatchIntent, ""), true)
	switch {
	case abandoned != nil:
		t.tell(b, t.event(b, auditlog.BatchAbandoned, abandoned.Reason), true)
	case b.id != "" && b.adopted:
		t.tell(b, t.event(b, auditlog.BatchAdopted, ""), true)
	case b.id != "":
		t.tell(b, t.event(b, auditlog.BatchSubmitted, ""), true)
	}
}

func (t *term) settle(b *batch, usd float64) {
	if t.cfg.Settle != nil {
		t.cfg.Settle(b.token, usd)
		t.held = time.Time{} // what was reserved may be free now
	}
}

func (l *Lane) step(name string) {
	if l.cfg.Step != nil {
		l.cfg.Step(name)
	}
}

// recover takes over what earlier terms have recorded.
func (t *term) recover(records []Record, now time.Time) {
	byToken := make(map[string]*batch)
	for i := range records {
		r := &records[i]
		b := byToken[r.Token]
		switch {
		case r.Kind == RecordIntent:
			b = newBatch(r)
			b.stage = stageLooking
			if !r.InputCreated.Equal(t.of.InputCreated) {
				b.problem = otherInput
			}
			byToken[r.Token] = b
			t.batches = append(t.batches, b)
		case r.Kind == RecordClaim:
		case b == nil && r.Kind == RecordAbandoned && r.Uncertain && now.Sub(r.Time) < lostAge:
			t.lose(r, now)
		case b == nil:
			t.left = append(t.left, r.Token)
		case r.Kind == RecordSubmitted:
			b.id, b.adopted, b.tentative, b.submitted, b.stage = r.BatchID, r.Adopted, r.Tentative, r.Time, stageRunning
			b.remote = batchapi.Batch{ID: r.BatchID, State: batchapi.Running, Rows: -1, Answered: -1, Failed: -1}
		case r.Kind == RecordDone:
			b.stage = stageClosed
		case r.Kind == RecordAbandoned:
			b.stage = stageClosed
			b.id = ""
			t.tellAgain(b, r)
			if r.Uncertain && now.Sub(r.Time) < lostAge {
				t.lose(r, now)
				b.keep = true
			}
		}
	}
	slices.SortStableFunc(t.batches, func(a, b *batch) int { return a.intent.Compare(b.intent) })
	for _, b := range t.batches {
		t.takeOver(b, now)
	}
	t.left = append(t.left, claimToken)
	t.reindex()
}

const otherInput = "the input stream was re-created since: its rows mean others"

// takeOver prepares a batch of an earlier term.
func (t *term) takeOver(b *batch, now time.Time) {
	if b.stage == stageClosed {
		b.rows, b.state, b.count = Rows{}, nil, [rowStates]int{}
		return
	}
	t.tellAgain(b, nil)
	b.lookUntil = now.Add(adoptTime(t.limits, b.bytes, t.cfg.Settings.AdoptWait))
	for i, seq := range b.rows.Seqs {
		if b.problem == otherInput || seq <= t.of.Low {
			b.set(i, rowKept)
		}
		t.tried.set(seq, uint8(b.tries(i))) //nolint:gosec // read from a byte
	}
	for _, older := range t.batches {
		if older == b {
			break
		}
		moved(older, b)
	}
	if t.cfg.Hold != nil {
		t.cfg.Hold(b.token, b.cost)
	}
}

// moved notes the rows of a batch that are in a later one.
func moved(older, later *batch) {
	if older.stage == stageClosed || len(older.state) == 0 || len(later.state) == 0 ||
		older.rows.Seqs[len(older.state)-1] < later.rows.Seqs[0] || later.rows.Seqs[len(later.state)-1] < older.rows.Seqs[0] {
		return
	}
	for _, seq := range later.rows.Seqs {
		if i := older.find(seq); i >= 0 && older.state[i] != rowKept {
			older.set(i, rowMoved)
		}
	}
}
