package sequencer

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"unsafe"
)

func newBuffer[T any](tb testing.TB, limits Limits, low uint64, finished ...uint64) *Buffer[T] {
	tb.Helper()
	if limits.Bytes == 0 {
		limits.Bytes = 1 << 40
	}
	limits.Span = max(limits.Span, limits.Rows)
	b, err := New[T](limits, low, finished)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// openRows opens rows of a key.
func openRows[T any](tb testing.TB, b *Buffer[T], key string, seqs ...uint64) {
	tb.Helper()
	for _, seq := range seqs {
		if _, err := b.Open(seq, Key{Name: key}, 1); err != nil {
			tb.Fatal(err)
		}
	}
}

func completeRows[T any](tb testing.TB, b *Buffer[T], seqs ...uint64) {
	tb.Helper()
	for _, seq := range seqs {
		var zero T
		if _, err := b.Complete(seq, zero, 1); err != nil {
			tb.Fatal(err)
		}
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	good := Limits{Rows: 4, Bytes: 1, Span: 4}
	tests := []struct {
		name     string
		limits   Limits
		finished []uint64
		want     []string
	}{
		{"limits", Limits{Span: -1, Parked: -1}, nil, []string{"window rows 0", "window bytes 0", "span of -1 rows is smaller", "parked rows -1"}},
		{"finished at the mark", good, []uint64{9, 10}, []string{"finished row seq 9 after 9"}},
		{"finished in disorder", good, []uint64{12, 11}, []string{"finished row seq 11 after 12"}},
		{"finished twice", good, []uint64{12, 12}, []string{"finished row seq 12 after 12"}},
		{"all right", good, []uint64{10, 12, 13}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New[int](tt.limits, 9, tt.finished)
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
		})
	}
}

// Refusals name the row and leave the buffer as it was. The rows are of one key: 10 has left, 20 is ready, 40 waits, 45 is
// parked.
func TestErrorsAreNamedAndChangeNothing(t *testing.T) {
	b := newBuffer[string](t, Limits{Rows: 5, Span: 7, Parked: 1}, 5, 50, 60)
	openRows(t, b, "a", 10, 20, 30, 40, 45)
	completeRows(t, b, 10, 20, 40)
	b.Release(1)
	if err := b.Park(45, "note", false); err != nil {
		t.Fatal(err)
	}

	open := func(seq uint64) func() error {
		return func() error { _, err := b.Open(seq, Key{Name: "a"}, 1); return err }
	}
	complete := func(seq uint64) func() error {
		return func() error { _, err := b.Complete(seq, "second", 50); return err }
	}
	skip := func(seq uint64) func() error { return func() error { return b.Skip(seq) } }
	aside := func(seq uint64) func() error {
		return func() error { return b.SetAside(seq, Key{Name: "a"}, 1, "") }
	}
	park := func(seq uint64) func() error { return func() error { return b.Park(seq, "", true) } }
	tests := []struct {
		name string
		do   func() error
		want error
		text string
	}{
		{"open the last again", open(45), ErrOutOfOrder, "seq 45 after 45"},
		{"open between", open(25), ErrOutOfOrder, "seq 25 after 45"},
		{"open zero", open(0), ErrOutOfOrder, "seq 0 after 45"},
		{"set aside the last again", aside(45), ErrOutOfOrder, "seq 45 after 45"},
		{"set aside a finished row", aside(60), ErrFinished, "seq 60"},
		{"open a finished row", open(60), ErrFinished, "seq 60"},
		{"complete a ready row", complete(20), ErrCompleted, "seq 20"},
		{"complete a waiting row twice", complete(40), ErrCompleted, "seq 40"},
		{"complete a released row", complete(10), ErrNotOpen, "seq 10"},
		{"complete a parked row", complete(45), ErrNotOpen, "seq 45: it is away"},
		{"complete in a gap", complete(25), ErrNotOpen, "seq 25"},
		{"complete a finished row", complete(50), ErrNotOpen, "seq 50"},
		{"complete far above the last", complete(math.MaxUint64), ErrNotOpen, "seq 18446744073709551615"},
		{"skip an open row", skip(30), nil, "seq 30"},
		{"skip a released row", skip(10), nil, "seq 10"},
		{"skip an unknown row", skip(55), nil, "seq 55"},
		{"park a parked row", park(45), ErrNotOpen, "seq 45"},
		{"park a complete row", park(40), ErrCompleted, "seq 40"},
		{"park one too many", park(30), ErrFull, ""},
		{"return a row that is not coming back", func() error { _, _, err := b.Return(45); return err }, ErrNotOpen, "seq 45"},
		{"drop a row that is not coming back", func() error { _, _, err := b.Drop(45); return err }, ErrNotOpen, "seq 45"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", *b)
			err := tt.do()
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
			if after := fmt.Sprintf("%+v", *b); after != before {
				t.Errorf("the buffer changed from %s to %s", before, after)
			}
		})
	}
}

