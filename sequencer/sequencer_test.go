package sequencer

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newBuffer[T any](tb testing.TB, rows int, bytes int64) *Buffer[T] {
	tb.Helper()
	b, err := New[T](Limits{Rows: rows, Bytes: bytes})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// emit releases what is ready and returns the values.
func emit[T any](b *Buffer[T]) []T {
	var out []T
	n := 0
	for e, ok := b.Ready(n); ok; e, ok = b.Ready(n) {
		out = append(out, e.Value)
		n++
	}
	b.Release(n)
	return out
}

func TestAnEmptyBufferHasNothingReady(t *testing.T) {
	b := newBuffer[string](t, 4, 100)
	if got := emit(b); got != nil {
		t.Errorf("emitted %q", got)
	}
	if seq, ok := b.Head(); ok {
		t.Errorf("head %d of an empty buffer", seq)
	}
	if b.Len() != 0 || b.Completed() != 0 || b.Bytes() != 0 {
		t.Errorf("empty buffer holds something: %+v", b)
	}
	for _, seq := range []uint64{0, 1} {
		if _, ok := b.find(seq); ok {
			t.Errorf("row %d is found in an empty buffer", seq)
		}
	}
}

// The five rows of the original design: whatever completes, only what is whole from the head comes out.
func TestRowsLeaveInTheOrderInWhichTheyCame(t *testing.T) {
	b := newBuffer[string](t, 8, 100)
	for i := range 5 {
		if got, err := b.Open(uint64(i+1), 0); err != nil || got != uint64(i) {
			t.Fatalf("open row %d: index %d, %v", i, got, err)
		}
	}
	steps := []struct {
		complete int
		emitted  []string
	}{
		{2, nil},
		{0, []string{"row 0"}},
		{4, nil},
		{1, []string{"row 1", "row 2"}},
		{3, []string{"row 3", "row 4"}},
	}
	for n, s := range steps {
		got, err := b.Complete(uint64(s.complete+1), fmt.Sprintf("row %d", s.complete), 0)
		if err != nil || got != uint64(n) {
			t.Fatalf("complete row %d: index %d, %v, want index %d", s.complete, got, err, n)
		}
		if got := emit(b); !slices.Equal(got, s.emitted) {
			t.Errorf("after row %d: emitted %q, want %q", s.complete, got, s.emitted)
		}
	}
	if b.Len() != 0 {
		t.Errorf("%d rows left", b.Len())
	}
}

func TestARowThatIsFirstAndCompleteIsReadyAtOnce(t *testing.T) {
	b := newBuffer[int](t, 1, 1)
	for i := range 3 {
		if _, err := b.Open(uint64(i+1), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Complete(uint64(i+1), i, 0); err != nil {
			t.Fatal(err)
		}
		if got := emit(b); !slices.Equal(got, []int{i}) {
			t.Errorf("emitted %v, want [%d]", got, i)
		}
	}
}

func TestErrorsAreNamedAndChangeNothing(t *testing.T) {
	b := newBuffer[string](t, 3, 100)
	for _, seq := range []uint64{10, 20, 30} {
		if _, err := b.Open(seq, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint64{10, 20} {
		if _, err := b.Complete(seq, "first", 1); err != nil {
			t.Fatal(err)
		}
	}
	b.Release(1)

	open := func(seq uint64) func() error {
		return func() error { _, err := b.Open(seq, 1); return err }
	}
	complete := func(seq uint64) func() error {
		return func() error { _, err := b.Complete(seq, "second", 50); return err }
	}
	tests := []struct {
		name string
		do   func() error
		want error
		text string
	}{
		{"open the last again", open(30), ErrOutOfOrder, "seq 30 after 30"},
		{"open below the last", open(29), ErrOutOfOrder, "seq 29 after 30"},
		{"open zero", open(0), ErrOutOfOrder, "seq 0 after 30"},
		{"complete twice", complete(20), ErrCompleted, "seq 20"},
		{"complete a released row", complete(10), ErrNotOpen, "seq 10"},
		{"complete in a gap", complete(25), ErrNotOpen, "seq 25"},
		{"complete above the last", complete(31), ErrNotOpen, "seq 31"},
		{"complete far above the last", complete(math.MaxUint64), ErrNotOpen, "seq 18446744073709551615"},
		{"complete zero", complete(0), ErrNotOpen, "seq 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := *b
			err := tt.do()
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
			if !reflect.DeepEqual(before, *b) {
				t.Errorf("the buffer changed from %+v to %+v", before, *b)
			}
		})
	}
	if e, ok := b.Ready(0); !ok || e.Value != "first" {
		t.Errorf("row 20 lost its first value: %+v", e)
	}
}

func TestLimitsInRowsAndBytes(t *testing.T) {
	type row struct {
		bytes int
		want  error
	}
	tests := []struct {
		name   string
		limits Limits
		rows   []row
	}{
		{"rows", Limits{Rows: 2, Bytes: 100}, []row{{1, nil}, {1, nil}, {1, ErrFull}, {0, ErrFull}}},
		{"bytes to the last one", Limits{Rows: 9, Bytes: 100}, []row{{60, nil}, {40, nil}, {0, nil}, {1, ErrFull}}},
		{"bytes past the limit", Limits{Rows: 9, Bytes: 100}, []row{{60, nil}, {41, ErrFull}, {40, nil}}},
		{"a giant alone", Limits{Rows: 9, Bytes: 100}, []row{{101, nil}, {0, ErrFull}}},
		{"a giant must wait for an empty buffer", Limits{Rows: 9, Bytes: 100}, []row{{1, nil}, {101, ErrFull}, {99, nil}}},
		{"the largest weight", Limits{Rows: 9, Bytes: 100}, []row{{1, nil}, {math.MaxInt, ErrFull}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBuffer[int](t, tt.limits.Rows, tt.limits.Bytes)
			seq := uint64(1)
			for i, r := range tt.rows {
				if full := b.Full(r.bytes); full != (r.want != nil) {
					t.Errorf("row %d of %d bytes: full %v, want %v", i, r.bytes, full, r.want != nil)
				}
				_, err := b.Open(seq, r.bytes)
				if !errors.Is(err, r.want) {
					t.Errorf("row %d of %d bytes: got %v, want %v", i, r.bytes, err, r.want)
				}
				if err == nil {
					seq++
				}
			}
		})
	}
}

func TestARowWeighsWhatItWasLastToldToWeigh(t *testing.T) {
	b := newBuffer[string](t, 8, 100)
	for seq := range uint64(2) {
		if _, err := b.Open(seq+1, 40); err != nil {
			t.Fatal(err)
		}
	}
	// A value is never refused, even where it takes the buffer over its limit.
	if _, err := b.Complete(1, "long", 90); err != nil {
		t.Fatal(err)
	}
	if b.Bytes() != 130 || !b.Full(0) {
		t.Errorf("bytes %d, full %v, want 130 and full", b.Bytes(), b.Full(0))
	}
	b.Release(1)
	if b.Bytes() != 40 || b.Full(60) || !b.Full(61) {
		t.Errorf("bytes %d, full for 60 %v, for 61 %v", b.Bytes(), b.Full(60), b.Full(61))
	}
	if _, err := b.Complete(2, "", 0); err != nil {
		t.Fatal(err)
	}
	b.Release(1)
	if b.Bytes() != 0 {
		t.Errorf("an empty buffer weighs %d", b.Bytes())
	}
}

func TestReleaseDropsReferencesToValues(t *testing.T) {
	b := newBuffer[*int](t, 20, 100)
	for seq := range uint64(20) {
		if _, err := b.Open(seq+1, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Complete(seq+1, new(int), 0); err != nil {
			t.Fatal(err)
		}
	}
	b.Release(20)
	for i := range b.ring {
		if b.ring[i] != (Entry[*int]{}) {
			t.Errorf("slot %d still holds %+v", i, b.ring[i])
		}
	}
}

func TestTheRingTakesMemoryAsRowsComeAndNeverAboveTheLimit(t *testing.T) {
	b := newBuffer[int](t, 1000, 1<<40)
	if len(b.ring) != 0 {
		t.Errorf("an unused buffer has a ring of %d", len(b.ring))
	}
	for seq := range uint64(1000) {
		if _, err := b.Open(seq+1, 0); err != nil {
			t.Fatal(err)
		}
		if n := len(b.ring); n > max(ringMin, 2*b.Len()) || n > 1000 {
			t.Fatalf("%d rows have a ring of %d", b.Len(), n)
		}
	}
	if _, err := b.Open(2000, 0); !errors.Is(err, ErrFull) {
		t.Errorf("row 1001: got %v, want %v", err, ErrFull)
	}
}

func TestGrowingInTheMiddleOfALapKeepsTheOrder(t *testing.T) {
	b := newBuffer[uint64](t, 100, 1)
	var next, want uint64 = 1, 1
	push := func(n int) {
		for range n {
			if _, err := b.Open(next, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Complete(next, next, 0); err != nil {
				t.Fatal(err)
			}
			next++
		}
	}
	push(ringMin)
	for e, ok := b.Ready(0); ok && want <= ringMin/2; e, ok = b.Ready(0) { // the head is now in mid-ring
		if e.Value != want {
			t.Fatalf("got row %d, want %d", e.Value, want)
		}
		b.Release(1)
		want++
	}
	push(80)
	for _, got := range emit(b) {
		if got != want {
			t.Fatalf("got row %d, want %d", got, want)
		}
		want++
	}
	if want != next {
		t.Errorf("emitted up to %d, opened up to %d", want-1, next-1)
	}
}

func TestPanicsOnBugsOfTheCaller(t *testing.T) {
	tests := map[string]func(*Buffer[int]){
		"release past the head":    func(b *Buffer[int]) { b.Release(2) },
		"release a negative count": func(b *Buffer[int]) { b.Release(-1) },
		"open a negative weight":   func(b *Buffer[int]) { _, _ = b.Open(9, -1) },
		"complete with a negative": func(b *Buffer[int]) { _, _ = b.Complete(2, 0, -1) },
	}
	for name, do := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBuffer[int](t, 4, 4)
			for _, seq := range []uint64{1, 2, 3} {
				if _, err := b.Open(seq, 0); err != nil {
					t.Fatal(err)
				}
			}
			for _, seq := range []uint64{1, 3} { // 2 keeps 3 back
				if _, err := b.Complete(seq, 0, 0); err != nil {
					t.Fatal(err)
				}
			}
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do(b)
		})
	}
}

func TestLimitsReportsEveryFault(t *testing.T) {
	_, err := New[int](Limits{Rows: -1})
	if err == nil || !strings.Contains(err.Error(), "rows -1") || !strings.Contains(err.Error(), "bytes 0") {
		t.Errorf("got %v, want both limits named", err)
	}
	if err := (Limits{Rows: 1, Bytes: 1}).Validate(); err != nil {
		t.Errorf("smallest limits: %v", err)
	}
	var zero Buffer[int]
	if _, err := zero.Open(1, 0); !errors.Is(err, ErrFull) {
		t.Errorf("zero buffer: got %v, want %v", err, ErrFull)
	}
}

func TestAnyOrderOfCompletionGivesTheOrderOfSubmission(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gaps := rapid.SliceOfN(rapid.Uint64Range(1, 3), 1, 60).Draw(t, "gaps")
		seqs := make([]uint64, len(gaps))
		var seq uint64
		for i, gap := range gaps {
			seq += gap
			seqs[i] = seq
		}
		order := rapid.Permutation(seqs).Draw(t, "order")

		b, err := New[uint64](Limits{Rows: len(seqs), Bytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, seq := range seqs {
			if _, err := b.Open(seq, 0); err != nil {
				t.Fatal(err)
			}
		}
		var got []uint64
		for _, seq := range order {
			if _, err := b.Complete(seq, seq, 0); err != nil {
				t.Fatal(err)
			}
			got = append(got, emit(b)...)
		}
		if !slices.Equal(got, seqs) {
			t.Fatalf("completed in order %v: emitted %v, want %v", order, got, seqs)
		}
	})
}

func TestARowCostsNoAllocationOnceTheRingHasGrown(t *testing.T) {
	b := newBuffer[[]byte](t, 8, 1000)
	reply := []byte("reply")
	var seq uint64
	lap := func() {
		for range 8 {
			seq += 2
			if _, err := b.Open(seq, 10); err != nil {
				t.Error(err)
			}
		}
		for i := range uint64(8) {
			if _, err := b.Complete(seq-2*i, reply, len(reply)); err != nil { // the last comes first
				t.Error(err)
			}
		}
		if _, err := b.Open(seq+1, 0); !errors.Is(err, ErrFull) {
			t.Error(err)
		}
		b.Release(8)
	}
	lap()
	if got := testing.AllocsPerRun(100, lap); got != 0 {
		t.Errorf("%v allocations for eight rows, want none", got)
	}
}
