package executor

import (
	"runtime"
	"slices"
	"testing"
	"weak"

	"pgregory.net/rapid"

	"github.com/llm-stage/stage/consumer"
)

func always(*consumer.Row) bool { return true }

// order takes out n rows, one by one, and returns their sequences.
func (q *rowQueue) order(n int) (seqs []uint64) {
	for range n {
		for _, w := range q.take(1, always) {
			seqs = append(seqs, w.row.Seq)
		}
	}
	return seqs
}

// A row holds its body and, once it is answered, its result: what the queue holds on to comes on top of the window.
func TestTheQueueLetsGoOfRowsThatItHandedOut(t *testing.T) {
	q := newRowQueue()
	var rows []weak.Pointer[consumer.Row]
	for n := range 100 {
		row := &consumer.Row{Seq: uint64(n), Body: make([]byte, 1<<10)}
		rows = append(rows, weak.Make(row))
		q.add(entry{row: row})
	}
	const handedOut = 90
	for range handedOut {
		if some := q.take(1, always); len(some) != 1 {
			t.Fatalf("got %d rows, want 1", len(some))
		}
	}
	runtime.GC()
	held := 0
	for _, row := range rows[:handedOut] {
		if row.Value() != nil {
			held++
		}
	}
	if held > 1 { // the last one, until the next
		t.Errorf("%d of %d rows that were handed out are still held", held, handedOut)
	}
	if n := len(q.take(1000, always)); n != len(rows)-handedOut {
		t.Errorf("%d rows wait, want %d", n, len(rows)-handedOut)
	}
}

// A shut window admits only the first row of its partition that has no answer, so what is held behind a row that may not
// begin need not be looked at.
func TestTheQueueLooksAtOneRowOfAPartitionThatIsHeld(t *testing.T) {
	q := newRowQueue()
	for n := range 10_000 {
		q.add(entry{row: &consumer.Row{Partition: n % 2, Seq: uint64(n)}})
	}
	asked := 0
	for range 100 {
		row := q.take(1, func(row *consumer.Row) bool { asked++; return row.Partition == 1 })
		if len(row) != 1 || row[0].row.Partition != 1 {
			t.Fatalf("got %v, want a row of the partition that is not held", row)
		}
	}
	if asked > 200 {
		t.Errorf("%d rows were looked at for 100", asked)
	}
}

// A partition that has a single row now and then comes in behind one that has rows all the while, also where the turn has
// just passed the last.
func TestAPartitionThatComesAgainGoesBeforeNoOther(t *testing.T) {
	q := newRowQueue()
	for n := range 10 {
		q.add(entry{row: &consumer.Row{Partition: 0, Seq: uint64(n)}})
	}
	var got []int
	for n := range 10 {
		q.add(entry{row: &consumer.Row{Partition: 1, Seq: uint64(n)}})
		got = append(got, q.take(1, always)[0].row.Partition)
	}
	if want := []int{0, 1, 0, 1, 0, 1, 0, 1, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("turns %v, want %v", got, want)
	}
}

// TestTheQueueKeepsStreamOrderAndTurns: whatever is added when, the rows of a partition come out in stream order, among
// those that wait, partitions that have rows all the while take turns, and a prompt goes after each third row.
func TestTheQueueKeepsStreamOrderAndTurns(t *testing.T) {
	const partitions = 4
	rapid.Check(t, func(t *rapid.T) {
		q := newRowQueue()
		var waiting [partitions][]uint64
		var sinceTaken [partitions]int         // rows that others were given since this one was, or had none
		prompts, sincePrompt, ahead := 0, 0, 0 // ahead: rows since a prompt waits
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := rapid.IntRange(0, partitions-1).Draw(t, "partition")
				seq := rapid.Uint64Range(1, 1000).Filter(func(n uint64) bool { return !slices.Contains(waiting[p], n) }).Draw(t, "seq")
				if len(waiting[p]) == 0 {
					sinceTaken[p] = 0
				}
				waiting[p] = append(waiting[p], seq)
				slices.Sort(waiting[p])
				q.add(entry{row: &consumer.Row{Partition: p, Seq: seq}})
			},
			"prompt": func(*rapid.T) {
				q.addPrompt(new(prompt))
				prompts++
			},
			"take": func(t *rapid.T) {
				most := rapid.IntRange(1, 6).Draw(t, "most")
				blocked := rapid.IntRange(-1, partitions-1).Draw(t, "blocked")
				q.resume()
				taken := q.take(most, func(row *consumer.Row) bool { return row.Partition != blocked })
				left := func() (rows int) {
					for p := range partitions {
						if p != blocked {
							rows += len(waiting[p])
						}
					}
					return rows
				}
				if want := min(most, left()+prompts); len(taken) != want {
					t.Fatalf("took %d, want %d", len(taken), want)
				}
				for _, w := range taken {
					if w.prompt != nil {
						if prompts--; sincePrompt < rowsPerPrompt && left() > 0 {
							t.Fatalf("a prompt went %d rows after another", sincePrompt)
						}
						sincePrompt, ahead = 0, 0
						continue
					}
					sincePrompt++
					if ahead++; prompts == 0 {
						ahead = 0
					}
					if ahead > rowsPerPrompt {
						t.Fatalf("%d rows went before a prompt", ahead)
					}
					p := w.row.Partition
					if waiting[p][0] != w.row.Seq {
						t.Fatalf("got row %d of partition %d, want %d", w.row.Seq, p, waiting[p][0])
					}
					waiting[p] = waiting[p][1:]
					for other := range partitions {
						if other == p || other == blocked || len(waiting[other]) == 0 {
							sinceTaken[other] = 0
						} else if sinceTaken[other]++; sinceTaken[other] > partitions {
							t.Fatalf("partition %d waits for its turn while others had %d rows", other, sinceTaken[other])
						}
					}
				}
			},
		})
	})
}

// TestNoRowIsLostWhoseOwnerChangesDuringARecall has rows become unwanted while they are recalled, as when two partitions
// are released in one moment.
func TestNoRowIsLostWhoseOwnerChangesDuringARecall(t *testing.T) {
	q := newRowQueue()
	const rows = 10
	for seq := range uint64(rows) {
		q.add(entry{row: &consumer.Row{Seq: seq}})
	}
	asked := 0
	back := q.recall(func(*consumer.Row) bool {
		asked++
		return asked%2 == 1
	})
	left := q.take(rows, always)
	if len(back)+len(left) != rows {
		t.Errorf("%d rows handed back, %d left of %d", len(back), len(left), rows)
	}
}
