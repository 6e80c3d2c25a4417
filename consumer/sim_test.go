package consumer_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

var (
	simSeed = flag.Uint64("sim.seed", 1, "first seed of the simulation")
	simRuns = flag.Int("sim.runs", 0, "how many seeds the simulation runs, 0: a few; make sim runs 100")
	simRows = flag.Int("sim.rows", 0, "rows of each seed, 0: some hundred")
	simLog  = flag.Bool("sim.log", false, "show the log of the stages")
)

// TestSimulation draws faults from a seed and checks that every row has exactly one result, in order, whatever happens.
// The seed fixes the faults, their times in virtual time, and each call's latency and outcome; what the goroutines of
// one instant do first is not fixed.
//
//	go test ./consumer -run '^TestSimulation$' -v -sim.seed 1 -sim.runs 500
func TestSimulation(t *testing.T) {
	sum, rows := simSum{done: make(map[string]int)}, cmp.Or(*simRows, scaled().rows)
	for i := range cmp.Or(*simRuns, scaled().seeds) {
		seed := *simSeed + uint64(i)
		ok := runVirtual(t, fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSim(t, seed, partitionsOf(seed), orderOf(seed))
			s.total = rows
			s.run()
			s.check()
			sum.add(s)
		})
		if sum.seeds++; !ok {
			sum.failed = append(sum.failed, seed)
			t.Logf("to repeat: go test ./consumer -run '^TestSimulation$' -v -sim.log -sim.seed %d -sim.runs 1 -sim.rows %d", seed, rows)
		}
	}
	t.Log(sum.String())
}

// TestEveryStepMayBeTheLast ends, cuts off, suspends or stops a process at each step of the protocol, in each manner. Many
// seeds mean that each manner meets every order, and one partition and several; few, that they take turns.
func TestEveryStepMayBeTheLast(t *testing.T) {
	oneStepIn := scaled().oneStepIn
	for i, manner := range manners {
		for j, kind := range simKinds {
			if *simRuns < 10 && i%len(simKinds) != j {
				continue
			}
			runVirtual(t, fmt.Sprintf("%s/order=%s/partitions=%d", manner, kind.order, kind.partitions), func(t *testing.T) {
				s := newSim(t, uint64(i), kind.partitions, kind.order)
				s.refuseEvery = 0
				s.begin()
				for n, step := range consumer.Steps {
					switch {
					case n%oneStepIn != i%oneStepIn:
					case slices.Contains([]string{"kept", "fetching", "purged"}, step) && s.order == streams.OrderNone: // hardly ever: a reply is emitted before
					case step == "tidied" && !s.fansOut: // the result names the object of a whole row
					case step != consumer.StepAheadRead:
						s.strike(step, manner, n%3)
					case s.keyed():
						s.strike(step, manner, 0)
					}
				}
				s.finish()
				s.check()
				t.Logf("%v of virtual time, %d rows, %d starts", time.Since(s.began).Round(time.Second), s.loaded, s.starts)
			})
		}
	}
}

// simKinds are the orders, each with one partition and with several.
var simKinds = []struct {
	order      streams.Order
	partitions int
}{
	{streams.OrderKey, 1}, {streams.OrderNone, 4}, {streams.OrderStream, 1}, {streams.OrderKey, 4}, {streams.OrderNone, 1}, {streams.OrderStream, 4},
}

// strike makes the fault happen at a step, to the process that reaches it next.
func (s *sim) strike(step, manner string, after int) {
	s.t.Helper()
	before := s.count(manner + " at " + step)
	for _, r := range s.replicas {
		r.arm(step, manner, after, time.Duration(s.rng.IntN(6000))*time.Millisecond)
	}
	for i := range 600 {
		time.Sleep(300 * time.Millisecond)
		if s.loaded-s.emitted() < s.window*s.partitions {
			s.loadMore(10 * s.partitions)
		}
		s.revive()
		if s.count(manner+" at "+step) > before {
			for _, r := range s.replicas {
				r.disarm()
			}
			return
		}
		begins := slices.Index(consumer.Steps, step) < slices.Index(consumer.Steps, "taken")
		ends := step == "drained" || step == "handing over"
		if !ends && (!begins || i%20 < 19) {
			continue
		}
		for _, r := range s.replicas {
			if r.alive && s.ownsAny(r) { // make room for another term
				s.stopCleanly(r)
			}
		}
	}
	s.t.Errorf("no process reached the step %q", step)
}

