package consumer

import (
	"sync"
	"testing"
	"time"
)

func TestAPulseIsInDoubtFromAGapUntilItIsSettled(t *testing.T) {
	born := time.Unix(100, 0)
	at := func(ms int) time.Time { return born.Add(time.Duration(ms) * time.Millisecond) }
	p := newPulse(born, time.Second)
	p.begin(at(0))
	for _, step := range []struct {
		what      string
		at        int
		gap, sure bool
	}{
		{"comes round", 300, false, true},
		{"again", 700, false, true},
		{"suspended for a second", 1700, true, false},
		{"comes round while it is uncertain", 1900, false, false},
		{"suspended again while the log is read: what was read proves nothing", 3000, true, false},
	} {
		if gap := p.beat(at(step.at)); gap != step.gap || p.sure(at(step.at)) != step.sure {
			t.Errorf("%s: gap %v, sure %v; want %v, %v", step.what, gap, p.sure(at(step.at)), step.gap, step.sure)
		}
	}
	if p.settle(); !p.sure(at(3100)) {
		t.Error("uncertain though the log was read")
	}
	if p.sure(at(3500)) {
		t.Error("sure though it has not come round for half of the pin's life")
	}
}

// Between the end of a suspension and the reading of the log there is no moment in which a call may begin.
func TestNobodyIsSureWhileAGapIsNoticed(t *testing.T) {
	born := time.Unix(100, 0)
	woken := born.Add(time.Minute)
	for range 5_000 {
		p := newPulse(born, time.Second)
		p.begin(born)
		var term sync.WaitGroup
		term.Go(func() { p.beat(woken) })
		for range 50 {
			if p.sure(woken) {
				t.Fatal("a worker was sure that the partition is ours")
			}
		}
		term.Wait()
	}
}
