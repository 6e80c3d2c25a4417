package pool_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// order runs jobs that are all in line from the start, one each second, and returns in what order they start.
func order(t *testing.T, riders ...*rider) string {
	t.Helper()
	var got []string
	synctest.Test(t, func(t *testing.T) {
		p, stop := riding(t, pool.Config{Size: 2, QueueLimit: 100, Law: spaced(t, time.Second)}, func(int) {}, func(r *rider, a pool.Attempt) pool.Verdict {
			if got = append(got, fmt.Sprintf("%d/%s", r.Lane(), r.Key())); a.Number == 1 && r.lane == 7 {
				return busy
			}
			return ok
		})
		for _, r := range riders {
			if err := p.Submit(t.Context(), r, func(pool.Result[*rider, int]) {}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		stop()
	})
	return strings.Join(got, " ")
}

func ofKeys(keys ...int) (riders []*rider) {
	for _, key := range keys {
		riders = append(riders, &rider{lane: key, keyed: true})
	}
	return riders
}

func TestKeysOfALaneTakeTurnsAndLanesAmongThem(t *testing.T) {
	lanes := append(ofKeys(1, 1, 1, 2, 2), &rider{lane: 5}, &rider{lane: 5}, &rider{lane: 5})
	for _, c := range []struct {
		name   string
		riders []*rider
		want   string
	}{
		{"a hot key and others", ofKeys(1, 1, 1, 1, 2, 3, 2), "0/1 0/2 0/3 0/1 0/2 0/1 0/1"},
		{"each a key of its own: as submitted", ofKeys(4, 2, 9, 1, 3), "0/4 0/2 0/9 0/1 0/3"},
		{"the turns of a lane are its keys'", lanes, "0/1 5/ 0/2 5/ 0/1 5/ 0/2 0/1"},
		{"a retry before any other key", ofKeys(1, 7, 7, 2, 3), "0/1 0/7 0/7 0/2 0/3 0/7 0/7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := order(t, c.riders...); got != c.want {
				t.Errorf("order %s, want %s", got, c.want)
			}
		})
	}
}

// While a thousand jobs of one key wait, those of other keys come one by one.
func TestAHotKeyCostsTheOthersOneStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, call = 8, 80 * ms
		p, stop := riding(t, pool.Config{Size: size, QueueLimit: 2000, Law: &recorder{}}, func(int) {},
			func(*rider, pool.Attempt) pool.Verdict { time.Sleep(call); return ok })
		var feeders sync.WaitGroup
		for range 1000 {
			submitRider(t, p, 0)
		}
		time.Sleep(call / 2)
		for key := 1; key <= 20; key++ {
			submitted := time.Now()
			feeders.Add(1)
			err := p.Submit(t.Context(), &rider{lane: key, keyed: true}, func(r pool.Result[*rider, int]) {
				defer feeders.Done()
				// Submitted while calls are in flight, so it waits for half of one; then it may be another key's turn.
				if waited := r.Started.Sub(submitted); waited > call/2 {
					t.Errorf("the job of a key waited %v, want half of a call", waited)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(call)
		}
		feeders.Wait()
		stop()
	})
}

// Jobs that are recalled leave the turns of the others as they were.
func TestRecalledJobsLeaveTheTurnsOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order, back []int
		p, stop := riding(t, pool.Config{Size: 1, QueueLimit: 100}, func(key int) { order = append(order, key) },
			func(*rider, pool.Attempt) pool.Verdict { time.Sleep(time.Second); return ok })
		for _, r := range ofKeys(9, 1, 1, 2, 2, 3, 4, 1) {
			if err := p.Submit(t.Context(), r, func(r pool.Result[*rider, int]) {
				if r.Class == pool.Cancelled {
					back = append(back, r.In.lane)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		p.Recall(func(r *rider) bool { return r.lane == 2 || r.lane == 3 })
		time.Sleep(time.Minute)
		stop()
		if !slices.Equal(order, []int{9, 1, 4, 1, 1}) || !slices.Equal(back, []int{2, 2, 3}) {
			t.Errorf("order %v, handed back %v", order, back)
		}
	})
}
