package pool_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// Room is a sixteenth of the size, less the jobs in line, and OnRoom is called whenever it may have grown.
func TestRoomIsForTheNextJobsAndOnRoomReportsMore(t *testing.T) {
	for _, c := range []struct{ size, room int }{{1, 1}, {16, 1}, {64, 4}} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			p := running(t, pool.Config{Size: c.size, OnRoom: func() { calls++ }}, sleeper(time.Second))
			if got := p.Room(); got != c.room {
				t.Errorf("size %d: room for %d jobs, want %d", c.size, got, c.room)
			}
			for i := range c.size + c.room {
				submit(t, p, i, func(result) {})
				synctest.Wait() // so it is in flight, or in line behind as many as there are slots
			}
			if got := p.Room(); got != 0 {
				t.Errorf("size %d: room for %d jobs with a full line, want none", c.size, got)
			}
			before := calls
			if err := p.Add(99, func(result) {}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := p.Room(); got != -1 || calls != before {
				t.Errorf("size %d: room for %d jobs, want -1; called %d times about no more room", c.size, got, calls-before)
			}
			p.Recall(func(in int) bool { return in == 99 })
			synctest.Wait()
			if calls == before || p.Room() != 0 {
				t.Errorf("size %d: called %d times about the room for %d jobs", c.size, calls-before, p.Room())
			}
		})
	}
}