func TestPanicsOnBugsOfTheCaller(t *testing.T) {
	tests := map[string]func(*Buffer[int]){
		"release more than ready":  func(b *Buffer[int]) { b.Release(2) },
		"release a negative count": func(b *Buffer[int]) { b.Release(-1) },
		"open a negative weight":   func(b *Buffer[int]) { _, _ = b.Open(9, Key{}, -1) },
		"complete with a negative": func(b *Buffer[int]) { _, _ = b.Complete(2, 0, -1) },
		"set aside with one":       func(b *Buffer[int]) { _ = b.SetAside(9, Key{}, -1, 0) },
		"grow a complete row":      func(b *Buffer[int]) { b.Grow(3, 1) },
	}
	for name, do := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBuffer[int](t, Limits{Rows: 4}, 0)
			openRows(t, b, "a", 1, 2, 3)
			completeRows(t, b, 1, 3) // 2 keeps 3 back
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do(b)
		})
	}
}

func TestTheLargestWeightAndTheZeroBufferAreFull(t *testing.T) {
	b := newBuffer[int](t, Limits{Rows: 9, Bytes: 100}, 0)
	openRows(t, b, "a", 1)
	var zero Buffer[int]
	for name, full := range map[string]func() (uint64, error){
		"the largest weight": func() (uint64, error) { return b.Open(2, Key{Name: "a"}, math.MaxInt) },
		"a zero buffer":      func() (uint64, error) { return zero.Open(1, Key{}, 0) },
	} {
		if _, err := full(); !errors.Is(err, ErrFull) {
			t.Errorf("%s: got %v, want %v", name, err, ErrFull)
		}
	}
}

// Finished rows of an earlier life may be more than the span, when that was made smaller: none is refused.
func TestFinishedRowsAreTakenInWithoutRoom(t *testing.T) {
	finished := make([]uint64, 100)
	for i := range finished {
		finished[i] = uint64(i) + 2
	}
	b := newBuffer[int](t, Limits{Rows: 4, Span: 8}, 0, finished...)
	openRows(t, b, "a", 1)
	for seq := range uint64(100) {
		if err := b.Skip(seq + 2); err != nil {
			t.Fatal(err)
		}
	}
	if b.line.known != nil {
		t.Errorf("%d rows are kept that have all come again", cap(b.line.known))
	}
	if b.Room() != 0 || b.Mark() != (Mark{Low: 0, Ahead: 100}) {
		t.Errorf("room %d, mark %+v, want none and all ahead", b.Room(), b.Mark())
	}
	completeRows(t, b, 1)
	b.Release(1)
	if b.Room() != 4 || b.Mark() != (Mark{Low: 101}) {
		t.Errorf("room %d, mark %+v, want the window and the mark behind all", b.Room(), b.Mark())
	}
}

func TestTheHighestSequenceCanBeSkipped(t *testing.T) {
	b := newBuffer[int](t, Limits{Rows: 1}, 7, math.MaxUint64)
	if b.Pass(0); !b.Known(math.MaxUint64) {
		t.Error("nothing is below 0, and something was passed")
	}
	if err := b.Skip(math.MaxUint64); err != nil || b.Mark() != (Mark{Low: math.MaxUint64}) || b.Known(math.MaxUint64) {
		t.Errorf("got %v, mark %+v", err, b.Mark())
	}
}

func TestMarksMayBeLeftEarly(t *testing.T) {
	b := newBuffer[int](t, Limits{Rows: 9}, 0)
	openRows(t, b, "a", 1, 2, 3)
	completeRows(t, b, 1, 2, 3)
	for m := range b.Marks(3) {
		if m != (Mark{Low: 1}) {
			t.Errorf("first mark %+v, want row 1", m)
		}
		break
	}
	if m := b.Mark(); m != (Mark{}) {
		t.Errorf("mark %+v before any release", m)
	}
}

