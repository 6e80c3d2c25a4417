package lane

import "slices"

// batchList is the batches of a term, in the order of their intents, until their records
// are purged. That is the order of the records in the stream, which the times in them may
// contradict: each owner writes its own clock. A row that is in several batches belongs to
// the last one: in the others it is rowMoved.
type batchList struct {
	all []*batch
}

// holder returns the newest batch that has a row, and the row's place in it, or nil.
func (l *batchList) holder(seq uint64) (b *batch, i int) {
	for _, b := range slices.Backward(l.all) {
		if b.phase == phaseClosed {
			continue
		}
		if i := b.find(seq); i >= 0 && b.state[i] != rowMoved {
			return b, i
		}
	}
	return nil, 0
}

// sealed counts the batches that are not ended, from their intents on.
func (l *batchList) sealed() (n int) {
	for _, b := range l.all {
		if !b.ended() {
			n++
		}
	}
	return n
}

// queued sums the tokens of a model's batches that are in the provider's queue, except one,
// or nil.
func (l *batchList) queued(model string, except *batch) (sum int64) {
	for _, b := range l.all {
		if b != except && b.model == model && (b.phase == phaseLooking || b.phase == phaseFound || b.phase == phaseRunning) {
			sum += b.tokens
		}
	}
	return sum
}

// idle reports whether no batch is under way. The end of one could release the money that
// is reserved for it.
func (l *batchList) idle() bool {
	return !slices.ContainsFunc(l.all, func(b *batch) bool { return b.phase != phaseClosed })
}

// unread reports whether there is a batch whose results may end a denial.
func (l *batchList) unread() bool {
	return slices.ContainsFunc(l.all, func(b *batch) bool { return b.phase < phaseSettling })
}

// known returns the ids that can't be, or may not be, the ids of this batch. If an id may
// belong to either of two batches, both look again once one of them is known for sure.
func (l *batchList) known(b *batch) map[string]idUse {
	ids := make(map[string]idUse)
	for _, other := range l.all {
		switch {
		case other == b || other.id == "":
		case other.ours():
			ids[other.id] = idTaken
		default:
			ids[other.id] = max(ids[other.id], idDoubted)
		}
	}
	for id := range b.excluded {
		ids[id] = idTaken
	}
	return ids
}

// idUse says whether a batch that is looked for can have an id of the provider. It is 0
// for an id that no other batch has.
type idUse uint8

const (
	// idDoubted means that another batch may have the id.
	idDoubted idUse = iota + 1
	// idTaken means that another batch surely has the id, or that it turned out not to be
	// this batch.
	idTaken
)

// supersede notes for all older batches which of their rows are in this one now.
func (l *batchList) supersede(later *batch) {
	for _, older := range l.all {
		if older == later {
			return
		}
		moved(older, later)
	}
}

// moved notes the rows of a batch that are in a later one.
func moved(older, later *batch) {
	if older.phase == phaseClosed || len(older.state) == 0 || len(later.state) == 0 ||
		older.rows.Seqs[len(older.state)-1] < later.rows.Seqs[0] || later.rows.Seqs[len(later.state)-1] < older.rows.Seqs[0] {
		return
	}
	for _, seq := range later.rows.Seqs {
		if i := older.find(seq); i >= 0 && older.state[i] != rowKept {
			older.set(i, rowMoved)
		}
	}
}

// index returns the rows of the batches that are recorded and still of use.
func (l *batchList) index() index {
	x := make(index, 0, len(l.all))
	for _, b := range l.all {
		if b.phase != phaseClosed && b.phase != phaseSealed {
			x = append(x, b.rows.Seqs)
		}
	}
	return x
}

func (l *batchList) remove(b *batch) {
	l.all = slices.DeleteFunc(l.all, func(other *batch) bool { return other == b })
}
