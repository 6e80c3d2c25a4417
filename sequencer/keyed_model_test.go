package sequencer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// keyedModel is the dumbest buffer with an order for each key that is right: a slice of all rows that ever entered, in
// stream order, and one of those that are ready, both searched from the front.
type keyedModel struct {
	limits, reserve  Limits
	span             int
	from             uint64 // the low-water mark that it began with
	known            []uint64
	rows             []*modelRow
	ready            []*modelRow
	turns            []string // keys with rows to recall
	last, sub, compl uint64
}

type modelRow struct {
	Entry[int]
	key             string
	free            bool
	ready, finished bool

	aside, recalled, dropped bool
	note                     string
}

func (m *keyedModel) held() (rows []*modelRow) {
	for _, r := range m.rows {
		if !r.finished && !r.aside && !r.dropped {
			rows = append(rows, r)
		}
	}
	return rows
}

func (m *keyedModel) bytes() (sum int64) {
	for _, r := range m.held() {
		sum += int64(r.Bytes)
	}
	return sum
}

func (m *keyedModel) mark() Mark {
	mark := Mark{Low: m.from, Ahead: len(m.known)}
	waits := false
	for _, r := range m.rows {
		switch {
		case !r.finished && !r.dropped:
			waits = true
		case waits && r.finished:
			mark.Ahead++
		case waits:
		default:
			mark.Low = r.Seq
		}
	}
	return mark
}

// above returns the rows above the low-water mark.
func (m *keyedModel) above() (rows []*modelRow) {
	low := m.mark().Low
	for _, r := range m.rows {
		if r.Seq > low {
			rows = append(rows, r)
		}
	}
	return rows
}

func (m *keyedModel) room() int {
	rows := m.limits.Rows - m.taken()
	if !m.crowded() {
		rows -= m.reserve.Rows
	}
	return max(0, min(rows, m.span-len(m.above())))
}

func (m *keyedModel) roomBytes() int64 {
	bytes := m.limits.Bytes - m.takenBytes()
	if !m.crowded() {
		bytes -= m.reserve.Bytes
	}
	return max(0, bytes)
}

func (m *keyedModel) full(bytes int) bool { return len(m.above()) >= m.span || m.noRoom(bytes) }

func (m *keyedModel) open(seq uint64, key string, free bool, bytes int) (uint64, error) {
	switch {
	case seq <= m.last || !free && len(m.asideOf(key)) > 0:
		return 0, ErrOutOfOrder
	case slices.Contains(m.known, seq):
		return 0, ErrFinished
	case m.full(bytes):
		return 0, ErrFull
	}
	m.pass(seq)
	m.last = seq
	m.rows = append(m.rows, &modelRow{Entry: Entry[int]{Seq: seq, SubmitIndex: m.sub, Bytes: bytes}, key: key, free: free})
	m.sub++
	return m.sub - 1, nil
}

// pass lets the known rows up to seq enter.
func (m *keyedModel) pass(seq uint64) {
	for len(m.known) > 0 && m.known[0] <= seq {
		m.last = m.known[0]
		m.rows = append(m.rows, &modelRow{Entry: Entry[int]{Seq: m.known[0]}, finished: true})
		m.known = m.known[1:]
	}
}

func (m *keyedModel) row(seq uint64) *modelRow {
	for _, r := range m.held() {
		if r.Seq == seq {
			return r
		}
	}
	return nil
}

// before returns the first row of the same key that is before r and not complete.
func (m *keyedModel) before(r *modelRow) *modelRow {
	for _, other := range m.held() {
		if !r.free && !other.free && other.key == r.key && other.Seq < r.Seq && !other.complete {
			return other
		}
	}
	return nil
}

func (m *keyedModel) complete(seq uint64, v, bytes int) (uint64, error) {
	r := m.row(seq)
	if r == nil {
		return 0, ErrNotOpen
	}
	if r.complete {
		return 0, ErrCompleted
	}
	r.Value, r.Bytes, r.CompleteIndex, r.complete = v, bytes, m.compl, true
	m.compl++
	for _, r := range m.held() {
		if r.complete && !r.ready && m.before(r) == nil {
			r.ready = true
			m.ready = append(m.ready, r)
		}
	}
	return r.CompleteIndex, nil
}

func (m *keyedModel) release(n int) (marks []Mark) {
	for range n {
		m.ready[0].finished = true
		m.ready = m.ready[1:]
		marks = append(marks, m.mark())
	}
	return marks
}

// waited returns the rows that complete rows wait for, in stream order.
func (m *keyedModel) waited() (rows []*modelRow) {
	for _, r := range m.held() {
		if before := m.before(r); r.complete && before != nil && !slices.Contains(rows, before) {
			rows = append(rows, before)
		}
	}
	slices.SortFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.Seq, b.Seq) })
	return rows
}

