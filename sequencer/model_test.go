package sequencer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is the dumbest buffer that is right: a slice of all rows that ever entered, in stream order,
// and one of those that are ready, both searched from the front.
type model struct {
	limits           Limits
	from             uint64 // the low-water mark that it began with
	known            []uint64
	rows             []*modelRow
	ready            []*modelRow
	keys             map[string]*modelKey // those with rows
	turns            []*modelKey          // those listed for Next, some without rows by now
	last, sub, compl uint64
}

type modelRow struct {
	Entry[int]
	key           *modelKey
	state         state
	fresh         bool
	completeIndex uint64
}

type modelKey struct {
	key    Key
	name   string // unique, also for a key that is Own
	listed bool
}

func (m *model) in(states ...state) (rows []*modelRow) {
	for _, r := range m.rows {
		if slices.Contains(states, r.state) {
			rows = append(rows, r)
		}
	}
	return rows
}

func (m *model) held() []*modelRow { return m.in(open, complete, ready) }
func (m *model) away() []*modelRow { return m.in(parked, due, returning) }
func (m *model) queue(k *modelKey) []*modelRow {
	return slices.DeleteFunc(m.in(open, complete, parked, due, returning), func(r *modelRow) bool { return r.key != k })
}

func (m *model) aside(k *modelKey) []*modelRow {
	return slices.DeleteFunc(m.queue(k), func(r *modelRow) bool { return !r.fresh })
}

func weightOf(rows []*modelRow) (sum int64) {
	for _, r := range rows {
		sum += int64(r.Bytes)
	}
	return sum
}

func (m *model) count(k *modelKey, s state) (n int) {
	for _, r := range m.queue(k) {
		if r.state == s {
			n++
		}
	}
	return n
}

// find returns the key of a new row.
func (m *model) find(key Key, seq uint64) *modelKey {
	name := "of all " + key.Name
	if key.Own {
		name = fmt.Sprint("of row ", seq)
	}
	if k := m.keys[name]; k != nil {
		return k
	}
	return &modelKey{key: key, name: name}
}

// sweep forgets the keys without rows.
func (m *model) sweep() {
	maps.DeleteFunc(m.keys, func(_ string, k *modelKey) bool { return len(m.queue(k)) == 0 })
}

func (m *model) mark() Mark {
	mark := Mark{Low: m.from, Ahead: len(m.known)}
	waits := false
	for _, r := range m.rows {
		switch {
		case r.state != unused && r.state != dropped:
			waits = true
		case waits && r.state == unused:
			mark.Ahead++
		case waits:
		default:
			mark.Low = r.Seq
		}
	}
	return mark
}

// above returns the rows above the low-water mark.
func (m *model) above() (rows []*modelRow) {
	low := m.mark().Low
	return slices.DeleteFunc(slices.Clone(m.rows), func(r *modelRow) bool { return r.Seq <= low })
}

func (m *model) reserve() (rows int, bytes int64) {
	if !m.limits.Shared {
		return 0, 0
	}
	return m.limits.Rows / 8, m.limits.Bytes / 8
}

func (m *model) taken() int { return len(m.in(open, complete, ready, returning)) }

func (m *model) takenBytes() int64 {
	bytes := weightOf(m.in(open, complete, ready, returning))
	if m.limits.Shared {
		bytes -= max(0, weightOf(m.in(complete))-m.limits.Bytes/2)
	}
	return bytes
}

func (m *model) crowded() bool {
	waiting := m.in(complete)
	return m.limits.Shared && (2*len(waiting) >= m.limits.Rows || 2*weightOf(waiting) >= m.limits.Bytes)
}

func (m *model) inReserve() bool {
	rows, bytes := m.reserve()
	return m.limits.Shared && (m.taken() >= m.limits.Rows-rows || bytes > 0 && m.takenBytes() >= m.limits.Bytes-bytes)
}

func (m *model) room() (int, int64) {
	rows, bytes := m.limits.Rows-m.taken(), m.limits.Bytes-m.takenBytes()
	if !m.crowded() {
		r, b := m.reserve()
		rows, bytes = rows-r, bytes-b
	}
	return max(0, min(rows, m.limits.Span-len(m.above()))), max(0, bytes)
}

func (m *model) noRoom(bytes int) bool {
	return m.taken() >= m.limits.Rows || m.taken() > 0 && m.takenBytes()+int64(bytes) > m.limits.Bytes
}

