package lane

import (
	"context"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer"
)

// keeper is the goroutine of a term of ownership. It alone owns the [desk] and everything
// that belongs to it. Others leave letters in the lane's mailbox, and requests hand it
// their ends.
type keeper struct {
	*desk

	submitter submitter
	finder    finder
	watcher   watcher
	refusals  refusals
	collector collector
	sweeper   sweeper

	// closing is closed when the term must end.
	closing chan struct{}
	// graceEnd is when the end of the term waits for nothing more. It is zero before the
	// end begins.
	graceEnd time.Time
	// shown is when the last status was published.
	shown time.Time
}

// newKeeper returns the keeper of a term that has not claimed the records yet.
func newKeeper(l *Lane, of consumer.LaneTerm) *keeper {
	d := &desk{lane: l, cfg: &l.cfg, of: of, limits: l.cfg.API.Limits()}
	d.loop = loop{running: &l.running, done: make(chan followUp), dirty: true}
	d.standing.room = make(map[string]*capacity)
	d.book = book{
		lane: l, cfg: d.cfg, loop: &d.loop, owner: of.Owner,
		filter: Filter(l.cfg.Name, l.cfg.Partition), prefix: subjectPrefix(l.cfg.Name, l.cfg.Partition),
		onFenced: d.fence, onLost: d.rewrite,
	}
	d.events = events{cfg: d.cfg, log: l.log, owner: of.Owner, mail: &l.mail}
	d.places = places{
		batches: &d.batches, recall: of.Recall, taken: &l.taken, collect: l.cfg.Collect,
		intake: intake{
			most:    ceilingOf(l.cfg.Settings.Rows, int64(l.cfg.Settings.Bytes), d.limits),
			waiting: make(map[string]*rowSet),
			coming:  make(map[uint64]bool),
			gathers: make(map[string]*gather),
		},
		answers: answers{out: make(map[uint64]outLine)},
	}
	k := &keeper{desk: d, closing: make(chan struct{})}
	k.refusals.desk = d
	k.submitter = submitter{desk: d, refusals: &k.refusals}
	k.finder.desk = d
	k.watcher = watcher{desk: d, refusals: &k.refusals}
	k.collector = collector{desk: d, lines: make(chan lineRead)}
	k.sweeper.desk = d
	return k
}

// run is the goroutine of the term. It sleeps until something has come in (the loop is
// dirty) or the next thing is due (loop.wake), and then does everything that is due. Calls
// of the provider run in goroutines of their own. Each returns a followUp, which runs here.
// So no state needs a lock.
func (k *keeper) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	closing := k.closing
	var grace <-chan time.Time
	var spare []letter
	for {
		k.loop.now = time.Now()
		if k.loop.dirty || !k.loop.now.Before(k.loop.wake) {
			k.schedule(ctx, k.loop.now)
			k.standing.report(k.lane.log, k.cfg.Paused)
			k.show()
		}
		if k.closed && k.loop.vital == 0 && !k.book.busy && !k.tidying() {
			return
		}
		timer.Reset(max(0, time.Until(k.loop.wake)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			k.loop.dirty = true
		case <-k.lane.mail.signal:
			spare = k.readAll(spare)
		case then := <-k.loop.done:
			k.loop.ops--
			k.loop.dirty = true
			then(ctx, time.Now())
		case r := <-k.collector.admit():
			k.collector.line(r)
		case <-closing:
			spare = k.readAll(spare)
			closing, k.closed, k.stopping, k.loop.dirty = nil, true, true, true
			grace = time.After(closeGrace)
		case <-grace:
			return
		}
	}
}

// readAll takes the letters that there are. It returns their slice for the next time, so
// that no memory is allocated for each round.
func (k *keeper) readAll(spare []letter) []letter {
	letters := k.lane.mail.take(spare)
	for _, m := range letters {
		k.read(m, time.Now())
	}
	clear(letters)
	return letters[:0]
}

// read takes a letter.
func (k *keeper) read(m letter, now time.Time) {
	k.loop.dirty = true
	switch m.kind {
	case letterAdd:
		k.submitter.add(m.body.(*Request), now)
	case letterAgain:
		k.places.again(m.seq, m.body.(*Errand))
	case letterKept:
		k.places.kept(m.seq)
	case letterHeld:
		k.places.holds(m.seq)
	case letterStop:
		k.stopping = true
	case letterStored:
		m.body.(*batch).unstored--
	}
}

// schedule does everything that is due. The order matters: what has gone live or failed
// leaves its batches before others are sealed, and rows are recalled last, when it is known
// how many have room. Records are written at both ends, so that those of this round need
// not wait for the next.
func (k *keeper) schedule(ctx context.Context, now time.Time) {
	k.loop.dirty, k.loop.wake = false, now.Add(time.Hour)
	if k.fenced {
		return
	}
	k.book.write(ctx, now)
	if k.closed {
		k.tidy(ctx, now)
		return
	}
	k.loop.wait(k.places.overdue(now), now)
	if !k.stopping {
		k.places.sendLive()
		k.places.sendFailing()
	}
	k.submitter.seal(ctx, now)
	for _, b := range slices.Clone(k.batches.all) {
		if !b.busy {
			k.advance(ctx, b, now)
		}
	}
	k.collector.startPass(ctx, now)
	k.submitter.recall(now)
	k.sweeper.sweep(ctx, now)
	if !k.stopping {
		k.sweeper.purgeLeft(ctx, now)
		k.finder.lookForLost(ctx, now)
	}
	k.book.write(ctx, now)
}

// advance takes the next step with a batch, if it is time.
func (k *keeper) advance(ctx context.Context, b *batch, now time.Time) {
	if k.collector.takenByOther(b) {
		b.notOurs(now)
	}
	if b.phase == phaseOver || b.phase == phaseSettling {
		k.collector.judge(b, now)
	}
	if b.phase == phaseSettling && b.isSettled() && b.unstored == 0 {
		b.phase = phaseDone
		k.book.record(&Record{Kind: RecordDone, Token: b.token}, func(time.Time) { k.close(b) })
		return
	}
	if k.stopping {
		k.watcher.cancelOnStop(ctx, b)
		return
	}
	if b.futile() && !b.cancelled && k.mayCall(now) {
		k.watcher.cancel(ctx, b)
		return
	}
	if b.phase > phaseRunning || k.loop.wait(b.next, now) || !k.mayCall(now) {
		return
	}
	switch b.phase {
	case phaseRecorded, phaseUploaded:
		k.submitter.advanceNew(ctx, b, now)
	case phaseLooking:
		k.finder.look(ctx, b, now)
	case phaseRunning:
		k.watcher.poll(ctx, b, now)
	case phaseSealed, phaseFound, phaseOver, phaseSettling, phaseAbandoned, phaseDone, phaseClosed:
	}
}
