package stage_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/process"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	laneRows  = flag.Int("sim.rows", 0, "rows of each seed; 0: 200, or 60 with -short")
	laneKills = flag.Int("sim.kills", 0, "how many processes of each seed are killed; 0: a dozen, four with -short, with ten seeds or more one at each step")
	simDue    = flag.Bool("sim.deadlines", true, "one row in ten has a deadline")
	simOnly   = flag.String("sim.provider", "", "the provider of all seeds; empty: each in turn")
)

const (
	batchDelay = 10 * time.Minute // of a batch at the provider
	manySeeds  = 10
	fewKills   = 12
)

// providers are those with a Batch API.
var providers = [...]string{"openai", "azure", "gemini", "anthropic", "openai-responses"}

// laneSim is a stage whose processes come and go.
type laneSim struct {
	t      *testing.T
	rng    *rand.Rand
	seed   uint64
	began  time.Time
	broker *stagetest.Broker
	nc     *nats.Conn
	js     jetstream.JetStream
	llm    *llmtest.Server
	logs   *stagetest.Buffer
	vars   map[string]string
	trap   laneTrap
	later  sync.WaitGroup // requests that arrive when their process is dead

	provider, order string
	partitions      int
	processes       []*process.Process
	starts          int
	laneOff         bool // processes start without the settings of the lane
	rows            []row
	excused         []interval // when deadlines need not be met
	done            map[string]int

	mu        sync.Mutex
	whims     *rand.Rand
	forgotten map[string]int      // answers 404, by step
	seen      map[string]int      // requests to the provider, by step
	live      map[int][]time.Time // when each row was called live
}

// row is what the simulator knows of a row.
type row struct {
	n        int
	lane     string        // Stage-Lane; empty: none
	deadline time.Duration // 0: none
	arrived  time.Time
}

type interval struct{ from, to time.Time }

// TestSimulationOfTheBatchLane kills processes at each step from the intent of a batch to its deletion, restarts the
// NATS server, and fills streams, and checks that each row has exactly one result, in order, that nothing was paid for
// twice by the provider's own count, and that deadlines are met.
//
//	go test ./test/stage -run '^TestSimulationOfTheBatchLane$' -v -sim.seed 1 -sim.runs 5 -sim.rows 2000
func TestSimulationOfTheBatchLane(t *testing.T) {
	*laneRows = stagetest.Runs(*laneRows, 60, 200)
	for i := range stagetest.Runs(*simRuns, 1, 1) {
		seed := *simSeed + uint64(i) //nolint:gosec // not negative
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				s := newLaneSim(t, seed)
				s.run()
				s.finish()
				s.check()
			})
		})
	}
}

func newLaneSim(t *testing.T, seed uint64) *laneSim {
	t.Helper()
	s := &laneSim{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 21)), began: time.Now(), whims: rand.New(rand.NewPCG(seed, 22)), forgotten: make(map[string]int), done: make(map[string]int), seen: make(map[string]int), live: make(map[int][]time.Time),
		provider: providers[seed%uint64(len(providers))], order: []string{"stream", "key", "none"}[seed/2%3], partitions: 1 + int(seed%3)*int(seed%2), //nolint:gosec // small
	}
	if *simOnly != "" {
		s.provider = *simOnly
	}
	s.logs = &stagetest.Buffer{Shown: *simLog}
	s.broker = stagetest.NewBroker(t)
	s.nc = s.broker.Connect(s.broker)
	var err error
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	if s.llm, err = llmtest.New(s.llmConfig()); err != nil {
		t.Fatal(err)
	}
	// A batch costs half.
	prices := stagetest.File(t, "prices.yaml", "small: {input: 2, output: 8, batch_input: 1, batch_output: 4}\n")
	s.vars = map[string]string{
		"STAGE_LLM_PROVIDER": s.provider, "STAGE_LLM_BASE_URL": "http://llm.test/v1", "STAGE_LLM_API_KEY": "sk-of-the-simulation", "STAGE_LLM_MODEL": "small",
		"STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_POOL_SIZE": "8", "STAGE_WINDOW": "128", "STAGE_ORDER": s.order, "STAGE_PARTITIONS": fmt.Sprint(s.partitions),
		"STAGE_LANE": "batch", "STAGE_LANE_ROWS": fmt.Sprint(max(20, *laneRows/20)), "STAGE_LANE_OPEN": "6", "STAGE_LANE_WAIT": "1m",
		"STAGE_PRICES_FILE": prices, "STAGE_LLM_TIMEOUT": "30s", "STAGE_AUDIT_MAX_AGE": "0", "STAGE_FATAL_PROBE_INTERVAL": "30s",
	}
	if s.partitions > 1 {
		s.vars["STAGE_INPUT_SUBJECT"] = "rows.{partition}.>"
	}
	return s
}