func (m *model) full(bytes int) bool { return len(m.above()) >= m.limits.Span || m.noRoom(bytes) }

func (m *model) outside(key Key, bytes int) bool {
	if !m.limits.Shared {
		return false
	}
	k := m.find(key, 0)
	rows := m.queue(k)
	return m.noRoom(bytes) || len(m.aside(k)) > 0 ||
		m.crowded() && len(rows) > 0 && (m.count(k, complete) > 0 || m.inReserve())
}

func (m *model) mayEnter(seq uint64) error {
	switch {
	case seq <= m.last:
		return ErrOutOfOrder
	case slices.Contains(m.known, seq):
		return ErrFinished
	}
	return nil
}

func (m *model) enter(seq uint64, key Key, bytes int) *modelRow {
	m.pass(seq)
	m.last = seq
	r := &modelRow{Entry: Entry[int]{Seq: seq, Bytes: bytes}, key: m.find(key, seq)}
	m.keys[r.key.name] = r.key
	m.rows = append(m.rows, r)
	return r
}

func (m *model) hold(r *modelRow) uint64 {
	r.state, r.SubmitIndex = open, m.sub
	m.sub++
	return r.SubmitIndex
}

func (m *model) open(seq uint64, key Key, bytes int) (uint64, error) {
	if err := m.mayEnter(seq); err != nil {
		return 0, err
	}
	if len(m.aside(m.find(key, seq))) > 0 {
		return 0, ErrOutOfOrder
	}
	if m.full(bytes) {
		return 0, ErrFull
	}
	return m.hold(m.enter(seq, key, bytes)), nil
}

func (m *model) setAside(seq uint64, key Key, bytes int) error {
	if err := m.mayEnter(seq); err != nil {
		return err
	}
	if len(m.above()) >= m.limits.Span {
		return ErrFull
	}
	r := m.enter(seq, key, bytes)
	r.state, r.fresh, r.Value = due, true, -int(seq)
	m.list(r.key)
	return nil
}

// pass lets the known rows up to seq enter.
func (m *model) pass(seq uint64) {
	for len(m.known) > 0 && m.known[0] <= seq {
		m.last = m.known[0]
		m.rows = append(m.rows, &modelRow{Entry: Entry[int]{Seq: m.known[0]}})
		m.known = m.known[1:]
	}
}

func (m *model) row(seq uint64) *modelRow {
	i := slices.IndexFunc(m.rows, func(r *modelRow) bool { return r.Seq == seq })
	if i < 0 || m.rows[i].state == unused || m.rows[i].state == dropped {
		return nil
	}
	return m.rows[i]
}

// before returns the row that r waits for: the first of its key that is not complete.
func (m *model) before(r *modelRow) *modelRow {
	if rows := m.queue(r.key); r.state != ready && rows[0] != r {
		return rows[0]
	}
	return nil
}

// findOpen returns a row that is held and has no value.
func (m *model) findOpen(seq uint64) (*modelRow, error) {
	r := m.row(seq)
	switch {
	case r == nil || r.state.isAway():
		return nil, ErrNotOpen
	case r.state != open:
		return nil, ErrCompleted
	}
	return r, nil
}

func (m *model) complete(seq uint64, v, bytes int) (uint64, error) {
	r, err := m.findOpen(seq)
	if err != nil {
		return 0, err
	}
	r.Value, r.Bytes, r.completeIndex, r.state = v, bytes, m.compl, complete
	m.compl++
	m.moveUp()
	return r.completeIndex, nil
}

// moveUp makes the rows ready that wait for no other.
func (m *model) moveUp() {
	for _, r := range m.in(complete) {
		if m.before(r) == nil {
			r.state = ready
			m.ready = append(m.ready, r)
		}
	}
	m.sweep()
}

func (m *model) release(n int) (marks []Mark) {
	for range n {
		*m.ready[0] = modelRow{Entry: Entry[int]{Seq: m.ready[0].Seq}}
		m.ready = m.ready[1:]
		marks = append(marks, m.mark())
	}
	return marks
}

func (m *model) park(seq uint64, near bool) error {
	r, err := m.findOpen(seq)
	if err != nil {
		return err
	}
	if m.parked() >= m.limits.Parked {
		return ErrFull
	}
	r.state, r.Value = parked, -int(seq)
	if near {
		r.state = due
		m.list(r.key)
	}
	return nil
}