// A million rows are refused behind the one that waits. A place costs 16 bytes, and there are never more than the span.
func TestMemoryIsBoundedByWindowAndSpan(t *testing.T) {
	const rows, span = 64, 65536
	b := newBuffer[[]byte](t, Limits{Rows: rows, Span: span}, 0)
	openRows(t, b, "slow", 1)
	for seq := uint64(2); b.Room() > 0; seq++ {
		openRows(t, b, fmt.Sprint(seq%1000), seq)
		completeRows(t, b, seq)
		b.Release(1)
	}
	if m := b.Mark(); m != (Mark{Ahead: span - 1}) || b.Len() != 1 {
		t.Fatalf("mark %+v with %d rows held, want all of the span ahead", m, b.Len())
	}
	seq := uint64(span)
	if n := testing.AllocsPerRun(1_000_000, func() {
		seq++
		if _, err := b.Open(seq, Key{Name: "other"}, 1); !errors.Is(err, ErrFull) {
			t.Fatalf("row %d: got %v, want %v", seq, err, ErrFull)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a refusal, want none", n)
	}
	if size := unsafe.Sizeof(place{}); size != 16 || len(b.line.places.items) != span {
		t.Errorf("%d places of %d bytes, want %d of 16", len(b.line.places.items), size, span)
	}
	if n := max(len(b.rows.items), len(b.keys.items), len(b.exit.rows.items), len(b.keys.byName)); n > rows {
		t.Errorf("%d slots, queues, ready rows or keys: want at most %d", n, rows)
	}
	completeRows(t, b, 1)
	b.Release(1)
	if m := b.Mark(); m != (Mark{Low: span}) || b.line.places.count != 0 || b.Room() != rows {
		t.Errorf("mark %+v with %d places, room %d, want all behind the mark", m, b.line.places.count, b.Room())
	}
}

// One lap opens half a window of keys never seen before, and half of one key, and lets the first row finish last.
func TestARowCostsNoAllocationOnceGrown(t *testing.T) {
	keys := make([]string, 1<<17) // a test's own keys allocate, so before the laps, which take fewer
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	for _, window := range []uint64{8, 64, 1024} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprint(window, own), func(t *testing.T) {
				b := newBuffer[[]byte](t, Limits{Rows: int(window), Span: 65536}, 0)
				reply := []byte("reply")
				var seq uint64
				steps := func() {
					first := seq + 1
					for i := range window {
						seq += 1 + i%2 // with gaps
						key := Key{Own: own}
						if i%2 == 1 && !own {
							key.Name = keys[seq%uint64(len(keys))]
						}
						if _, err := b.Open(seq, key, 10); err != nil {
							t.Fatal(err)
						}
					}
					for s := seq; s >= first; s-- {
						if _, ok := b.line.find(s); !ok {
							continue
						}
						if _, err := b.Complete(s, reply, len(reply)); err != nil {
							t.Fatal(err)
						}
						_, _, _ = b.WaitedFor()
						n := 0
						for range b.Marks(b.exit.rows.count) {
							n++
						}
						b.Release(n)
					}
					if b.Len() != 0 || b.Mark() != (Mark{Low: seq}) {
						t.Fatalf("%d rows held, mark %+v", b.Len(), b.Mark())
					}
				}
				laps := func() { // AllocsPerRun rounds down, so a run is many rows
					for range max(1, 8192/window) {
						steps()
					}
				}
				laps()
				if got := testing.AllocsPerRun(4, laps); got != 0 {
					t.Errorf("%v allocations for %d rows, want none", got, max(8192, window))
				}
			})
		}
	}
}

// A ring in mid-lap keeps its order as it grows, and is never longer than its limit until that is exceeded.
func TestARingGrowsInMidLap(t *testing.T) {
	const limit = 100
	var r ring[int]
	next, want, most := 0, 0, 0
	sizes := map[int]bool{}
	for range 40 {
		for range 7 {
			r.push(next, limit)
			next++
		}
		most = max(most, r.count)
		sizes[len(r.items)] = true
		for range 3 {
			if got := r.pop(); got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
			want++
		}
		if n := len(r.items); n > max(ringMin, 2*most) || most <= limit && n > limit {
			t.Fatalf("at most %d elements have a ring of %d", most, n)
		}
	}
	for ; r.count > 0; want++ {
		if got := *r.at(0); got != want || r.pop() != want {
			t.Fatalf("got %d, want %d", got, want)
		}
	}
	if want != next {
		t.Errorf("%d elements came out, %d went in", want, next)
	}
	if want := map[int]bool{16: true, 32: true, 64: true, limit: true, 2 * limit: true}; !maps.Equal(sizes, want) {
		t.Errorf("the ring was %v long, want %v: each time twice as long", sizes, want)
	}
}
