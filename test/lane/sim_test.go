package lane_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/process"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	simSeed  = flag.Uint64("sim.seed", 1, "first seed of the simulation")
	simRuns  = flag.Int("sim.runs", 1, "how many seeds the simulation runs")
	simRows  = flag.Int("sim.rows", 0, "rows of each seed; 0: 200, or 60 with -short")
	simKills = flag.Int("sim.kills", 0, "how many processes of each seed are killed; 0: a dozen, four with -short, with ten seeds or more one at each step")
	simDue   = flag.Bool("sim.deadlines", true, "one row in ten has a deadline")
	simOnly  = flag.String("sim.provider", "", "the provider of all seeds; empty: each in turn")
	simLog   = flag.Bool("sim.log", false, "show the log of the stages")
)

func TestMain(m *testing.M) {
	flag.Parse()
	stagetest.Wait()
	ats.Register() // the server's clock must tick outside the bubbles, or virtual time stands still
	os.Exit(m.Run())
}

const (
	batchDelay = 10 * time.Minute // of a batch at the provider
	patience   = 12 * time.Hour
	manySeeds  = 10
	fewKills   = 12
)

// providers are those with a Batch API.
var providers = [...]string{"openai", "azure", "gemini", "anthropic", "openai-responses"}

// sim is a stage whose processes come and go.
type sim struct {
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
	trap   trap
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
//	go test ./test/lane -run '^TestSimulationOfTheBatchLane$' -v -sim.seed 1 -sim.runs 5 -sim.rows 2000
func TestSimulationOfTheBatchLane(t *testing.T) {
	*simRows = stagetest.Runs(*simRows, 60, 200)
	for i := range *simRuns {
		seed := *simSeed + uint64(i) //nolint:gosec // not negative
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, seed)
				s.run()
				s.finish()
				s.check()
			})
		})
	}
}

func newSim(t *testing.T, seed uint64) *sim {
	t.Helper()
	s := &sim{
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
	s.vars = map[string]string{
		"STAGE_LLM_PROVIDER": s.provider, "STAGE_LLM_BASE_URL": "http://llm.test/v1", "STAGE_LLM_API_KEY": "sk-of-the-simulation", "STAGE_LLM_MODEL": "small",
		"STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_POOL_SIZE": "8", "STAGE_WINDOW": "128", "STAGE_ORDER": s.order, "STAGE_PARTITIONS": fmt.Sprint(s.partitions),
		"STAGE_LANE": "batch", "STAGE_LANE_ROWS": fmt.Sprint(max(20, *simRows/20)), "STAGE_LANE_OPEN": "6", "STAGE_LANE_WAIT": "1m",
		"STAGE_PRICES_FILE": s.prices(), "STAGE_LLM_TIMEOUT": "30s", "STAGE_AUDIT_MAX_AGE": "0", "STAGE_FATAL_PROBE_INTERVAL": "30s",
	}
	if s.partitions > 1 {
		s.vars["STAGE_INPUT_SUBJECT"] = "rows.{partition}.>"
	}
	return s
}

// prices writes a price file: a batch costs half.
func (s *sim) prices() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "prices.yaml")
	if err := os.WriteFile(path, []byte("small: {input: 2, output: 8, batch_input: 1, batch_output: 4}\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *sim) clock() time.Duration { return time.Since(s.began).Round(time.Millisecond) }

func (s *sim) moment(most time.Duration) time.Duration {
	return time.Millisecond + time.Duration(s.rng.Int64N(int64(most)))
}

func (s *sim) note(format string, args ...any) {
	if testing.Verbose() {
		s.t.Logf("%v %s", s.clock(), fmt.Sprintf(format, args...))
	}
}

// saw counts a request to the provider.
func (s *sim) saw(step string, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[step]++
	_ = r
}

// call is the script of the provider's live calls: each row's are noted.
func (s *sim) call(c llmtest.Call) {
	var n int
	if !promptRow(c.Prompt, &n) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[n] = append(s.live[n], time.Now())
}

// load publishes rows: one in ten is live, one in ten has a deadline.
func (s *sim) load(count int) {
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
func (s *sim) run() {
	s.t.Helper()
	s.start()
	s.until("streams", func() bool {
		_, err := s.js.Stream(s.t.Context(), "RESULTS")
		return err == nil
	})
	kills := s.kills()
	s.load(*simRows / 2)
	s.start()
	for i, k := range kills {
		s.kill(k)
		if i%7 == 3 {
			s.trouble()
		}
		s.load(*simRows/2/len(kills) + 1)
	}
}

// kills draws the steps at which processes die, each once before any comes again.
func (s *sim) kills() (all []target) {
	for {
		round := steps()
		if s.provider == "anthropic" { // has no files
			round = slices.DeleteFunc(round, func(k target) bool { return k.step == "upload" })
		}
		s.rng.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		all = append(all, round...)
		switch {
		case *simKills > 0 && len(all) >= *simKills:
			return all[:*simKills]
		case *simKills == 0 && *simRuns < manySeeds:
			return all[:stagetest.Runs(0, 4, fewKills)]
		case *simKills == 0:
			return all
		}
	}
}

// kill has the next process die that reaches a step, and starts another one a while later.
func (s *sim) kill(k target) {
	s.t.Helper()
	what := fmt.Sprintf("kill %s %s", k.manner, k.step)
	k.after = s.moment(2 * time.Minute)
	switch k.step {
	case "find": // is asked for after a kill between intent and record
		k = target{step: "create", manner: after, next: new(k)}
	case "abandon":
		k = target{step: "create", manner: before, next: new(k)}
	case "claim", "reset":
		k = target{step: "poll", manner: before, next: new(k)}
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
		if s.results() == len(s.rows) && len(s.rows) < 6**simRows {
			s.load(max(10, *simRows/40))
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
func (s *sim) revive() {
	s.t.Helper()
	for len(s.alive()) < 2 {
		s.start()
	}
}

// excuse notes that deadlines need not be met from an instant until a while from now.
func (s *sim) excuse(from time.Time, after time.Duration) {
	s.excused = append(s.excused, interval{from, time.Now().Add(after)})
}

// trouble draws a fault of another kind.
func (s *sim) trouble() {
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
func (s *sim) replace(n int) {
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
func (s *sim) results() int {
	return stagetest.Stored(s.t, s.js, "RESULTS", "results.stage.*.rows")
}

// until waits in virtual time until a condition holds.
func (s *sim) until(what string, is func() bool) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(max(50*time.Millisecond, time.Since(began)/50)) {
		if is() {
			return
		}
	}
	s.dump()
	s.t.Fatalf("%v %s: not within %v", s.clock(), what, patience)
}

// dump shows the end of the log.
func (s *sim) dump() {
	s.t.Log(s.seen)
	for _, p := range s.alive() {
		s.t.Log(s.status(p))
	}
	lines := strings.Split(s.logs.String(), "\n")
	s.t.Log(strings.Join(lines[max(0, len(lines)-60):], "\n"))
}

// finish waits for all results and stops the processes.
func (s *sim) finish() {
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

// promptRow reads the number of a row from its prompt.
func promptRow(prompt string, n *int) bool {
	_, err := fmt.Sscanf(prompt, "Row %d", n)
	return err == nil
}