func (m *model) parked() (n int) {
	for _, r := range m.in(parked, due) {
		if !r.fresh {
			n++
		}
	}
	return n
}

// nextOf returns the row of a key that comes back next.
func (m *model) nextOf(k *modelKey) *modelRow {
	rows := m.queue(k)
	if m.limits.Shared && m.count(k, returning) >= 16 {
		return nil
	}
	for _, r := range rows {
		if r.state == due {
			return r
		}
		if r.state == parked {
			break
		}
	}
	for _, r := range rows {
		if r.fresh && r.state == due {
			return r
		}
	}
	return nil
}

func (m *model) list(k *modelKey) {
	if !k.listed && m.nextOf(k) != nil {
		k.listed = true
		m.turns = append(m.turns, k)
	}
}

func (m *model) mayReturn(r *modelRow) bool {
	first := m.queue(r.key)[0] == r
	if m.taken() >= m.limits.Rows || m.takenBytes() >= m.limits.Bytes {
		stuck := len(m.in(open, ready, returning)) == 0
		return m.above()[0] == r || stuck && first
	}
	return first || !m.inReserve() && (!m.crowded() || m.count(r.key, complete) == 0)
}

func (m *model) comeBack(r *modelRow) uint64 {
	r.state = returning
	m.list(r.key)
	return r.Seq
}

func (m *model) recall(seq uint64) bool {
	r := m.row(seq)
	if r == nil || r.fresh || r.state != parked && r.state != due || !m.mayReturn(r) {
		return false
	}
	m.comeBack(r)
	return true
}

// next returns the row that comes back next; 0: none.
func (m *model) next() uint64 {
	if len(m.turns) == 0 {
		return 0
	}
	if above := m.above(); len(above) > 0 && above[0].state == due {
		return m.comeBack(above[0])
	}
	for range min(len(m.turns), 16) {
		k := m.turns[0]
		m.turns = m.turns[1:]
		r := m.nextOf(k)
		k.listed = false
		m.list(k)
		if r != nil && m.mayReturn(r) {
			return m.comeBack(r)
		}
	}
	return 0
}

// leave ends the way back of a row. next is the row of its key that may return now, 0 for none.
func (m *model) leave(seq uint64, to state) (r *modelRow, next uint64, err error) {
	r = m.row(seq)
	if r == nil || r.state != returning {
		return nil, 0, ErrNotOpen
	}
	fresh := r.fresh
	if fresh && m.aside(r.key)[0] != r {
		return nil, 0, ErrOutOfOrder
	}
	if fresh && to == open {
		m.hold(r)
	}
	r.state, r.fresh = to, false
	m.list(r.key)
	if rows := m.aside(r.key); fresh && len(rows) > 0 && rows[0].state == returning {
		next = rows[0].Seq
	}
	m.moveUp()
	return r, next, nil
}

// waited returns the rows that complete rows wait for, in stream order.
func (m *model) waited() (rows []*modelRow) {
	for _, r := range m.in(complete) {
		if before := m.before(r); !slices.Contains(rows, before) {
			rows = append(rows, before)
		}
	}
	slices.SortFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.Seq, b.Seq) })
	return rows
}

// finished returns the rows above the mark that are.
func (m *model) finished() (seqs []uint64) {
	for _, r := range m.above() {
		if r.state == unused {
			seqs = append(seqs, r.Seq)
		}
	}
	return append(seqs, m.known...)
}

// pair is a buffer and its model, which are given the same calls.
type pair struct {
	b *Buffer[int]
	m *model
}

// live begins a life of both.
func live(t *rapid.T, limits Limits, low uint64, known []uint64) pair {
	b, err := New[int](limits, low, slices.Clone(known))
	if err != nil {
		t.Fatal(err)
	}
	return pair{b, &model{limits: limits, from: low, last: low, known: known, keys: make(map[string]*modelKey)}}
}

func same(t *rapid.T, what string, got, want any, gotErr, wantErr error) {
	if got != want || !errors.Is(gotErr, wantErr) {
		t.Fatalf("%s: got %v, %v, want %v, %v", what, got, gotErr, want, wantErr)
	}
}

func (p pair) next(t *rapid.T) (seq uint64, ok bool) {
	want := p.m.next()
	seq, ok = p.b.Next()
	same(t, "next", seq, want, nil, nil)
	return seq, ok
}

