package stage_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/chain"
)

var (
	chainRows  = flag.Int("sim.chain.rows", 0, "rows of each seed; 0: 150, or 60 with -short")
	chainKills = flag.Int("sim.chain.kills", 0, "how many processes of each seed are killed; 0: 12, or 6 with -short")
)

// chainSim is a chain whose processes come and go.
type chainSim struct {
	*chainSite

	rng       *rand.Rand
	allowance int // calls that may be made again
	done      map[string]int
}

// TestSimulationOfChains kills processes of three stages in a row at drawn steps, restarts the NATS server, fills
// streams and cuts connections, and checks that each row has exactly one result of each stage, in order, made from the
// one it names, and that no reply that was in the journal was paid for again: of a row or of an element of one.
//
//	go test ./test/stage -run '^TestSimulationOfChains$' -v -sim.seed 1 -sim.runs 20 -sim.chain.rows 1000
func TestSimulationOfChains(t *testing.T) {
	*chainRows, *chainKills = stagetest.Runs(*chainRows, 60, 150), stagetest.Runs(*chainKills, 6, 12)
	for i := range stagetest.Runs(*simRuns, 1, 3) {
		seed := *simSeed + uint64(i) //nolint:gosec // not negative
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				s := newChainSim(t, seed)
				s.run()
				s.finish()
			})
		})
	}
}

func newChainSim(t *testing.T, seed uint64) *chainSim {
	t.Helper()
	p := chain.Pipeline{Seed: seed, Keep: seed%2 == 0, Flat: seed%7 == 6, ByKey: seed%5 == 3, Partitions: 1 + int(seed%3)/2} //nolint:gosec // small
	s := &chainSim{rng: rand.New(rand.NewPCG(seed, 31)), done: make(map[string]int)}
	s.chainSite = newChainSite(t, p, llmtest.Config{Seed: seed, Latency: 400 * time.Millisecond, LatencySigma: .8})
	return s
}

func (s *chainSim) moment(most time.Duration) time.Duration {
	return time.Millisecond + time.Duration(s.rng.Int64N(int64(most)))
}

// note reports what is done, in virtual time since the beginning.
func (s *chainSim) note(format string, args ...any) {
	if testing.Verbose() {
		s.t.Logf("%v %s", time.Since(s.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
	}
}

// run lets processes die.
func (s *chainSim) run() {
	s.t.Helper()
	s.revive()
	s.load(*chainRows / 2)
	for i := range *chainKills {
		s.kill()
		if i%4 == 3 {
			s.trouble()
		}
		s.load(*chainRows / 2 / *chainKills)
	}
}

// kill has the next process die that reaches a drawn step, and starts another one a while later.
func (s *chainSim) kill() {
	s.t.Helper()
	at := chainTarget{stage: chain.Name(chain.B), step: chainSteps[s.rng.IntN(len(chainSteps))], after: s.rng.IntN(2) == 0, nth: s.rng.IntN(8)}
	if s.rng.IntN(2) == 0 {
		at.stage = chain.Name(s.rng.IntN(chain.Stages))
	}
	switch at.step.name {
	case "claim", "reset", "purge of the journal":
		at.nth = 0
	case "element":
		if at.stage != chain.Name(chain.B) || s.pipeline.Flat {
			at.step = chainSteps[2]
		}
	}
	what := fmt.Sprintf("kill of %s at %s, after it %t", at.stage, at.step.name, at.after)
	name := at.step.name
	if name == "claim" || name == "reset" { // is done by whoever takes over
		s.allowance += chainPool
		at = chainTarget{stage: at.stage, step: chainSteps[1], nth: s.rng.IntN(10), next: new(at)}
	}
	s.trap.Arm(at)
	for end := time.Now().Add(3 * time.Minute); s.trap.Armed() && time.Now().Before(end); {
		time.Sleep(time.Second)
		s.supervise("a kill")
		if s.stored(chain.C) == s.rows && s.rows < 4**chainRows {
			s.load(20)
		}
	}
	if s.trap.Disarm() {
		s.done["not reached: "+name]++
		return
	}
	s.note("%s", what)
	s.done["kill at "+name]++
	s.allowance += chainPool
	time.Sleep(s.moment(10 * time.Second))
	s.revive()
}

// revive keeps two processes of each stage alive.
func (s *chainSim) revive() {
	s.t.Helper()
	s.supervise("a start")
	for stage := range chain.Stages {
		for len(s.alive(stage)) < 2 {
			s.start(stage)
		}
	}
}

// trouble draws a fault of another kind. While one lasts, a partition may change its owner, whose calls are made again.
func (s *chainSim) trouble() {
	s.t.Helper()
	what := []string{"server restart", "full JOURNAL", "full RESULTS", "full AUDIT", "stop", "cut"}[s.rng.IntN(6)]
	s.note("%s", what)
	s.done[what]++
	s.allowance += chain.Stages * chainPool
	stream, full := strings.CutPrefix(what, "full ")
	switch {
	case full:
		stagetest.Fill(s.t, s.js, stream, true)
		time.Sleep(s.moment(time.Minute))
		stagetest.Fill(s.t, s.js, stream, false)
	case what == "server restart":
		s.broker.Stop()
		time.Sleep(s.moment(10 * time.Second))
		s.broker.Start()
		time.Sleep(2 * time.Second)
	case what == "cut":
		for stage := range chain.Stages {
			for _, p := range s.alive(stage) {
				p.Wire.Cut()
			}
		}
	default:
		for stage := range chain.Stages {
			s.stopOne(s.alive(stage)[0])
		}
		time.Sleep(s.moment(10 * time.Second))
		s.revive()
	}
}

// finish waits for the last results, stops the processes, and checks everything.
func (s *chainSim) finish() {
	s.t.Helper()
	s.revive()
	s.until("all results", func() bool { return s.stored(chain.C) >= s.rows })
	s.stop()
	s.check()
	attempts, again, _ := s.counter.Paid()
	if again > s.allowance {
		s.t.Errorf("MONEY: %d calls were made again, what happened allows %d", again, s.allowance)
	}
	s.t.Logf("%+v: %v of virtual time, %d rows, %d starts, %d calls, of them made again %d of at most %d",
		s.pipeline, time.Since(s.began).Round(time.Second), s.rows, s.starts, attempts, again, s.allowance)
	for _, what := range slices.Sorted(maps.Keys(s.done)) {
		s.t.Logf("  %s: %d", what, s.done[what])
	}
}
