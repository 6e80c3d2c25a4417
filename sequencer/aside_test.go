package sequencer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"unsafe"
)

// hold lets a key fill half of a buffer, with rows that wait for its first one, and sets more rows of it aside.
func hold(tb testing.TB, b *Keyed[[]byte], key string, first uint64, aside int) (last uint64) {
	tb.Helper()
	for last = first; !b.Outside(key, 1); last++ {
		openKeyed(tb, b, key, last)
		if last > first {
			completeKeyed(tb, b, last)
		}
	}
	for range aside {
		if err := b.SetAside(last, key, 1, "note"); err != nil {
			tb.Fatal(err)
		}
		last++
	}
	return last - 1
}

// callBack brings rows back until there is none to recall, and returns them in the order in which they were recalled.
func callBack(tb testing.TB, b *Keyed[[]byte]) (seqs []uint64) {
	tb.Helper()
	for seq, ok := b.Recall(); ok; seq, ok = b.Recall() {
		if _, _, _, err := b.Reopen(seq); err != nil {
			tb.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	return seqs
}

// The span bounds the rows that are set aside, and each takes what the documentation says.
func TestMemoryOfRowsSetAsideIsBounded(t *testing.T) {
	const rows, span = 64, 4096
	b := newKeyed[[]byte](t, rows, span, 0)
	last := hold(t, b, "hot", 1, span-33)
	if b.Len() != 33 || b.Aside() != span-33 || last != span || b.Room() != 0 {
		t.Fatalf("%d rows held, %d set aside, the last is %d, room %d", b.Len(), b.Aside(), last, b.Room())
	}
	if err := b.SetAside(span+1, "hot", 1, ""); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want %v", err, ErrFull)
	}
	const numbers = 2 * unsafe.Sizeof(int32(0)) // in asides.spare and asides.keys
	if size := unsafe.Sizeof(aside{}) + unsafe.Sizeof(place{}) + numbers; size != 64 {
		t.Errorf("a row set aside takes %d bytes", size)
	}
	if size := unsafe.Sizeof(queue{}); size != 64 {
		t.Errorf("a key takes %d bytes", size)
	}
	if n := len(b.asides.slots); n != span-33 || len(b.places.items) != span || len(b.slots) != 33 || len(b.queues) != 1 {
		t.Errorf("%d rows set aside, %d places, %d slots, %d queues", n, len(b.places.items), len(b.slots), len(b.queues))
	}
}

// One lap sets aside the rows of two keys, and lets them come back.
func TestARowSetAsideCostsNoAllocationOnceGrown(t *testing.T) {
	b := newKeyed[[]byte](t, 16, 4096, 0)
	var seq uint64
	lap := func() {
		first := seq + 1
		openKeyed(t, b, "other", first)
		seq = hold(t, b, "hot", first+1, 1000)
		for range 100 {
			seq++
			if err := b.SetAside(seq, "other", 1, "note"); err != nil {
				t.Fatal(err)
			}
		}
		completeKeyed(t, b, first, first+1)
		for b.places.count > 0 {
			b.Release(b.ready.count)
			for s, ok := b.Recall(); ok; s, ok = b.Recall() {
				if _, _, _, err := b.Reopen(s); err != nil {
					t.Fatal(err)
				}
				completeKeyed(t, b, s)
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
	b := newKeyed[[]byte](t, 128, 4096, 0)
	seq := uint64(0)
	aside := func(key string, n int) {
		for range n {
			seq++
			if err := b.SetAside(seq, key, 1, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	aside("hot", 40)
	aside("a", 2) // 41, 42
	aside("b", 1) // 43
	var got []uint64
	for s, ok := b.Recall(); ok; s, ok = b.Recall() {
		got = append(got, s)
	}
	want := []uint64{1, 41, 43, 2, 42}
	for s := uint64(3); s <= recalledMost; s++ {
		want = append(want, s)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("recalled %v, want %v", got, want)
	}
	if _, _, next, err := b.Reopen(1); next != 2 || err != nil {
		t.Errorf("next %d, %v, want row 2", next, err)
	}
	if s, ok := b.Recall(); s != recalledMost+1 || !ok {
		t.Errorf("recalled %d, %v, want the row behind those on their way", s, ok)
	}
}

// Rows on their way back have their room: neither rows nor bytes exceed the limits, but for the last row recalled.
func TestRecalledRowsHaveTheirRoom(t *testing.T) {
	b, err := NewKeyed[int](Limits{Rows: 8, Bytes: 100}, 100, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(5) {
		if err := b.SetAside(seq+1, fmt.Sprint(seq), 40, ""); err != nil {
			t.Fatal(err)
		}
	}
	for want := range uint64(3) {
		if seq, ok := b.Recall(); seq != want+1 || !ok {
			t.Errorf("recalled %d, %v, want row %d", seq, ok, want+1)
		}
	}
	if seq, ok := b.Recall(); ok {
		t.Errorf("row %d is recalled beyond the bytes", seq)
	}
	if !b.Full(1) || b.Room() != 5 || !b.Outside("new", 1) || b.Bytes() != 0 {
		t.Errorf("room for %d rows, %d bytes held", b.Room(), b.Bytes())
	}
	if _, err := b.Drop(1); err != nil {
		t.Fatal(err)
	}
	if b.Full(20) || !b.Full(21) || b.Room() != 6 {
		t.Errorf("room for %d rows, want 6 with 20 bytes", b.Room())
	}
}

// Rows on their way back are no more than there is room for, whatever keys they are of.
func TestNoMoreRowsAreRecalledThanThereIsRoom(t *testing.T) {
	b := newKeyed[[]byte](t, 4, 100, 0)
	openKeyed(t, b, "open", 1)
	for seq := range uint64(10) {
		if err := b.SetAside(seq+2, fmt.Sprint(seq), 1, ""); err != nil {
			t.Fatal(err)
		}
	}
	recalled := 0
	for _, ok := b.Recall(); ok; _, ok = b.Recall() {
		recalled++
	}
	if recalled != 3 || b.Room() != 0 || !b.Full(1) {
		t.Errorf("%d rows are recalled, room %d, want 3 and none", recalled, b.Room())
	}
}

// A thousand rows of a key that waits don't keep others from passing through the rest of the buffer.
func TestOthersPassRowsThatAreSetAside(t *testing.T) {
	const rows, reserve = 64, 8
	b := newKeyed[[]byte](t, rows, 4096, 0)
	b.Reserve(Limits{Rows: reserve})
	last := hold(t, b, "hot", 1, 1000)
	openKeyed(t, b, "a", last+1)
	if b.Outside("a", 1) {
		t.Error("a key whose rows don't wait is outside, with more room than the reserve")
	}
	last++
	passed := 0
	for seq := last + 1; b.Room() > 0; seq++ {
		key := fmt.Sprint(seq % 10)
		if b.Outside(key, 1) {
			t.Fatalf("row %d is outside", seq)
		}
		openKeyed(t, b, key, seq)
		completeKeyed(t, b, seq)
		b.Release(1)
		passed++
	}
	if want := 4096 - 1000 - b.Len(); passed != want {
		t.Errorf("%d rows passed, want %d, as many as the span holds", passed, want)
	}
	if seqs := callBack(t, b); len(seqs) > 0 {
		t.Errorf("rows %v came back while others of their key wait", seqs)
	}
	completeKeyed(t, b, 1)
	b.Release(b.ready.count)
	if seqs := callBack(t, b); b.Len() != rows-reserve || len(seqs) == 0 || seqs[0] != uint64(rows/2+2) {
		t.Errorf("%d rows are held after %v came back, want all but the reserve", b.Len(), seqs)
	}
}

// Heavy values that wait crowd the buffer, too, however few they are.
func TestAKeyIsSetAsideForItsBytes(t *testing.T) {
	b, err := NewKeyed[int](Limits{Rows: 100, Bytes: 100}, 100, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	openKeyed(t, b, "hot", 1, 2, 3)
	for i, want := range []bool{false, true} {
		if _, err := b.Complete(uint64(i)+2, 0, []int{49, 1}[i]); err != nil {
			t.Fatal(err)
		}
		if got := b.Outside("hot", 1); got != want {
			t.Errorf("with %d bytes that wait: outside %v, want %v", b.waitingBytes, got, want)
		}
	}
}

// Rows that were finished and deleted since don't hold the mark back where the next row is set aside.
func TestARowSetAsidePassesKnownRows(t *testing.T) {
	b := newKeyed[int](t, 4, 8, 0, 2, 3, 6)
	if err := b.SetAside(5, "a", 1, "note"); err != nil {
		t.Fatal(err)
	}
	if m := b.Mark(); m != (Mark{Low: 3, Ahead: 1}) || b.Known(3) || !b.Known(6) {
		t.Errorf("mark %+v, want row 3 and one ahead", m)
	}
	if seq, ok := b.Recall(); seq != 5 || !ok {
		t.Fatalf("recalled %d, %v, want row 5", seq, ok)
	}
	if _, err := b.Drop(5); err != nil {
		t.Fatal(err)
	}
	b.Pass(7)
	if m := b.Mark(); m != (Mark{Low: 6}) {
		t.Errorf("mark %+v, want row 6", m)
	}
}
