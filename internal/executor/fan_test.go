package executor

import (
	"testing"

	"github.com/llm-stage/stage/consumer"
)

// A row that was handed back between its elements is answered, at its next start, with the last element that has no answer
// yet: whoever waited for all of them again would wait forever.
func TestAFanStartsAgainWithTheElementsThatHaveNoAnswer(t *testing.T) {
	f := &fan{elements: make([]element, 3)}
	failed := &consumer.Reply{Failed: true}
	begin := func(want int) *job {
		t.Helper()
		index, _ := f.begin()
		if index != want {
			t.Fatalf("element %d begins, want %d", index, want)
		}
		return &job{index: index}
	}
	if left := f.start(); left != 3 || f.put(begin(0), failed, false) {
		t.Errorf("the row is answered with the first of its three elements, or has %d to answer", left)
	}
	if f.takeBack(begin(1).index, &spent{}) || !f.takeBackRest() {
		t.Error("the row is not handed back with the last of the elements that are left")
	}
	if left := f.start(); left != 2 || f.put(begin(1), failed, false) || !f.put(begin(2), failed, false) {
		t.Errorf("%d elements were left to answer, or the row was not answered with the second of two", left)
	}
}