// finished returns the rows above the mark that are.
func (m *keyedModel) finished() (seqs []uint64) {
	for _, r := range m.rows {
		if r.finished && r.Seq > m.mark().Low {
			seqs = append(seqs, r.Seq)
		}
	}
	return append(seqs, m.known...)
}

// Every step of a drawn run answers as the model does, through several lives: after a crash the rows held come again,
// and the finished ones too, but for some.
func TestKeyedBehavesLikeASliceOfRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &keyedModel{
			limits: Limits{Rows: rapid.IntRange(1, 30).Draw(t, "rows"), Bytes: rapid.SampledFrom([]int64{40, 400, 1 << 40}).Draw(t, "bytes")},
			from:   rapid.Uint64Range(0, 3).Draw(t, "low"),
		}
		m.span = m.limits.Rows + rapid.IntRange(0, 30).Draw(t, "span")
		m.last = m.from
		m.reserve = Limits{
			Rows:  rapid.IntRange(0, m.limits.Rows-1).Draw(t, "reserve"),
			Bytes: rapid.Int64Range(0, 3).Draw(t, "reserve of bytes") * m.limits.Bytes / 4,
		}
		b := live(t, m)
		keys := rapid.SampledFrom([]int{1, 3, keysMost}).Draw(t, "keys")
		free := rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "free")
		same := func(t *rapid.T, what string, got, want uint64, gotErr, wantErr error) {
			if got != want || !errors.Is(gotErr, wantErr) {
				t.Fatalf("%s: got %d, %v, want %d, %v", what, got, gotErr, want, wantErr)
			}
		}
		weight := rapid.OneOf(rapid.IntRange(0, 8), rapid.IntRange(0, 500))
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "rows") {
					seq, w := m.last+rapid.SampledFrom([]uint64{0, 1, 1, 1, 1, 2, 4}).Draw(t, "step"), weight.Draw(t, "weight")
					if got, want := b.Full(w), m.full(w); got != want {
						t.Fatalf("full for %d bytes: got %v, want %v", w, got, want)
					}
					if rapid.IntRange(0, 99).Draw(t, "free") < free {
						want, wantErr := m.open(seq, "", true, w)
						got, err := b.OpenFree(seq, w)
						same(t, "open free", got, want, err, wantErr)
						continue
					}
					key := keyName(rapid.IntRange(0, keys).Draw(t, "key"))
					outside := b.Outside(key, w)
					if want := m.outside(key, w); outside != want {
						t.Fatalf("key %q outside for %d bytes: got %v, want %v", key, w, outside, want)
					}
					if outside != (rapid.IntRange(0, 19).Draw(t, "stubborn") == 0) {
						err, want := b.SetAside(seq, key, w, fmt.Sprint("note ", seq)), m.setAside(seq, key, w)
						same(t, "set aside", 0, 0, err, want)
						continue
					}
					want, wantErr := m.open(seq, key, false, w)
					got, err := b.Open(seq, key, w)
					same(t, "open", got, want, err, wantErr)
				}
			},
			"skip": func(t *rapid.T) {
				seq := rapid.OneOf(rapid.Just(m.last+1), rapid.SampledFrom(append(slices.Clone(m.known), m.last+2))).Draw(t, "seq")
				known := slices.Contains(m.known, seq)
				if err := b.Skip(seq); (err == nil) != known {
					t.Fatalf("skip row %d: got %v, known %v", seq, err, known)
				}
				if known {
					m.pass(seq)
				}
			},
			"pass": func(t *rapid.T) {
				seq := m.last + rapid.Uint64Range(0, 4).Draw(t, "step")
				b.Pass(seq)
				if seq > 0 {
					m.pass(seq - 1)
				}
			},
			"complete": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "rows") {
					seq, w := rapid.Uint64Range(0, m.last+2).Draw(t, "seq"), weight.Draw(t, "weight")
					if held := m.held(); len(held) > 0 && rapid.IntRange(0, 9).Draw(t, "foreign") > 0 {
						seq = rapid.SampledFrom(held).Draw(t, "row").Seq
					}
					want, wantErr := m.complete(seq, w, w)
					got, err := b.Complete(seq, w, w)
					same(t, "complete", got, want, err, wantErr)
				}
			},
			"recall": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "rows") {
					want := m.recall()
					if seq, ok := b.Recall(); seq != want || ok != (want > 0) {
						t.Fatalf("recalled row %d, %v, want %d", seq, ok, want)
					}
				}
			},
			"come back": func(t *rapid.T) {
				rows := m.asides()
				for range rapid.IntRange(1, 20).Draw(t, "rows") {
					seq := rapid.Uint64Range(0, m.last+2).Draw(t, "seq")
					if len(rows) > 0 && rapid.IntRange(0, 9).Draw(t, "foreign") > 0 {
						seq = rapid.SampledFrom(rows).Draw(t, "row").Seq
					}
					_, _ = comeBack(t, b, m, seq, rapid.IntRange(0, 4).Draw(t, "deleted") == 0)
				}
			},
			"release": func(t *rapid.T) {
				n := rapid.IntRange(0, len(m.ready)).Draw(t, "n")
				got := slices.Collect(b.Marks(n))
				b.Release(n)
				if want := m.release(n); !slices.Equal(got, want) {
					t.Fatalf("marks of %d rows: got %v, want %v", n, got, want)
				}
			},
			"crash": func(t *rapid.T) {
				mark := m.mark()
				*m = keyedModel{limits: m.limits, span: m.span, reserve: m.reserve, from: mark.Low, last: mark.Low, known: m.finished()}
				b = live(t, m)
			},
			"": func(t *rapid.T) { compareKeyed(t, b, m) },
		})
		finish(t, b, m)
	})
}

