package sequencer

import (
	"slices"
	"testing"
	"unsafe"
)

// hold lets a key fill half of a buffer, with rows that wait for its first one, and sets more rows of it aside.
func hold(tb testing.TB, b *Buffer[[]byte], key Key, first uint64, aside int) (last uint64) {
	tb.Helper()
	for last = first; !b.Outside(key, 1); last++ {
		openRows(tb, b, key.Name, last)
		if last > first {
			completeRows(tb, b, last)
		}
	}
	for range aside {
		if err := b.SetAside(last, key, 1, nil); err != nil {
			tb.Fatal(err)
		}
		last++
	}
	return last - 1
}

// A row that is away takes what the documentation says.
func TestMemoryOfARowThatIsAway(t *testing.T) {
	type note [3]uint64
	if size := unsafe.Sizeof(slot[note]{}); size != 40+unsafe.Sizeof(note{}) {
		t.Errorf("a slot takes %d bytes", size)
	}
}

// One lap sets aside the rows of two keys, and lets them come back.
func TestARowAwayCostsNoAllocationOnceGrown(t *testing.T) {
	b := newBuffer[[]byte](t, Limits{Rows: 16, Span: 4096, Shared: true}, 0)
	var seq uint64
	lap := func() {
		first := seq + 1
		openRows(t, b, "other", first)
		seq = hold(t, b, Key{Name: "hot"}, first+1, 1000)
		for range 100 {
			seq++
			if err := b.SetAside(seq, Key{Name: "other"}, 1, nil); err != nil {
				t.Fatal(err)
			}
		}
		completeRows(t, b, first, first+1)
		for b.line.places.count > 0 {
			b.Release(b.exit.rows.count)
			for s, ok := b.Next(); ok; s, ok = b.Next() {
				if _, _, err := b.Return(s); err != nil {
					t.Fatal(err)
				}
				completeRows(t, b, s)
			}
		}
	}
	lap()
	if got := testing.AllocsPerRun(4, lap); got != 0 {
		t.Errorf("%v allocations for a lap, want none", got)
	}
}

// No key comes back twice before another has come back once, and of one key only some rows are on their way at once.
func TestKeysComeBackInTurns(t *testing.T) {
	b := newBuffer[[]byte](t, Limits{Rows: 128, Span: 4096, Shared: true}, 0)
	openRows(t, b, "oldest", 1)
	seq := uint64(1)
	aside := func(key string, n int) {
		for range n {
			seq++
			if err := b.SetAside(seq, Key{Name: key}, 1, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	aside("hot", 40)
	aside("a", 2) // 42, 43
	aside("b", 1) // 44
	var got []uint64
	for s, ok := b.Next(); ok; s, ok = b.Next() {
		got = append(got, s)
	}
	want := []uint64{2, 42, 44, 3, 43}
	for s := uint64(4); s <= returningMost+1; s++ {
		want = append(want, s)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("rows %v came back, want %v", got, want)
	}
	if _, next, err := b.Return(2); next != 3 || err != nil {
		t.Errorf("next %d, %v, want row 3", next, err)
	}
	if s, ok := b.Next(); s != returningMost+2 || !ok {
		t.Errorf("row %d came back, %v, want the row behind those on their way", s, ok)
	}
}

// In stream order the rows of the one key come back as far as there is room, however many wait for them: no other key
// needs it.
func TestRowsOfABufferThatIsNotSharedComeBackTogether(t *testing.T) {
	const parked, complete, rows = 40, 40, 64
	b := newBuffer[[]byte](t, Limits{Rows: rows, Span: 4096, Parked: parked}, 0)
	for seq := uint64(1); seq <= parked+complete; seq++ {
		openRows(t, b, "", seq)
		if seq > parked {
			completeRows(t, b, seq)
		} else if err := b.Park(seq, nil, true); err != nil {
			t.Fatal(err)
		}
	}
	back := uint64(0)
	for s, ok := b.Next(); ok; s, ok = b.Next() {
		if back++; s != back {
			t.Errorf("row %d came back, want row %d", s, back)
		}
	}
	if back != rows-complete {
		t.Errorf("%d rows came back, want %d", back, rows-complete)
	}
}
