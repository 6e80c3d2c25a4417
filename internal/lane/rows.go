package lane

import (
	"slices"
	"time"

	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// recallMost bounds the rows that are on their way into a batch, linesMost and linesBytes those with an answer, and
	// liveMost those that are called live.
	recallMost = 256
	linesMost  = 256
	linesBytes = 16 << 20
	liveMost   = 1024
	// splitPatience is how long a half of a refused batch waits for the rest of its rows.
	splitPatience = 10 * time.Second
)

// splitting is a half of a batch that was refused, which gathers again.
type splitting struct {
	gather  *gather
	pending rowSet // not recalled yet
	left    rowSet // not gathered yet, pending ones included
}

// failing is a row that fails by the refusal of its batch.
type failing struct {
	seq    uint64
	errand *Errand
}

// outLine is an answer on its way through the executor.
type outLine struct {
	batch  *batch // nil: none
	errand *Errand
	bytes  int64
}

// liveErrands are those of rows that go live, by the batches that they were in.
var liveErrands = [triesMax + 1]*Errand{{Live: true}, {Live: true, Tries: 1}, {Live: true, Tries: 2}, {Live: true, Tries: 3}}

// read takes a letter.
func (t *term) read(m letter, now time.Time) {
	t.dirty = true
	switch m.kind {
	case letterAdd:
		t.add(m.body.(*Request), now)
	case letterAgain:
		t.again(m.seq, m.body.(*Errand))
	case letterKept:
		t.kept(m.seq)
	case letterHeld:
		t.holds(m.seq)
	case letterStop:
		t.stopping = true
	case letterStored:
		m.body.(*batch).untold--
	}
}

// holder returns the newest batch that has a row, and where; nil: none.
func (t *term) holder(seq uint64) (b *batch, i int) {
	for _, b := range slices.Backward(t.batches) {
		if b.stage == stageClosed {
			continue
		}
		if i := b.find(seq); i >= 0 && b.state[i] != rowMoved {
			return b, i
		}
	}
	return nil, 0
}

// loose reports whether a row is on its way into a batch, or live.
func (t *term) loose(seq uint64) bool {
	if t.live.has(seq) || t.coming[seq] || t.split != nil && (t.split.left.has(seq) || t.split.gather.rows[seq] != nil) {
		return true
	}
	for _, g := range t.gathers {
		if g.rows[seq] != nil {
			return true
		}
	}
	for _, s := range t.splits {
		if s.left.has(seq) {
			return true
		}
	}
	for _, w := range t.waiting {
		if w.has(seq) {
			return true
		}
	}
	_, out := t.out[seq]
	return out
}

// add takes a row that joins.
func (t *term) add(r *Request, now time.Time) {
	delete(t.coming, r.Seq)
	if t.live.has(r.Seq) { // it was handed back, and starts over
		if t.sent.remove(r.Seq) {
			t.liveQueue = append(t.liveQueue, r.Seq)
		}
		return
	}
	b, i := t.holder(r.Seq)
	if b != nil {
		switch b.state[i] {
		case rowSubmitted, rowAgain:
			return // the batch has it
		case rowAnswered:
			t.again(r.Seq, t.out[r.Seq].errand)
			return
		case rowLive, rowElsewhere, rowMoved, rowKept:
		}
	}
	row := &gathered{seq: r.Seq, hash: shortKey(r.Key), prepared: r.Prepared, tokens: max(1, r.Tokens), cost: r.Cost}
	if !r.Deadline.IsZero() {
		row.deadline = r.Deadline.UnixMilli()
		t.dues.add(r.Seq, row.deadline)
	}
	row.tries = t.tried.count(r.Seq)
	t.sizing = t.cfg.API.AppendLine(t.sizing[:0], customID(sizingToken, r.Seq), r.Prepared)
	row.size = len(t.sizing)
	if int64(row.size) > t.most.bytes || row.deadline != 0 && row.deadline <= now.UnixMilli() {
		t.goLive(r.Seq, now)
		return
	}
	t.gather(row, now)
}

const sizingToken = "00000000000000000000"

// gather puts a row into the batch that gathers for its model, or has it wait.
func (t *term) gather(row *gathered, now time.Time) {
	model := row.prepared.Model
	if s := t.split; s != nil && s.left.has(row.seq) && s.gather.model == model {
		s.left.remove(row.seq)
		s.pending.remove(row.seq)
		s.gather.add(row, now)
		t.bodies += int64(row.size)
		return
	}
	for _, g := range t.gathers {
		if g.rows[row.seq] != nil {
			return
		}
	}
	g := t.gathers[model]
	if g == nil && t.mayOpen() {
		g = newGather(model)
		t.gathers[model] = g
	}
	if g == nil || !t.fits(g, row) {
		t.await(model, row.seq)
		return
	}
	t.unwait(row.seq)
	g.add(row, now)
	t.bodies += int64(row.size)
}