// comeBack returns a row, or drops it. What it answers is the next row that may return.
func (p pair) comeBack(t *rapid.T, seq uint64, drop bool) (next uint64) {
	if drop {
		r, wantNext, wantErr := p.m.leave(seq, dropped)
		key, next, err := p.b.Drop(seq)
		same(t, "drop", next, wantNext, err, wantErr)
		if err == nil {
			same(t, "key of the dropped row", key, r.key.key, nil, nil)
		}
		return next
	}
	r, wantNext, wantErr := p.m.leave(seq, open)
	submit, next, err := p.b.Return(seq)
	same(t, "return", next, wantNext, err, wantErr)
	if err == nil {
		same(t, "submit index of the returned row", submit, r.SubmitIndex, nil, nil)
	}
	return next
}

func (p pair) complete(t *rapid.T, seq uint64, bytes int) {
	want, wantErr := p.m.complete(seq, bytes, bytes)
	got, err := p.b.Complete(seq, bytes, bytes)
	same(t, "complete", got, want, err, wantErr)
}

// anyOf mostly draws one of the rows, and else any number.
func (p pair) anyOf(t *rapid.T, rows []*modelRow) uint64 {
	if len(rows) > 0 && rapid.IntRange(0, 9).Draw(t, "foreign") > 0 {
		return rapid.SampledFrom(rows).Draw(t, "row").Seq
	}
	return rapid.Uint64Range(0, p.m.last+2).Draw(t, "seq")
}

func drawLimits(t *rapid.T) Limits {
	limits := Limits{
		Rows:   rapid.IntRange(1, 30).Draw(t, "rows"),
		Bytes:  rapid.SampledFrom([]int64{40, 400, 1 << 40}).Draw(t, "bytes"),
		Shared: rapid.Bool().Draw(t, "shared"),
		Parked: rapid.SampledFrom([]int{0, 3, 50}).Draw(t, "parked"),
	}
	limits.Span = limits.Rows + rapid.IntRange(0, 50).Draw(t, "span")
	return limits
}

// Every step of a drawn run answers as the model does, through several lives: after a crash the rows
// that are not finished come again, and the finished ones too, but for some. One key alone is stream
// order, keys that are their rows' own are no order.
func TestBufferBehavesLikeASliceOfRows(t *testing.T) {
	for range 25 { // a run takes a fifth of a millisecond, and one in hundreds finds some faults
		rapid.Check(t, behavesLikeASliceOfRows)
	}
}

