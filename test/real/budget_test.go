//go:build real

package real

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"
)

// What happens to the stages, in seconds after they were started.
const (
	suspendAt, wakeAt  = 9.0, 13.0  // one that does not lead
	killAt, restartAt  = 15.0, 17.0 // the one that leads
	natsDown, natsUpAt = 21.0, 25.0
	endAt              = 36.0 // until then all have rows left
	// fleetTimeout bounds a run, which takes 50 s where the machine has little else to do.
	fleetTimeout = 2 * time.Minute
	// patience is how long the stages may take to be what they should be. Two seconds are enough, but for busy machines.
	patience = 4 * time.Second
)

// The shares are taken when nothing has happened for a while: before the first fault and after the last one.
var calm = []window{{4, suspendAt}, {natsUpAt + 4, endAt - 2}}

type window struct{ from, to float64 }

// trial is a server with a limit.
type trial struct {
	name   string
	limits string   // of nginx
	rate   int      // of nginx
	mock   []string // arguments of the mock
	limit  []phase  // what is allowed, repeated
}

// phase is so many calls a second for so many seconds.
type phase struct{ rate, seconds float64 }

const stages = 8

// TestEightStagesShareABudget runs two fleets at the same time, against two servers of the same kind: one has
// STAGE_BUDGET set, and in the other each stage is on its own. Both meet the same faults.
func TestEightStagesShareABudget(t *testing.T) {
	t.Parallel()
	nginx := nginxPath(t)
	latency := []string{"--latency", "200ms", "--latency-sigma", "0.2"}
	tests := []trial{
		{
			"nginx, 50 a second", "limit_req zone=calls burst=5 nodelay; limit_req_status 429;", 50,
			latency,
			[]phase{{50, 3600}},
		},
		{
			"mock, 60 and 30 a second in turn", "", 1,
			append([]string{"--schedule", "60:10s,30:10s"}, latency...),
			[]phase{{60, 10}, {30, 10}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var shared, apart tally
			t.Run("fleets", func(t *testing.T) {
				t.Run("shared", func(t *testing.T) {
					t.Parallel()
					shared = tt.run(t, nginx, map[string]string{"STAGE_BUDGET": "account"})
				})
				t.Run("apart", func(t *testing.T) {
					t.Parallel()
					apart = tt.run(t, nginx, nil)
				})
			})
			t.Logf("STAGE_BUDGET   %s\nwithout        %s", shared, apart)
			if t.Failed() {
				return
			}
			for i, jain := range shared.jain {
				if jain < 0.95 {
					t.Errorf("the shares from %.0f s to %.0f s are uneven: Jain's index %.3f", calm[i].from, calm[i].to, jain)
				}
			}
			if shared.above > 2 {
				t.Errorf("more than twice the limit was sent for %.1f s", shared.above)
			}
			if shared.waste() > apart.waste()/2 {
				t.Errorf("waste %.1f%%, and %.1f%% without STAGE_BUDGET: want less than half", 100*shared.waste(), 100*apart.waste())
			}
		})
	}
}

// run runs one fleet from the first row to the last.
func (tt *trial) run(t *testing.T, nginx string, settings map[string]string) tally {
	t.Helper()
	upstream := mock(t, tt.mock...)
	limited := time.Now()
	addr, log := startNginx(t, nginx, upstream, tt.limits, tt.rate)
	rows := 0.0
	for _, p := range tt.limit {
		rows += endAt / stages * p.rate / float64(len(tt.limit))
	}
	f := newFleet(t, stages, int(rows))
	env := map[string]string{"STAGE_LLM_BASE_URL": "http://" + addr + "/v1"}
	maps.Copy(env, settings)
	f.run(env)
	began := time.Now()
	f.disturb(began, len(settings) > 0)
	f.done(time.Until(began.Add(fleetTimeout)))
	o := measure(f, readLog(t, log), tt.limit, began, limited)
	t.Logf("admitted and refused, by second: %v", o.course)
	return o
}

// disturb injects the faults, each at its time.
func (f *fleet) disturb(began time.Time, shared bool) {
	f.t.Helper()
	until := func(at float64) {
		time.Sleep(time.Until(began.Add(seconds(at))))
	}
	expect := func(when string) {
		if shared {
			f.settled(when)
		}
	}
	until(suspendAt)
	f.running()
	expect("before any fault")
	leads := cmp.Or(f.leader(), f.members[0])
	sleeper := f.members[(slices.Index(f.members, leads)+1)%len(f.members)]
	sleeper.signal(syscall.SIGSTOP)
	until(wakeAt)
	sleeper.signal(syscall.SIGCONT)

	until(killAt)
	expect("after one has woken up")
	leads = cmp.Or(f.leader(), f.members[0])
	leads.kill()
	until(restartAt)
	leads.start()

	until(natsDown)
	expect("after the leader was killed and started again")
	f.nats.kill()
	if shared {
		f.become("after nats-server was killed", map[string]int{"alone": len(f.members)})
	}
	until(natsUpAt)
	f.nats.start()
	until(calm[1].from)
	f.running()
	expect("after nats-server was started again")
}

