package sequencer_test

import (
	"fmt"

	"github.com/llm-stage/stage/sequencer"
)

// Three rows come from a stream in which other subjects took the numbers between. All have the same
// key, and the last one finishes first.
func Example() {
	b, err := sequencer.New[string](sequencer.Limits{Rows: 1024, Bytes: 256 << 20, Span: 1024}, 0, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, seq := range []uint64{7, 12, 13} {
		if _, err := b.Open(seq, sequencer.Key{}, 100); err != nil {
			fmt.Println(err)
		}
	}
	for _, seq := range []uint64{13, 7, 12} {
		if _, err := b.Complete(seq, fmt.Sprint("reply to ", seq), 40); err != nil {
			fmt.Println(err)
		}
		fmt.Printf("%d is complete, %d rows held\n", seq, b.Len())
		for e, ok := b.Ready(0); ok; e, ok = b.Ready(0) {
			fmt.Printf("  emit %q (submitted %d)\n", e.Value, e.SubmitIndex)
			b.Release(1)
		}
	}
	_, err = b.Complete(12, "once more", 40)
	fmt.Println(err)
	// Output:
	// 13 is complete, 3 rows held
	// 7 is complete, 3 rows held
	//   emit "reply to 7" (submitted 0)
	// 12 is complete, 2 rows held
	//   emit "reply to 12" (submitted 1)
	//   emit "reply to 13" (submitted 2)
	// complete row seq 12: row is not open: it was never opened or is already released
}

// Row 1 of ann takes long. Her row 4 waits for it, and bob's rows do not. Row 3 was finished by an
// earlier owner.
func ExampleBuffer_Marks() {
	limits := sequencer.Limits{Rows: 1024, Bytes: 256 << 20, Span: 65536}
	b, err := sequencer.New[string](limits, 0, []uint64{3})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, name := range []string{"ann", "bob", "bob", "ann", "bob"} {
		seq := uint64(i + 1)
		if b.Known(seq) {
			err = b.Skip(seq)
		} else {
			_, err = b.Open(seq, sequencer.Key{Name: name}, 100)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	for _, seq := range []uint64{5, 4, 2, 1} {
		if _, err := b.Complete(seq, fmt.Sprint("reply to ", seq), 40); err != nil {
			fmt.Println(err)
		}
		if before, waits := b.WaitsFor(seq); waits {
			fmt.Printf("%d is complete and waits for %d\n", seq, before)
		} else {
			fmt.Printf("%d is complete\n", seq)
		}
		n := 0
		for mark := range b.Marks(b.Len()) {
			e, _ := b.Ready(n)
			fmt.Printf("  emit %q, low-water mark %d, %d ahead\n", e.Value, mark.Low, mark.Ahead)
			n++
		}
		b.Release(n)
	}
	// Output:
	// 5 is complete and waits for 2
	// 4 is complete and waits for 1
	// 2 is complete
	//   emit "reply to 2", low-water mark 0, 2 ahead
	//   emit "reply to 5", low-water mark 0, 3 ahead
	// 1 is complete
	//   emit "reply to 1", low-water mark 3, 1 ahead
	//   emit "reply to 4", low-water mark 5, 0 ahead
}
