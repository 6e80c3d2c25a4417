package executor

import (
	"fmt"
	"slices"
	"testing"

	"github.com/llm-stage/stage/consumer"
)

// queued returns a queue of rows that are numbered from 1, each of the key at its place.
func queued(keys ...string) *rowQueue {
	q := newRowQueue()
	for i, key := range keys {
		q.add(entry{row: &consumer.Row{Seq: uint64(i + 1), Key: key}})
	}
	return q
}

func TestKeysTakeTurnsInTheQueue(t *testing.T) {
	for _, c := range []struct {
		name string
		keys []string
		want []uint64
	}{
		{"no keys: stream order", make([]string, 6), []uint64{1, 2, 3, 4, 5, 6}},
		{"each row a key of its own: stream order", []string{"d", "a", "c", "b", "f", "e"}, []uint64{1, 2, 3, 4, 5, 6}},
		{"a hot key and others", []string{"hot", "hot", "hot", "a", "hot", "b", "a"}, []uint64{1, 4, 6, 2, 7, 3, 5}},
	} {
		if got := queued(c.keys...).order(len(c.keys)); !slices.Equal(got, c.want) {
			t.Errorf("%s: order %v, want %v", c.name, got, c.want)
		}
	}
}

// Rows are handed back, and started again, while younger ones of their keys wait.
func TestARowThatIsStartedAgainGoesBackToItsPlaceInItsKey(t *testing.T) {
	q := queued("a", "a", "a", "b", "b", "b")
	var back []*consumer.Row
	for range 4 {
		back = append(back, q.take(1, always)[0].row) // 1, 4, 2, 5
	}
	slices.Reverse(back)
	for _, row := range back {
		q.add(entry{row: row})
	}
	if got, want := q.order(6), []uint64{1, 4, 2, 5, 3, 6}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// While the gate is shut it may be one row in the midst of thousands that may begin.
func TestARowThatMayNotBeginBlocksItsKeyAlone(t *testing.T) {
	const keys = 10_000
	q := newRowQueue()
	for n := range uint64(2 * keys) {
		q.add(entry{row: &consumer.Row{Seq: n, Key: fmt.Sprint(n % keys)}})
	}
	asked := 0
	may := func(row *consumer.Row) bool { asked++; return row.Key == "7000" }
	for _, want := range []uint64{7000, 7000 + keys} {
		if got := q.take(1, may); len(got) != 1 || got[0].row.Seq != want {
			t.Fatalf("got %v, want row %d", got, want)
		}
	}
	for range 1000 {
		if got := q.take(1, may); len(got) != 0 {
			t.Fatalf("got %v, want no row", got)
		}
	}
	if asked > keys+1 {
		t.Errorf("%d rows were looked at, want each key's first once", asked)
	}
	q.add(entry{row: &consumer.Row{Seq: 3 * keys, Key: "12"}}) // behind one that may not begin
	if got := q.take(1, always); len(got) != 0 {
		t.Errorf("got row %d before one of its key that may not begin", got[0].row.Seq)
	}
	older := &consumer.Row{Seq: 11, Key: "12"} // started again: it is the first of its key now
	q.add(entry{row: older})
	if got := q.take(1, always); len(got) != 1 || got[0].row != older {
		t.Errorf("got %v, want row 11", got)
	}
	q.take(1, func(*consumer.Row) bool { return false })
	q.resume()
	if got, want := q.order(3), []uint64{0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("order %v once rows may begin, want %v", got, want)
	}
}

func TestRowsThatMayNotBeginAreRecalled(t *testing.T) {
	q := queued("a", "b", "a", "c")
	q.take(1, func(row *consumer.Row) bool { return row.Key == "c" })
	if back := q.recall(func(row *consumer.Row) bool { return row.Seq == 3 }); len(back) != 2 {
		t.Errorf("%d rows handed back, want 2", len(back))
	}
	q.resume()
	if got := q.order(3); !slices.Equal(got, []uint64{3}) {
		t.Errorf("order %v, want row 3 alone", got)
	}
}

// BenchmarkQueue measures what the queue adds to a row, of those of a full window.
func BenchmarkQueue(b *testing.B) {
	for _, keys := range []int{0, 1, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			const window = 1024
			names := []string{""}
			for i := range keys {
				names = append(names, fmt.Sprint("customer ", i))
			}
			names = names[min(keys, 1):]
			rows := make([]consumer.Row, 2*window)
			q := newRowQueue()
			n := uint64(0)
			add := func() {
				row := &rows[n%uint64(len(rows))]
				row.Seq, row.Key = n, names[n%uint64(len(names))]
				q.add(entry{row: row})
				n++
			}
			for range window {
				add()
			}
			b.ReportAllocs()
			for b.Loop() {
				add()
				q.take(1, always)
			}
		})
	}
}

// BenchmarkShutGate measures a look at a partition's keys whose rows may not begin, as after each resume.
func BenchmarkShutGate(b *testing.B) {
	q := newRowQueue()
	for n := range uint64(65536) {
		q.add(entry{row: &consumer.Row{Seq: n, Key: fmt.Sprint(n)}})
	}
	for b.Loop() {
		q.resume()
		q.take(1, func(*consumer.Row) bool { return false })
	}
}