// settled waits until one stage leads and the others follow.
func (f *fleet) settled(when string) {
	f.t.Helper()
	f.become(when, map[string]int{"leader": 1, "member": len(f.members) - 1})
}

// become waits until so many stages are in each mode.
func (f *fleet) become(when string, want map[string]int) {
	f.t.Helper()
	for since := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		modes := f.modes()
		if maps.Equal(modes, want) {
			return
		}
		if time.Since(since) > patience {
			f.t.Errorf("%s: %v, want %v", when, modes, want)
			return
		}
	}
}

// tally is what the server's log shows of a fleet.
type tally struct {
	calls, refused int
	took           float64
	used           float64   // share of what was allowed until endAt
	jain           []float64 // in each of calm
	above          float64   // how long more than twice the limit was sent, at most
	course         [][2]int  // calls admitted and refused, by second
}

func (o tally) waste() float64 { return float64(o.refused) / float64(max(o.calls, 1)) }

func (o tally) String() string {
	return fmt.Sprintf("%d calls in %.0f s, %d refused: waste %.1f%%, %.0f%% of the limit used in the first %.0f s, Jain's index %.3f, above twice the limit for %.1f s",
		o.calls, o.took, o.refused, 100*o.waste(), 100*o.used, endAt, o.jain, o.above)
}

// measure reads the log of the server.
func measure(f *fleet, calls []logged, limit []phase, began, limited time.Time) (o tally) {
	f.t.Helper()
	slices.SortFunc(calls, func(a, b logged) int { return cmp.Compare(a.start, b.start) })
	zero := unix(began)
	accepted := make([]map[string]float64, len(calm))
	for i := range accepted {
		accepted[i] = make(map[string]float64)
	}
	admitted := 0
	for _, c := range calls {
		o.calls++
		o.took = max(o.took, c.end-zero)
		second := max(0, int(c.start-zero))
		for len(o.course) <= second {
			o.course = append(o.course, [2]int{})
		}
		if c.status == http.StatusTooManyRequests {
			o.refused++
			o.course[second][1]++
			continue
		}
		o.course[second][0]++
		if c.start-zero < endAt {
			admitted++
		}
		for i, w := range calm {
			if at := c.start - zero; at >= w.from && at < w.to {
				accepted[i][c.stage]++
			}
		}
	}
	for _, shares := range accepted {
		o.jain = append(o.jain, jain(f, shares))
	}
	shift := zero - unix(limited)
	o.used = float64(admitted) / allowed(limit, shift, shift+endAt)
	o.above = longestAbove(calls, limit, unix(limited))
	return o
}

// jain is Jain's index of fairness: 1 where all have the same.
func jain(f *fleet, shares map[string]float64) float64 {
	sum, squares := 0.0, 0.0
	for _, m := range f.members {
		sum += shares[m.name]
		squares += shares[m.name] * shares[m.name]
	}
	return sum * sum / squares / float64(len(f.members))
}

// burst is what the limiters allow at once.
const burst = 5

// longestAbove is for how long, at most, each second had more than twice the calls that were allowed in it.
func longestAbove(calls []logged, limit []phase, limited float64) (longest float64) {
	const step = 0.05
	if len(calls) == 0 {
		return 0
	}
	after := func(at float64) int { // the first call at an instant or after it; they are sorted
		i, _ := slices.BinarySearchFunc(calls, at, func(c logged, at float64) int { return cmp.Compare(c.start, at) })
		return i
	}
	above := 0.0
	for at := calls[0].start; at < calls[len(calls)-1].start; at += step {
		if above += step; float64(after(at)-after(at-1)) <= 2*allowed(limit, at-1-limited, at-limited)+burst {
			above = 0
		}
		longest = max(longest, above)
	}
	return longest
}

// allowed is how many calls are allowed between two instants, in seconds after the first phase began.
func allowed(limit []phase, from, to float64) (n float64) {
	round := 0.0
	for _, p := range limit {
		round += p.seconds
	}
	for begin := 0.0; begin < to; begin += round {
		at := begin
		for _, p := range limit {
			n += p.rate * max(0, min(to, at+p.seconds)-max(from, at))
			at += p.seconds
		}
	}
	return n
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