// After a kill, the calls that were in flight are paid for again, and at most the replies that came within the time
// that a reply may wait for its turn before it is kept.
func TestAKillPaysAgainOnlyForCallsInFlight(t *testing.T) {
	for _, order := range everyOrder {
		for _, after := range []time.Duration{0, 100 * time.Millisecond} {
			t.Run(fmt.Sprintf("order=%s/after=%v", order, after), func(t *testing.T) {
				virtual(t, func(t *testing.T) { killAndCount(t, order, after) })
			})
		}
	}
}

func killAndCount(t *testing.T, order streams.Order, journalAfter time.Duration) {
	t.Helper()
	s := newSim(t, 3, 1, order) // limits retention
	s.refuseEvery = 0
	s.fastest, s.slowest, s.slowCalls = 5*time.Millisecond, 60*time.Millisecond, 0
	s.journalAfter = func() time.Duration { return journalAfter }
	s.loadMore(scaled().kills)
	r := &simReplica{s: s}
	s.replicas = []*simReplica{r}
	inFlight, recent, kills := 0, 0, 0
	for s.emitted() < s.loaded {
		s.start(r)
		s.await("the first call", func() bool { return r.exec.begun() || s.emitted() == s.loaded }) // the journal may hold all that is left
		time.Sleep(moment(s.rng, 500*time.Millisecond))
		synctest.Wait()
		a, b := s.unsafe(r.life, time.Now())
		inFlight, recent = inFlight+a, recent+b
		if a > simPool {
			t.Errorf("%d calls in flight of a pool of %d", a, simPool)
		}
		s.kill(r)
		kills++
	}
	s.finish() // by one more, which acks what the last was killed over
	s.check()
	repaid := s.repaid()
	t.Logf("%d kills, %d calls in flight then and %d replies in the last %v; %d calls repaid", kills, inFlight, recent, journalAfter, repaid)
	if repaid > inFlight+recent {
		t.Errorf("%d calls repaid, want at most %d", repaid, inFlight+recent)
	}
}

// simSum adds up what the seeds have seen.
type simSum struct {
	seeds, rows, calls, repaid, starts, claims int
	longest                                    time.Duration
	done                                       map[string]int
	failed                                     []uint64
}

func (m *simSum) add(s *sim) {
	m.rows += s.loaded
	m.calls += len(s.calls)
	m.repaid += s.repaid()
	m.starts += s.starts
	for _, claims := range s.claims {
		m.claims += len(claims)
	}
	m.longest = max(m.longest, time.Since(s.began))
	for name, n := range s.done {
		m.done[name] += n
	}
}

func (m *simSum) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, of which %d failed %v\n%d rows, %d calls, of them %d made again; %d starts of a process, %d claims; longest %v of virtual time\n",
		m.seeds, len(m.failed), m.failed, m.rows, m.calls, m.repaid, m.starts, m.claims, m.longest.Round(time.Second))
	fmt.Fprintf(&b, "%-14s", "at the step")
	for _, manner := range manners {
		fmt.Fprintf(&b, "%12s", manner)
	}
	for _, step := range consumer.Steps {
		fmt.Fprintf(&b, "\n%-14s", step)
		for _, manner := range manners {
			name := manner + " at " + step
			fmt.Fprintf(&b, "%12d", m.done[name])
			delete(m.done, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.done)) {
		fmt.Fprintf(&b, "\n%-24s%6d", name, m.done[name])
	}
	return b.String()
}

// moment draws a time up to most.
func moment(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}
