package lane

import (
	"cmp"
	"slices"
	"time"

	"github.com/llm-stage/stage/llm"
)

// submitter makes batches of rows, and batches of the provider from them: it gathers,
// seals, records the intent, uploads and creates.
type submitter struct {
	*desk
	refusals *refusals
	sizing   []byte // for one line, whose length is measured
}

// add takes a row that joins. Usually the row is new and joins the batch that gathers. It
// may also be one that an earlier batch has: then it waits for that batch's answer, since
// a second batch would be paid for as well. A row that is larger than a batch may be, or
// whose deadline has passed, goes live.
func (s *submitter) add(r *Request, now time.Time) {
	delete(s.places.intake.coming, r.Seq)
	if s.places.live.rows.has(r.Seq) { // it was handed back, and starts over
		s.places.live.again(r.Seq)
		return
	}
	b, i := s.batches.holder(r.Seq)
	if b != nil {
		switch b.state[i] {
		case rowSubmitted, rowAgain:
			return // the batch has it
		case rowAnswered:
			s.places.again(r.Seq, s.places.answers.out[r.Seq].errand)
			return
		case rowLive, rowElsewhere, rowMoved, rowKept:
		}
	}
	row := &gathered{seq: r.Seq, hash: shortKey(r.Key), prepared: r.Prepared, tokens: max(1, r.Tokens), cost: r.Cost}
	if !r.Deadline.IsZero() {
		row.deadline = r.Deadline.UnixMilli()
		s.places.dues.add(r.Seq, row.deadline)
	}
	row.tries = s.places.tried.count(r.Seq)
	s.sizing = s.cfg.API.AppendLine(s.sizing[:0], customID(sizingToken, r.Seq), r.Prepared)
	row.size = len(s.sizing)
	if int64(row.size) > s.places.intake.most.bytes || row.deadline != 0 && row.deadline <= now.UnixMilli() {
		s.places.goLive(r.Seq)
		return
	}
	s.gather(row, now)
}

// sizingToken has the length of a token. A row is measured before its batch has one.
const sizingToken = "00000000000000000000"

// gather puts a row into the batch that gathers for its model, or has it wait.
func (s *submitter) gather(row *gathered, now time.Time) {
	in, model := &s.places.intake, row.prepared.Model
	if h := in.half; h != nil && h.left.has(row.seq) && h.gather.model == model {
		h.left.remove(row.seq)
		h.pending.remove(row.seq)
		in.join(h.gather, row, now)
		return
	}
	for _, g := range in.gathers {
		if g.rows[row.seq] != nil {
			return
		}
	}
	g := in.gathers[model]
	if g == nil && s.mayOpen() {
		g = newGather(model)
		in.gathers[model] = g
	}
	if g == nil || !s.fits(g, row) {
		s.places.await(model, row.seq)
		return
	}
	in.unwait(row.seq)
	in.join(g, row, now)
}

// open counts the batches that are not ended, those that still gather included.
func (s *submitter) open() int {
	return s.places.intake.gathering() + s.batches.sealed()
}

// mayOpen reports whether another batch may begin to gather: there is memory for all of it.
// The bodies held are below one batch when it begins, so they stay below two: with batches
// of 100 MB at most, 200 MB.
func (s *submitter) mayOpen() bool {
	in := &s.places.intake
	return !s.stopping && !s.cfg.Collect && s.open() < s.cfg.Settings.Open && in.bodies < in.most.bytes
}

// fits reports whether a row may join a batch that gathers.
func (s *submitter) fits(g *gather, row *gathered) bool {
	in, limit := &s.places.intake, s.standing.capacity(g.model).limit
	// An empty batch takes any row: otherwise that row would come and go without end.
	g.full = g.full || len(g.rows) > 0 && (len(g.rows) >= in.most.rows || g.bytes+int64(row.size) > in.most.bytes ||
		limit > 0 && g.tokens+row.tokens > limit || in.bodies+int64(row.size) > 2*in.most.bytes)
	return !g.full
}

// recall has rows that wait join a batch.
func (s *submitter) recall(now time.Time) {
	if s.stopping || s.fenced || s.standing.pause.why != "" {
		return
	}
	in := &s.places.intake
	if in.half == nil && len(in.halves) > 0 && s.mayOpen() {
		in.half, in.halves = in.halves[0], in.halves[1:]
		in.half.gather.last = now
	}
	if h := in.half; h != nil {
		for _, seq := range h.pending.take(recallMost - len(in.coming)) {
			s.places.callIn(seq)
		}
	}
	for _, model := range in.models() {
		if c := s.standing.room[model]; c != nil && s.loop.wait(c.retry, now) {
			continue
		}
		room := 0
		if g := in.gathers[model]; g != nil && !g.full && in.bodies < 2*in.most.bytes {
			room = in.most.rows - len(g.rows) - len(in.coming)
		} else if g == nil && len(in.halves) == 0 && s.mayOpen() {
			room = in.most.rows - len(in.coming)
		}
		w := in.waiting[model]
		for _, seq := range w.take(min(room, recallMost-len(in.coming))) {
			s.places.callIn(seq)
		}
		if w.n == 0 {
			delete(in.waiting, model)
		}
	}
}

// gathered is a row that waits for its batch to be submitted.
type gathered struct {
	seq, hash uint64
	tries     uint8
	deadline  int64 // Unix milliseconds, 0 if there is none
	prepared  *llm.Prepared
	size      int // of its line
	tokens    int64
	cost      float64
}

// gather is a batch that is not sealed yet. bytes and tokens are always the sums over rows.
type gather struct {
	model  string
	since  time.Time // of its first row
	last   time.Time // of its newest
	rows   map[uint64]*gathered
	bytes  int64
	tokens int64
	full   bool // a row did not fit any more
}

func newGather(model string) *gather {
	return &gather{model: model, rows: make(map[uint64]*gathered)}
}

func (g *gather) add(r *gathered, now time.Time) {
	if len(g.rows) == 0 {
		g.since = now
	}
	g.last = now
	g.rows[r.seq] = r
	g.bytes += int64(r.size)
	g.tokens += r.tokens
}

func (g *gather) remove(seq uint64) *gathered {
	r := g.rows[seq]
	if r != nil {
		delete(g.rows, seq)
		g.bytes -= int64(r.size)
		g.tokens -= r.tokens
	}
	return r
}

// sorted returns the rows by sequence.
func (g *gather) sorted() []*gathered {
	rows := make([]*gathered, 0, len(g.rows))
	for _, r := range g.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *gathered) int { return cmp.Compare(a.seq, b.seq) })
	return rows
}

// rowsOf returns the record of rows. Tries and deadlines are left out if no row has any,
// since the record of a batch must fit into a message.
func rowsOf(body []*gathered) Rows {
	r := Rows{Seqs: make([]uint64, len(body)), Hashes: make([]uint64, len(body))}
	for i, g := range body {
		r.Seqs[i], r.Hashes[i] = g.seq, g.hash
		if g.tries > 0 && r.Tries == nil {
			r.Tries = make([]uint8, len(body))
		}
		if g.deadline != 0 && r.Deadlines == nil {
			r.Deadlines = make([]int64, len(body))
		}
	}
	for i, g := range body {
		if r.Tries != nil {
			r.Tries[i] = g.tries
		}
		if r.Deadlines != nil {
			r.Deadlines[i] = g.deadline
		}
	}
	return r
}