// mayOpen reports whether another batch may begin to gather: there is memory for all of it.
func (t *term) mayOpen() bool {
	return !t.stopping && !t.cfg.Collect && t.open() < t.cfg.Settings.Open && t.bodies < t.most.bytes
}

// fits reports whether a row may join a batch that gathers.
func (t *term) fits(g *gather, row *gathered) bool {
	limit := t.capacityOf(g.model).limit
	// An empty one takes any row: else that would come and go without end.
	g.full = g.full || len(g.rows) > 0 && (len(g.rows) >= t.most.rows || g.bytes+int64(row.size) > t.most.bytes ||
		limit > 0 && g.tokens+row.tokens > limit || t.bodies+int64(row.size) > 2*t.most.bytes)
	return !g.full
}

// await has a row wait for a batch to gather in. Where there will be none it goes live.
func (t *term) await(model string, seq uint64) {
	if t.cfg.Collect {
		t.goLive(seq, t.now)
		return
	}
	w := t.waiting[model]
	if w == nil {
		w = new(rowSet)
		t.waiting[model] = w
	}
	w.add(seq)
	t.elsewhere(seq)
}

// elsewhere notes that a row has left the batch that has it.
func (t *term) elsewhere(seq uint64) {
	if b, i := t.holder(seq); b != nil && b.state[i] != rowKept {
		b.set(i, rowElsewhere)
	}
}

func (t *term) unwait(seq uint64) bool {
	removed := false
	for model, w := range t.waiting {
		removed = w.remove(seq) || removed
		if w.n == 0 {
			delete(t.waiting, model)
		}
	}
	return removed
}

// again takes back a row whose answer did not settle it.
func (t *term) again(seq uint64, e *Errand) {
	o, out := t.out[seq]
	if !out || o.errand != e {
		return // of an earlier term
	}
	t.back(seq)
	b := o.batch
	if b == nil {
		t.tried.set(seq, t.tried.count(seq)+1)
		t.await("", seq)
	} else if i := b.find(seq); i >= 0 && b.state[i] == rowAnswered {
		b.set(i, rowAgain)
	}
}

// back notes that an answer is no longer on its way.
func (t *term) back(seq uint64) {
	if o, out := t.out[seq]; out {
		t.outBytes -= o.bytes
		delete(t.out, seq)
	}
}

// kept forgets a row.
func (t *term) kept(seq uint64) {
	t.back(seq)
	delete(t.coming, seq)
	t.live.remove(seq)
	t.sent.remove(seq)
	t.tried.remove(seq)
	t.unwait(seq)
	t.ungather(seq)
	for _, s := range t.splits {
		s.left.remove(seq)
		s.pending.remove(seq)
	}
	for _, b := range t.batches {
		if b.stage == stageClosed {
			continue
		}
		if i := b.find(seq); i >= 0 && b.state[i] != rowMoved {
			b.set(i, rowKept)
		}
	}
}

// ungather takes a row out of what gathers.
func (t *term) ungather(seq uint64) bool {
	for _, g := range t.gathers {
		if row := g.remove(seq); row != nil {
			t.bodies -= int64(row.size)
			return true
		}
	}
	s := t.split
	if s == nil {
		return false
	}
	s.pending.remove(seq)
	found := s.left.remove(seq)
	if row := s.gather.remove(seq); row != nil {
		t.bodies -= int64(row.size)
		found = true
	}
	return found
}

// holds takes a row that was parked since it is in a batch. If that was given up meanwhile, the row goes again.
func (t *term) holds(seq uint64) {
	b, i := t.holder(seq)
	switch {
	case b != nil && b.state[i] == rowSubmitted:
		t.dues.add(seq, b.deadline(i))
	case b != nil && b.state[i] == rowKept:
		t.await(b.model, seq)
	case b == nil && !t.loose(seq):
		t.await("", seq)
	}
}

// overdue has rows go live whose deadline has come.
func (t *term) overdue(now time.Time) {
	for {
		d, ok := t.dues.next()
		if !ok || t.wait(time.UnixMilli(d.at), now) {
			return
		}
		t.dues.pop()
		b, i := t.holder(d.seq)
		switch {
		case b != nil && (b.state[i] == rowSubmitted || b.state[i] == rowAgain):
			t.goLive(d.seq, now)
		case b != nil && b.state[i] != rowElsewhere && b.state[i] != rowKept:
		case t.coming[d.seq]: // it goes live when it joins
		case t.ungather(d.seq), t.unwait(d.seq):
			t.goLive(d.seq, now)
		}
	}
}

// goLive has a row called live.
func (t *term) goLive(seq uint64, _ time.Time) {
	if b, i := t.holder(seq); b != nil && b.state[i] != rowKept {
		b.set(i, rowLive)
	}
	t.unwait(seq)
	if t.live.add(seq) {
		t.liveQueue = append(t.liveQueue, seq)
	}
}

