package lane

import (
	"fmt"
	"testing"
	"time"
)

// Two batches of as many rows, created at the same time, whose list shows no tokens: whichever is taken for which at
// first, each gets its own answers in the end.
func TestTwinsAreToldApart(t *testing.T) {
	for i := range 6 {
		runVirtual(t, fmt.Sprint(i), func(t *testing.T) {
			b := newBench(t, inlineProvider())
			b.rows = 300
			killed := b.killAt("created", 1+i%3)
			b.open()
			<-killed
			b.onStep(nil)
			b.lane.Close()
			time.Sleep(10 * time.Second) // what was sent arrives
			if i >= 3 {
				b.api.mu.Lock()
				for k, r := range b.api.batches { // one after the other, the last one first
					r.ends = time.Now().Add(time.Duration(10-k) * 10 * time.Minute)
				}
				b.api.mu.Unlock()
			}
			b.open()
			b.finish(12 * time.Hour)
			if len(b.calls) > 0 || len(b.api.batches) != 3 {
				t.Errorf("%d batches, %d live calls", len(b.api.batches), len(b.calls))
			}
		})
	}
}
