package stage

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

// Two pools share four slots. The second comes when the first has filled them, gets every
// other slot, and goes on with all of them when the first is done.
func TestStagesOfAProcessTakeTurnsAtTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &slots{limit: 4}
		var mu sync.Mutex
		inFlight, most := 0, 0
		call := func(context.Context, int, pool.Attempt) (struct{}, pool.Verdict) { //nolint:unparam // the signature is that of the pool
			mu.Lock()
			inFlight++
			most = max(most, inFlight)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return struct{}{}, pool.Verdict{}
		}
		began := time.Now()
		var running sync.WaitGroup
		run := func(jobs int, after time.Duration) (took *time.Duration) {
			took = new(time.Duration)
			var p *pool.Pool[int, struct{}]
			var err error
			g := &slotsGate{shared, func() { p.Wake() }}
			if p, err = pool.New(pool.Config{Size: 8, Law: unlimited{}, Gates: []pool.Gate{g}, Retry: pool.DefaultRetry(), QueueLimit: 500}, call); err != nil {
				t.Fatal(err)
			}
			running.Go(func() { _ = p.Run(t.Context()) })
			running.Go(func() {
				time.Sleep(after)
				for i := range jobs {
					if err := p.Submit(t.Context(), i, func(pool.Result[int, struct{}]) { *took = time.Since(began) }); err != nil {
						t.Error(err)
					}
				}
				p.Finish()
			})
			return took
		}
		first, second := run(100, 0), run(120, time.Second)
		running.Wait()
		if most != 4 {
			t.Errorf("%d calls in flight, want 4", most)
		}
		// 40 rows of the first in the first second, its other 60 at half of 40 a second, then
		// the second alone: 220 rows at 40 a second.
		if *first < 3500*time.Millisecond || *first > 4500*time.Millisecond {
			t.Errorf("the first took %v, want about 4s", *first)
		}
		if *second < 5400*time.Millisecond || *second > 6*time.Second {
			t.Errorf("the second took %v, want about 5.5s", *second)
		}
	})
}

// unlimited is a law that holds nothing back.
type unlimited struct{}

func (unlimited) Next(now time.Time, _ int) time.Time { return now }

func (unlimited) Sent(time.Time, int) aimd.Ticket { return aimd.Ticket{} }

func (unlimited) Accepted(time.Time, aimd.Ticket) {}

func (unlimited) Rejected(time.Time, aimd.Ticket, aimd.Hint) {}

func (unlimited) Dropped(time.Time, aimd.Ticket) {}

func (unlimited) Restart(time.Time) {}

func (unlimited) Stats() aimd.Stats { return aimd.Stats{} }