func (s *laneSim) clock() time.Duration { return time.Since(s.began).Round(time.Millisecond) }

func (s *laneSim) moment(most time.Duration) time.Duration {
	return time.Millisecond + time.Duration(s.rng.Int64N(int64(most)))
}

func (s *laneSim) note(format string, args ...any) {
	if testing.Verbose() {
		s.t.Logf("%v %s", s.clock(), fmt.Sprintf(format, args...))
	}
}

// saw counts a request to the provider.
func (s *laneSim) saw(step string, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[step]++
	_ = r
}

// call is the script of the provider's live calls: each row's are noted.
func (s *laneSim) call(c llmtest.Call) {
	var n int
	if !laneRowOf(c.Prompt, &n) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[n] = append(s.live[n], time.Now())
}

// load publishes rows: one in ten is live, one in ten has a deadline.
func (s *laneSim) load(count int) {
	s.t.Helper()
	for range count {
		r := row{n: len(s.rows) + 1, arrived: time.Now()}
		m := &nats.Msg{Subject: fmt.Sprintf("rows.c%d", r.n%17), Data: fmt.Appendf(nil, `{"n":%d}`, r.n), Header: nats.Header{}}
		switch s.rng.IntN(10) {
		case 0:
			r.lane = "live"
			m.Header.Set("Stage-Lane", r.lane)
		case 1:
			if !*simDue {
				break
			}
			r.deadline = 2*time.Minute + s.moment(30*time.Minute)
			m.Header.Set("Stage-Deadline", r.deadline.String())
		}
		stagetest.Value(s.js.PublishMsg(s.t.Context(), m, jetstream.WithRetryAttempts(20)))(s.t)
		s.rows = append(s.rows, r)
	}
}

// run lets processes die.
func (s *laneSim) run() {
	s.t.Helper()
	s.start()
	s.until("streams", func() bool {
		_, err := s.js.Stream(s.t.Context(), "RESULTS")
		return err == nil
	})
	kills := s.kills()
	s.load(*laneRows / 2)
	s.start()
	for i, k := range kills {
		s.kill(k)
		if i%7 == 3 {
			s.trouble()
		}
		s.load(*laneRows/2/len(kills) + 1)
	}
}

// kills draws the steps at which processes die, each once before any comes again.
func (s *laneSim) kills() (all []laneTarget) {
	for {
		round := laneSteps()
		if s.provider == "anthropic" { // has no files
			round = slices.DeleteFunc(round, func(k laneTarget) bool { return k.step == "upload" })
		}
		s.rng.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		all = append(all, round...)
		switch {
		case *laneKills > 0 && len(all) >= *laneKills:
			return all[:*laneKills]
		case *laneKills == 0 && *simRuns < manySeeds:
			return all[:stagetest.Runs(0, 4, fewKills)]
		case *laneKills == 0:
			return all
		}
	}
}

// kill has the next process die that reaches a step, and starts another one a while later.
func (s *laneSim) kill(k laneTarget) {
	s.t.Helper()
	what := fmt.Sprintf("kill %s %s", k.manner, k.step)
	k.after = s.moment(2 * time.Minute)
	switch k.step {
	case "find": // is asked for after a kill between intent and record
		k = laneTarget{step: "create", manner: after, next: new(k)}
	case "abandon":
		k = laneTarget{step: "create", manner: before, next: new(k)}
	case "claim", "reset":
		k = laneTarget{step: "poll", manner: before, next: new(k)}
	case "purge of the journal":
	case "poll", "fetch", "journal", "emit", "call", "audit of a line":
		k.nth = s.rng.IntN(6)
	default:
		k.nth = s.rng.IntN(2)
	}
	s.trap.Arm(k)
	for end := time.Now().Add(45 * time.Minute); s.trap.Armed() && time.Now().Before(end); {
		time.Sleep(2 * time.Second)
		s.revive()
		if s.results() == len(s.rows) && len(s.rows) < 6**laneRows {
			s.load(max(10, *laneRows/40))
		}
	}
	if s.trap.Disarm() {
		s.done["not reached: "+what]++
		s.note("%s: not reached", what)
		return
	}
	s.done["kills"]++
	s.done[what]++
	s.note("%s", what)
	from := time.Now()
	time.Sleep(s.moment(40 * time.Second))
	s.revive()
	s.excuse(from, time.Minute)
}

