package lane

import (
	"cmp"
	"slices"
	"time"

	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// recallMost bounds the rows that are on their way into a batch.
	recallMost = 256
	// splitPatience is how long a half of a refused batch waits for the rest of its rows.
	splitPatience = 10 * time.Second
)

// intake has the rows that are in no recorded batch yet. A row is in one place at most:
//
//	waiting   it waits for a batch of its model to gather; the lane has its sequence alone
//	coming    it was recalled, so that its body comes again and it can join
//	gathers   it gathers in the batch of its model, with its prompt in memory
//	halves    it waits, in a half of a batch that was refused, for its turn to gather again
//	half      likewise, in the half that gathers now
//
// A row that comes may stay in left of a half until it has joined. bodies is the size of
// the lines in memory: the lines that gather here, and the lines of sealed batches until
// they are created.
type intake struct {
	most    ceiling
	waiting map[string]*rowSet // by model; "" stands for rows whose model is not known
	coming  map[uint64]bool
	gathers map[string]*gather // by model
	half    *half
	halves  []*half
	bodies  int64
}

// half is a half of a batch that was refused, which gathers again.
type half struct {
	gather  *gather
	pending rowSet // not recalled yet
	left    rowSet // not gathered yet, pending ones included
}

// await has a row wait for a batch of its model.
func (in *intake) await(model string, seq uint64) {
	w := in.waiting[model]
	if w == nil {
		w = new(rowSet)
		in.waiting[model] = w
	}
	w.add(seq)
}

// unwait takes a row out of those that wait, and reports whether it was there.
func (in *intake) unwait(seq uint64) bool {
	removed := false
	for model, w := range in.waiting {
		removed = w.remove(seq) || removed
		if w.n == 0 {
			delete(in.waiting, model)
		}
	}
	return removed
}

// join puts a row into a batch that gathers.
func (in *intake) join(g *gather, row *gathered, now time.Time) {
	g.add(row, now)
	in.bodies += int64(row.size)
}

// seal takes rows out of a batch that gathers, since they are sealed as a batch now. Their
// bodies stay in memory until [intake.free].
func (in *intake) seal(g *gather, body []*gathered, now time.Time) {
	for _, row := range body {
		g.remove(row.seq)
	}
	g.full, g.since = false, now
	switch h := in.half; {
	case len(g.rows) > 0:
	case in.gathers[g.model] == g:
		delete(in.gathers, g.model)
	case h != nil && h.gather == g && h.left.n == 0:
		in.half = nil
	}
}

// free notes that the bodies of a sealed batch are no longer in memory.
func (in *intake) free(body []*gathered) {
	for _, row := range body {
		in.bodies -= int64(row.size)
	}
}

// ungather takes a row out of what gathers.
func (in *intake) ungather(seq uint64) bool {
	for _, g := range in.gathers {
		if row := g.remove(seq); row != nil {
			in.bodies -= int64(row.size)
			return true
		}
	}
	h := in.half
	if h == nil {
		return false
	}
	h.pending.remove(seq)
	found := h.left.remove(seq)
	if row := h.gather.remove(seq); row != nil {
		in.bodies -= int64(row.size)
		found = true
	}
	return found
}

// forget removes a row wherever it is.
func (in *intake) forget(seq uint64) {
	delete(in.coming, seq)
	in.unwait(seq)
	in.ungather(seq)
	for _, h := range in.halves {
		h.left.remove(seq)
		h.pending.remove(seq)
	}
}

// has reports whether a row is anywhere here.
func (in *intake) has(seq uint64) bool {
	if h := in.half; in.coming[seq] || h != nil && (h.left.has(seq) || h.gather.rows[seq] != nil) {
		return true
	}
	for _, g := range in.gathers {
		if g.rows[seq] != nil {
			return true
		}
	}
	for _, h := range in.halves {
		if h.left.has(seq) {
			return true
		}
	}
	for _, w := range in.waiting {
		if w.has(seq) {
			return true
		}
	}
	return false
}

// gathering counts the batches that gather.
func (in *intake) gathering() int {
	n := len(in.gathers)
	if in.half != nil {
		n++
	}
	return n
}

// count returns how many rows gather, and how many wait until they may.
func (in *intake) count() (gathering, waiting int) {
	waiting = len(in.coming)
	for _, w := range in.waiting {
		waiting += w.n
	}
	for _, h := range in.halves {
		waiting += h.left.n
	}
	for _, g := range in.gathers {
		gathering += len(g.rows)
	}
	if h := in.half; h != nil {
		waiting += h.left.n
		gathering += len(h.gather.rows)
	}
	return gathering, waiting
}

// models returns the models that rows wait for, the earliest row's model first.
func (in *intake) models() []string {
	models := make([]string, 0, len(in.waiting))
	first := make(map[string]uint64, len(in.waiting))
	for model, w := range in.waiting {
		first[model], _ = w.first()
		models = append(models, model)
	}
	slices.SortFunc(models, func(a, b string) int { return cmp.Compare(first[a], first[b]) })
	return models
}

// ceiling is what one batch may hold: the settings, and what the provider takes.
type ceiling struct {
	rows  int
	bytes int64
}

func ceilingOf(rows int, bytes int64, limits batchapi.Limits) ceiling {
	c := ceiling{rows: rows, bytes: bytes}
	if limits.Rows > 0 {
		c.rows = min(c.rows, limits.Rows)
	}
	if limits.Bytes > 0 {
		c.bytes = min(c.bytes, limits.Bytes)
	}
	return c
}