// sendLive recalls rows that go live.
func (t *term) sendLive() {
	if t.stopping {
		return
	}
	for len(t.liveQueue) > 0 && t.sent.n < liveMost {
		seq := t.liveQueue[0]
		t.liveQueue = t.liveQueue[1:]
		if !t.live.has(seq) {
			continue
		}
		tries := int(t.tried.count(seq))
		if b, i := t.holder(seq); b != nil {
			tries = b.tries(i) + 1
		}
		errand := liveErrands[min(tries, len(liveErrands)-1)]
		t.sent.add(seq)
		t.of.Recall(seq, errand)
	}
	if len(t.liveQueue) == 0 {
		t.liveQueue = nil
	}
}

// sendFailing recalls rows that fail by a refusal.
func (t *term) sendFailing() {
	for !t.stopping && len(t.failing) > 0 && len(t.out) < linesMost {
		f := t.failing[0]
		t.failing = t.failing[1:]
		t.send(f.seq, nil, f.errand)
	}
}

// send recalls a row with its answer.
func (t *term) send(seq uint64, b *batch, e *Errand) {
	bytes := int64(len(e.Line.Body))
	t.out[seq] = outLine{batch: b, errand: e, bytes: bytes}
	t.outBytes += bytes
	t.of.Recall(seq, e)
}

// recall has rows that wait join a batch.
func (t *term) recall(now time.Time) {
	if t.stopping || t.fenced || t.pause.why != "" {
		return
	}
	if t.split == nil && len(t.splits) > 0 && t.mayOpen() {
		t.split, t.splits = t.splits[0], t.splits[1:]
		t.split.gather.last = now
	}
	if s := t.split; s != nil {
		for _, seq := range s.pending.take(recallMost - len(t.coming)) {
			t.callIn(seq)
		}
	}
	for _, model := range t.waitingModels() {
		if c := t.room[model]; c != nil && t.wait(c.retry, now) {
			continue
		}
		room := 0
		if g := t.gathers[model]; g != nil && !g.full && t.bodies < 2*t.most.bytes {
			room = t.most.rows - len(g.rows) - len(t.coming)
		} else if g == nil && len(t.splits) == 0 && t.mayOpen() {
			room = t.most.rows - len(t.coming)
		}
		w := t.waiting[model]
		for _, seq := range w.take(min(room, recallMost-len(t.coming))) {
			t.callIn(seq)
		}
		if w.n == 0 {
			delete(t.waiting, model)
		}
	}
}

func (t *term) callIn(seq uint64) {
	t.coming[seq] = true
	t.of.Recall(seq, nil)
}

// waitingModels returns the models that rows wait for, that of the earliest row first.
func (t *term) waitingModels() []string {
	models := make([]string, 0, len(t.waiting))
	first := make(map[string]uint64, len(t.waiting))
	for model, w := range t.waiting {
		first[model], _ = w.first()
		models = append(models, model)
	}
	slices.SortFunc(models, func(a, b string) int {
		if first[a] < first[b] {
			return -1
		}
		return 1
	})
	return models
}

// release has the rows of a batch that is given up go into others. Rows that have not come yet in this term need
// nothing: they start like new ones.
func (t *term) release(b *batch) {
	for i, seq := range b.rows.Seqs {
		if t.unanswered(b, i) {
			t.await(b.model, seq)
		}
	}
}

// unanswered reports whether a row of a batch that is given up must go elsewhere.
func (t *term) unanswered(b *batch, i int) bool {
	return (b.state[i] == rowSubmitted || b.state[i] == rowAgain) && b.rows.Seqs[i] <= t.l.taken.Load()
}

// releaseBut is release for a batch with bad rows, which fail with the provider's message.
func (t *term) releaseBut(bad []int, line batchapi.Line) func(*batch) {
	return func(b *batch) {
		for _, i := range bad {
			if t.unanswered(b, i) {
				seq, own := b.rows.Seqs[i], line
				own.ID = customID(b.token, seq)
				b.set(i, rowElsewhere)
				t.failing = append(t.failing, failing{seq: seq, errand: &Errand{
					Line: &own, Key: keyText(b.rows.Hashes[i]), BatchID: b.id, Token: b.token, Tries: b.tries(i),
				}})
			}
		}
		t.release(b)
	}
}

// releaseHalves has a batch gather again in two halves.
func (t *term) releaseHalves(b *batch) {
	var seqs []uint64
	for i, seq := range b.rows.Seqs {
		if t.unanswered(b, i) {
			b.set(i, rowElsewhere)
			seqs = append(seqs, seq)
		}
	}
	for _, half := range [][]uint64{seqs[:len(seqs)/2], seqs[len(seqs)/2:]} {
		s := &splitting{gather: newGather(b.model)}
		for _, seq := range half {
			s.pending.add(seq)
			s.left.add(seq)
		}
		if len(half) > 0 {
			t.splits = append(t.splits, s)
		}
	}
}

// releaseLive has the rows of a batch go live.
func (t *term) releaseLive(b *batch) {
	for i, seq := range b.rows.Seqs {
		if t.unanswered(b, i) {
			t.goLive(seq, time.Time{})
		}
	}
}