const keysMost = 40

// keyName returns a key; the empty one is among them.
func keyName(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprint(i)
}

// live returns the buffer that a life begins with.
func live(t *rapid.T, m *keyedModel) *Keyed[int] {
	b, err := NewKeyed[int](m.limits, m.span, m.from, slices.Clone(m.known))
	if err != nil {
		t.Fatal(err)
	}
	b.Reserve(m.reserve)
	return b
}

func compareKeyed(t *rapid.T, b *Keyed[int], m *keyedModel) {
	if b.Mark() != m.mark() {
		t.Fatalf("mark %+v, want %+v", b.Mark(), m.mark())
	}
	held, waited := m.held(), m.waited()
	completed := 0
	for _, r := range held {
		if r.complete {
			completed++
		}
	}
	if b.RoomBytes() != m.roomBytes() {
		t.Fatalf("room for %d bytes, want %d", b.RoomBytes(), m.roomBytes())
	}
	if b.Len() != len(held) || b.Completed() != completed || b.Bytes() != m.bytes() || b.Room() != m.room() {
		t.Fatalf("got %d rows, %d complete, %d bytes, room %d, want %d, %d, %d, %d",
			b.Len(), b.Completed(), b.Bytes(), b.Room(), len(held), completed, m.bytes(), m.room())
	}
	above := m.above()
	if seq, ok := b.Head(); ok != (len(above) > 0) || ok && seq != above[0].Seq {
		t.Fatalf("head %d, %v of %d rows", seq, ok, len(above))
	}
	if b.Aside() != len(m.asides()) {
		t.Fatalf("%d rows are aside, want %d", b.Aside(), len(m.asides()))
	}
	if b.taken() > m.limits.Rows {
		t.Fatalf("%d rows in a window of %d", b.taken(), m.limits.Rows)
	}
	if b.Waiting() != len(waited) {
		t.Fatalf("%d keys wait, want %d", b.Waiting(), len(waited))
	}
	if seq, key, ok := b.WaitedFor(); ok != (len(waited) > 0) || ok && (seq != waited[0].Seq || key != waited[0].key) {
		t.Fatalf("waited for %d of %q, %v, want %v", seq, key, ok, waited)
	}
	for key := range keysMost + 1 {
		name := keyName(key)
		i := slices.IndexFunc(held, func(r *modelRow) bool { return r.key == name && !r.free && !r.ready })
		seq, waits, ok := b.First(name)
		if ok != (i >= 0) || ok && (seq != held[i].Seq || waits != slices.Contains(waited, held[i])) {
			t.Fatalf("row %d of key %q is its first, %v, others wait %v; want %v", seq, name, ok, waits, i >= 0)
		}
	}
	for i := -1; i <= len(m.ready); i++ {
		e, ok := b.Ready(i)
		if want := i >= 0 && i < len(m.ready); ok != want || ok && *e != m.ready[i].Entry {
			t.Fatalf("ready %d: got %+v, %v, want %v", i, e, ok, want)
		}
	}
	compareRows(t, b, m)
}

// compareRows asks for every number there is, and some more.
func compareRows(t *rapid.T, b *Keyed[int], m *keyedModel) {
	mark, finished := m.mark(), m.finished()
	end := m.last + 2
	if n := len(m.known); n > 0 {
		end = m.known[n-1] + 2
	}
	for seq := range end {
		if want := seq <= mark.Low || slices.Contains(finished, seq) || m.isDropped(seq); b.Finished(seq) != want {
			t.Fatalf("row %d is finished: got %v", seq, !want)
		}
		if want := slices.Contains(m.known, seq); b.Known(seq) != want {
			t.Fatalf("row %d is known: got %v", seq, !want)
		}
		var want *modelRow
		if r := m.row(seq); r != nil {
			want = m.before(r)
		}
		if before, ok := b.WaitsFor(seq); ok != (want != nil) || ok && before != want.Seq {
			t.Fatalf("row %d waits for %d, %v, want %v", seq, before, ok, want)
		}
	}
}