// revive keeps two processes alive.
func (s *laneSim) revive() {
	s.t.Helper()
	for len(s.alive()) < 2 {
		s.start()
	}
}

// excuse notes that deadlines need not be met from an instant until a while from now.
func (s *laneSim) excuse(from time.Time, after time.Duration) {
	s.excused = append(s.excused, interval{from, time.Now().Add(after)})
}

// trouble draws a fault of another kind.
func (s *laneSim) trouble() {
	s.t.Helper()
	from := time.Now()
	what := []string{"server restart", "full LANE", "full JOURNAL", "full RESULTS", "full AUDIT", "stop", "stop", "cut", "lane off", "lane off"}[s.rng.IntN(10)]
	s.note("%s", what)
	s.done[what]++
	stream, full := strings.CutPrefix(what, "full ")
	switch {
	case full:
		stagetest.Fill(s.t, s.js, stream, true)
		time.Sleep(s.moment(5 * time.Minute))
		stagetest.Fill(s.t, s.js, stream, false)
	case what == "server restart":
		s.broker.Stop()
		time.Sleep(s.moment(20 * time.Second))
		s.broker.Start()
		time.Sleep(2 * time.Second)
	case what == "cut":
		for _, p := range s.alive() {
			p.Wire.Cut()
		}
	case what == "lane off":
		s.laneOff = true
		s.replace(1 + s.rng.IntN(2))
		time.Sleep(s.moment(15 * time.Minute))
		s.laneOff = false
		s.replace(2) // by processes with the lane
	default:
		s.replace(1)
	}
	s.excuse(from, time.Minute)
}

// replace stops some processes one after the other, and starts others.
func (s *laneSim) replace(n int) {
	s.t.Helper()
	for range n {
		p := s.alive()[0]
		p.Soft()
		s.until("the stop of a process", p.Over)
		if p.Err != nil {
			s.t.Errorf("%v run: %v", s.clock(), p.Err)
		}
		time.Sleep(s.moment(30 * time.Second))
		s.revive()
	}
}

// results counts them; -1 while the server is away.
func (s *laneSim) results() int {
	return stagetest.Stored(s.t, s.js, "RESULTS", "results.stage.*.rows")
}

// until waits in virtual time until a condition holds.
func (s *laneSim) until(what string, is func() bool) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < simPatience; time.Sleep(max(50*time.Millisecond, time.Since(began)/50)) {
		if is() {
			return
		}
	}
	s.dump()
	s.t.Fatalf("%v %s: not within %v", s.clock(), what, simPatience)
}

// dump shows the end of the log.
func (s *laneSim) dump() {
	s.t.Log(s.seen)
	for _, p := range s.alive() {
		s.t.Log(s.status(p))
	}
	lines := strings.Split(s.logs.String(), "\n")
	s.t.Log(strings.Join(lines[max(0, len(lines)-60):], "\n"))
}

// finish waits for all results and stops the processes.
func (s *laneSim) finish() {
	s.t.Helper()
	s.revive()
	s.until("all results", func() bool { return s.results() >= len(s.rows) })
	time.Sleep(5 * time.Minute) // batches are deleted
	s.later.Wait()
	for _, p := range s.alive() {
		p.Soft()
		s.until("the last stops", p.Over)
		if p.Err != nil {
			s.t.Errorf("%v run: %v", s.clock(), p.Err)
		}
	}
	s.t.Logf("%s, order %s, %d partitions: %v of virtual time, %d rows, %d starts, requests %v, of them answered 404 %v", s.provider, s.order, s.partitions, s.clock(), len(s.rows), s.starts, s.seen, s.forgotten)
	for _, what := range slices.Sorted(maps.Keys(s.done)) {
		s.t.Logf("  %s: %d", what, s.done[what])
	}
}

// laneRowOf reads the number of a row from its prompt.
func laneRowOf(prompt string, n *int) bool {
	_, err := fmt.Sscanf(prompt, "Row %d", n)
	return err == nil
}
