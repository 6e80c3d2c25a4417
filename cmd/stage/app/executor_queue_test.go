package app

import (
	"runtime"
	"testing"
	"weak"

	"github.com/llm-stage/stage/consumer"
)

// A row holds its body and, once it is answered, its result: what the queue holds on to comes on top of the window.
func TestTheQueueLetsGoOfRowsThatItHandedOut(t *testing.T) {
	e := &executor{ready: make(chan struct{}, 1)}
	var rows []weak.Pointer[consumer.Row]
	for range 100 {
		row := &consumer.Row{Body: make([]byte, 1<<10)}
		rows = append(rows, weak.Make(row))
		e.Start(row)
	}
	const handedOut = 90
	for range handedOut {
		if some := e.next(t.Context()); len(some) != 1 {
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
	if n := len(e.queue); n != len(rows)-handedOut {
		t.Errorf("%d rows wait, want %d", n, len(rows)-handedOut)
	}
}