func behavesLikeASliceOfRows(t *rapid.T) {
	p := live(t, drawLimits(t), rapid.Uint64Range(0, 3).Draw(t, "low"), nil)
	keys := rapid.SampledFrom([]int{0, 1, 3, keysMost}).Draw(t, "keys")
	own := rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "own")
	weight := rapid.OneOf(rapid.IntRange(0, 8), rapid.IntRange(0, 500))
	t.Repeat(map[string]func(*rapid.T){
		"open": func(t *rapid.T) {
			for range rapid.IntRange(1, 4).Draw(t, "rows") {
				seq, w := p.m.last+rapid.SampledFrom([]uint64{0, 1, 1, 1, 1, 2, 4}).Draw(t, "step"), weight.Draw(t, "weight")
				key := keyOf(rapid.IntRange(0, keys).Draw(t, "key"))
				if rapid.IntRange(0, 99).Draw(t, "own") < own {
					key = Key{Own: true}
				}
				outside := p.b.Outside(key, w)
				same(t, "outside", outside, p.m.outside(key, w), nil, nil)
				same(t, "full", p.b.full(w), p.m.full(w), nil, nil)
				if outside != (rapid.IntRange(0, 19).Draw(t, "stubborn") == 0) {
					want := p.m.setAside(seq, key, w)
					same(t, "set aside", nil, nil, p.b.SetAside(seq, key, w, -int(seq)), want)
					continue
				}
				want, wantErr := p.m.open(seq, key, w)
				got, err := p.b.Open(seq, key, w)
				same(t, "open", got, want, err, wantErr)
			}
		},
		"skip": func(t *rapid.T) {
			seq := rapid.OneOf(rapid.Just(p.m.last+1), rapid.SampledFrom(append(slices.Clone(p.m.known), p.m.last+2))).Draw(t, "seq")
			known := slices.Contains(p.m.known, seq)
			same(t, "skip", p.b.Skip(seq) == nil, known, nil, nil)
			if known {
				p.m.pass(seq)
			}
		},
		"pass": func(t *rapid.T) {
			seq := p.m.last + rapid.Uint64Range(0, 4).Draw(t, "step")
			p.b.Pass(seq)
			if seq > 0 {
				p.m.pass(seq - 1)
			}
		},
		"complete": func(t *rapid.T) {
			for range rapid.IntRange(1, 4).Draw(t, "rows") {
				p.complete(t, p.anyOf(t, p.m.held()), weight.Draw(t, "weight"))
			}
		},
		"grow": func(t *rapid.T) {
			if rows := p.m.in(open); len(rows) > 0 {
				r, w := rapid.SampledFrom(rows).Draw(t, "row"), weight.Draw(t, "weight")
				p.b.Grow(r.Seq, w)
				r.Bytes += w
			}
		},
		"park": func(t *rapid.T) {
			for range rapid.IntRange(1, 4).Draw(t, "rows") {
				seq, near := p.anyOf(t, p.m.in(open)), rapid.Bool().Draw(t, "near")
				want := p.m.park(seq, near)
				same(t, "park", nil, nil, p.b.Park(seq, -int(seq), near), want)
			}
		},
		"recall": func(t *rapid.T) {
			seq := p.anyOf(t, p.m.in(parked, due))
			same(t, "recall", p.b.Recall(seq), p.m.recall(seq), nil, nil)
		},
		"next": func(t *rapid.T) {
			for range rapid.IntRange(1, 20).Draw(t, "rows") {
				p.next(t)
			}
		},
		"come back": func(t *rapid.T) {
			for range rapid.IntRange(1, 20).Draw(t, "rows") {
				p.comeBack(t, p.anyOf(t, p.m.in(returning)), rapid.IntRange(0, 4).Draw(t, "deleted") == 0)
			}
		},
		"release": func(t *rapid.T) {
			n := rapid.IntRange(0, len(p.m.ready)).Draw(t, "n")
			got := slices.Collect(p.b.Marks(n))
			p.b.Release(n)
			if want := p.m.release(n); !slices.Equal(got, want) {
				t.Fatalf("marks of %d rows: got %v, want %v", n, got, want)
			}
		},
		"crash": func(t *rapid.T) { p = live(t, p.m.limits, p.m.mark().Low, p.m.finished()) },
		"":      func(t *rapid.T) { p.compare(t) },
	})
	p.finish(t)
}

const keysMost = 40

// keyOf returns a key; the empty one is among them.
func keyOf(i int) Key {
	if i == 0 {
		return Key{}
	}
	return Key{Name: fmt.Sprint(i)}
}

func (p pair) compare(t *rapid.T) {
	b, m := p.b, p.m
	same(t, "mark", b.Mark(), m.mark(), nil, nil)
	rows, bytes := m.room()
	same(t, "room", b.Room(), rows, nil, nil)
	same(t, "room for bytes", b.RoomBytes(), bytes, nil, nil)
	held, waited, above := m.held(), m.waited(), m.above()
	same(t, "rows held", b.Len(), len(held), nil, nil)
	same(t, "complete rows", b.Completed(), len(m.in(complete, ready)), nil, nil)
	same(t, "bytes", b.Bytes(), weightOf(held), nil, nil)
	same(t, "bytes that wait", b.WaitingBytes(), weightOf(m.in(complete)), nil, nil)
	same(t, "rows away", b.AwayLen(), len(m.away()), nil, nil)
	same(t, "rows parked", b.Parked(), m.parked(), nil, nil)
	same(t, "rows set aside", b.Aside(), len(slices.DeleteFunc(m.away(), func(r *modelRow) bool { return !r.fresh })), nil, nil)
	same(t, "rows coming back", b.Returning(), len(m.in(returning)), nil, nil)
	same(t, "keys that wait", b.Waiting(), len(waited), nil, nil)
	if b.room.rows() > m.limits.Rows+2 {
		t.Fatalf("%d rows in a window of %d", b.room.rows(), m.limits.Rows)
	}
	if seq, ok := b.Head(); ok != (len(above) > 0) || ok && seq != above[0].Seq {
		t.Fatalf("head %d, %v of %d rows", seq, ok, len(above))
	}
	if seq, key, ok := b.WaitedFor(); ok != (len(waited) > 0) || ok && (seq != waited[0].Seq || key != waited[0].key.key) {
		t.Fatalf("waited for %d of %v, %v, want %v", seq, key, ok, waited)
	}
	for i := range keysMost + 1 {
		seq, waits, ok := b.First(keyOf(i))
		k := m.find(keyOf(i), 0)
		queue := m.queue(k)
		if ok != (len(queue) > 0) || ok && (seq != queue[0].Seq || waits != (m.count(k, complete) > 0)) {
			t.Fatalf("row %d of key %d is its first, %v, others wait %v; want %v", seq, i, ok, waits, queue)
		}
	}
	for i := -1; i <= len(m.ready); i++ {
		e, ok := b.Ready(i)
		if want := i >= 0 && i < len(m.ready); ok != want || ok && *e != m.ready[i].Entry {
			t.Fatalf("ready %d: got %+v, %v, want %v", i, e, ok, want)
		}
	}
	p.compareRows(t)
}

// compareRows asks for every number there is, and some more.
func (p pair) compareRows(t *rapid.T) {
	mark, finished := p.m.mark(), p.m.finished()
	end := p.m.last + 2
	if n := len(p.m.known); n > 0 {
		end = p.m.known[n-1] + 2
	}
	for seq := range end {
		i := slices.IndexFunc(p.m.rows, func(r *modelRow) bool { return r.Seq == seq })
		over := i >= 0 && p.m.rows[i].state == dropped
		if want := seq <= mark.Low || slices.Contains(finished, seq) || over; p.b.Finished(seq) != want {
			t.Fatalf("row %d is finished: got %v", seq, !want)
		}
		same(t, "known", p.b.Known(seq), slices.Contains(p.m.known, seq), nil, nil)
		r := p.m.row(seq)
		var before *modelRow
		if r != nil {
			before = p.m.before(r)
		}
		if got, ok := p.b.WaitsFor(seq); ok != (before != nil) || ok && got != before.Seq {
			t.Fatalf("row %d waits for %d, %v, want %v", seq, got, ok, before)
		}
		note, aside := p.b.Away(seq)
		if away := r != nil && r.state.isAway(); (note != nil) != away || away && (*note != -int(seq) || aside != r.fresh) {
			t.Fatalf("row %d is away: got %v, set aside %v, want %v", seq, note, aside, r)
		}
	}
}

// finish lets all go well from any state: each row held is completed, each parked one is recalled and
// comes back, and what is ready is released. Then all rows are finished in a bounded number of rounds,
// and nothing of them is left.
func (p pair) finish(t *rapid.T) {
	rounds := 0
	for most := 3 * (len(p.m.rows) + 1); len(p.m.above()) > 0; rounds++ {
		if rounds > most {
			t.Fatalf("%d rows are left after %d rounds, %d of them away", len(p.m.above()), rounds, len(p.m.away()))
		}
		for _, r := range p.m.in(open) {
			p.complete(t, r.Seq, r.Bytes)
		}
		p.b.Release(len(p.m.ready))
		p.m.release(len(p.m.ready))
		for _, ok := p.next(t); ok; {
			_, ok = p.next(t)
		}
		for _, r := range p.m.in(parked) {
			same(t, "recall", p.b.Recall(r.Seq), p.m.recall(r.Seq), nil, nil)
		}
		for _, r := range p.m.in(returning) {
			p.comeBack(t, r.Seq, false)
		}
		p.compare(t)
	}
	for range len(p.m.turns)/16 + 1 {
		p.next(t)
	}
	b := p.b
	if b.room != (room{limits: b.limits}) || b.away != 0 || b.keys.turns.count != 0 || len(b.keys.byName) != 0 {
		t.Fatalf("something is left of no row: %+v", b)
	}
	checkEmpty(t, b)
}

// checkEmpty checks that a buffer without rows refers to none.
func checkEmpty[T comparable](t rapid.TB, b *Buffer[T]) {
	for _, q := range b.keys.items {
		if q != noRows {
			t.Fatalf("a queue still holds %+v", q)
		}
	}
	for _, row := range b.rows.items {
		if row != (slot[T]{}) {
			t.Fatalf("a slot still holds %+v", row)
		}
	}
	if len(b.rows.spare) != len(b.rows.items) || len(b.keys.spare) != len(b.keys.items) {
		t.Fatalf("%d of %d slots, %d of %d queues are free",
			len(b.rows.spare), len(b.rows.items), len(b.keys.spare), len(b.keys.items))
	}
}
