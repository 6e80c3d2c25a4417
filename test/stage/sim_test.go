package stage_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	simSeed = flag.Uint64("sim.seed", 1, "first seed of the simulation")
	simRuns = flag.Int("sim.runs", 0, "how many seeds the simulation runs; 0: 3, or 1 with -short; 0 is 1 for the batch lane")
	simLog  = flag.Bool("sim.log", false, "show the log of the stages of chains and of the batch lane")
)

const (
	crewPartitions = 4
	crewLongest    = 6 * time.Second // a call takes at most
	crewEven       = 10 * time.Second
	crewStill      = 5 * time.Second
	crewHard       = 5 * time.Second
	crewTimeout    = 15 * time.Second // of a call
)

// crew is a stage of several partitions whose processes come and go, with the real executor, pool and dedupe, and equal
// questions in different partitions.
type crew struct {
	*site
	rng     *rand.Rand
	order   string // STAGE_ORDER
	embeds  bool   // it makes vectors, of several rows in each call
	began   time.Time
	places  []*replica // nil: empty
	stops   []ending
	rows    int
	jammed  atomic.Bool // some questions get a 429, whenever they are sent
	outage  outage
	full    bool        // the audit stream accepts nothing
	excused time.Time   // until then a partition may stand still
	results []int       // by partition
	moved   []time.Time // by partition, when it had its last result
	still   []bool
	done    map[string]int
}

// ending is a stopping process, with the times of its first and second signal.
type ending struct {
	*replica
	soft, hard time.Time
}

// crewOrders are drawn by the seeds, as is the task: each fourth seed embeds. The key of a row is its customer, which
// is its subject.
var crewOrders = [...]string{"stream", "key", "none"}

// TestSimulationOfWholeStages draws faults from a seed and checks that each row has exactly one result, that no row
// fails except those that always do, that no partition stands still, that the partitions spread, and that processes
// stop in time.
//
//	go test ./test/stage -run '^TestSimulationOfWholeStages$' -v -sim.seed 1 -sim.runs 100
func TestSimulationOfWholeStages(t *testing.T) {
	for i := range stagetest.Runs(*simRuns, 1, 3) {
		seed := *simSeed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrew(t, seed)
				for range stagetest.Runs(0, 4, 25) { // faults
					c.fault()
				}
				c.finish()
			})
		})
	}
}

func newCrew(t *testing.T, seed uint64) *crew {
	t.Helper()
	c := &crew{rng: rand.New(rand.NewPCG(seed, 0)), order: crewOrders[seed%3], embeds: seed%4 == 3, began: time.Now(), done: make(map[string]int)}
	c.site = newSite(t, llmtest.Config{Script: c.answer})
	c.results, c.moved, c.still = make([]int, crewPartitions), make([]time.Time, crewPartitions), make([]bool, crewPartitions)
	c.places = make([]*replica, 3)
	c.fill(0)
	c.until("streams", func() bool {
		_, err := c.js.Stream(t.Context(), "RESULTS")
		return err == nil
	})
	c.load(stagetest.Runs(0, 300, 600))
	for p := range c.moved {
		c.moved[p] = time.Now()
	}
	c.pass(20 * time.Second) // one process owns all partitions
	return c
}

// answer takes a time that depends on the question alone.
func (c *crew) answer(call llmtest.Call) *llmtest.Step {
	if step := c.outage.step(); step != nil {
		return step
	}
	if poisonous(promptRow(call.Prompt)) || slices.ContainsFunc(call.Inputs, func(text string) bool { return poisonous(promptRow(text)) }) {
		if c.embeds { // the text is refused
			return &llmtest.Step{Status: 400, Delay: 100 * time.Millisecond}
		}
		return &llmtest.Step{Status: 500, Delay: 100 * time.Millisecond}
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(call.Prompt))
	rng := rand.New(rand.NewPCG(h.Sum64(), 0))
	if rng.IntN(6) == 0 && c.jammed.Load() {
		return &llmtest.Step{Status: 429, Delay: 20 * time.Millisecond}
	}
	d := 50*time.Millisecond + time.Duration(rng.Int64N(int64(400*time.Millisecond)))
	if rng.IntN(40) == 0 {
		d = crewLongest/2 + time.Duration(rng.Int64N(int64(crewLongest/2)))
	}
	return &llmtest.Step{Delay: d}
}

// load publishes rows; each three consecutive ones ask the same question, for different customers.
func (c *crew) load(n int) {
	c.t.Helper()
	for range n {
		c.rows++
		if _, err := c.js.Publish(c.t.Context(), fmt.Sprintf("rows.c%d", c.rows%customers), fmt.Appendf(nil, `{"n":%d,"q":%d}`, c.rows, c.rows/3)); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *crew) clock() time.Duration { return time.Since(c.began).Round(time.Millisecond) }

// fill starts a process in a place.
func (c *crew) fill(place int) {
	settings := vars{
		"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": fmt.Sprint(crewPartitions), "STAGE_TEMPLATE": "Question {{ row.q }}",
		"STAGE_DEDUPE": "inflight", "STAGE_POOL_SIZE": "4", "STAGE_WINDOW": "128", "STAGE_STOP_TIMEOUT": "5m", "STAGE_MAX_DISPATCH_DELAY_MS": "100",
		"STAGE_CONTROL": "true", "STAGE_OUTAGE_HOLD": crewHold.String(), "STAGE_ORDER": c.order, "STAGE_LLM_TIMEOUT": crewTimeout.String(), "STAGE_RETRY_BASE_DELAY": "300ms",
	}
	if c.embeds {
		settings["STAGE_TASK"], settings["STAGE_EMBED_ROWS"], settings["STAGE_EMBED_WAIT"], settings["STAGE_EMBED_DIMENSIONS"] = "embed", "6", "100ms", "2"
	}
	c.places[place] = c.startWith(settings, func(d *deps) { d.DialLLM = c.dial })
}

// empty stops the process in a place, and sends the second signal after hardAfter; 0: never.
func (c *crew) empty(place int, hardAfter time.Duration) {
	r := c.places[place]
	if r == nil {
		return
	}
	c.places[place] = nil
	s := ending{replica: r, soft: time.Now()}
	r.soft()
	if hardAfter > 0 {
		s.hard = s.soft.Add(hardAfter)
		time.AfterFunc(hardAfter, r.hard)
	}
	c.stops = append(c.stops, s)
}

func (c *crew) alive() (all []*replica) {
	for _, r := range c.places {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

func (c *crew) moment(most time.Duration) time.Duration {
	return time.Millisecond + time.Duration(c.rng.Int64N(int64(most)))
}

// fault draws a fault, and what happens meanwhile.
func (c *crew) fault() {
	c.t.Helper()
	place := c.rng.IntN(len(c.places))
	what := []string{"move", "stop twice", "kill", "full audit, stop twice", "jam, move", "pause", "pause a partition", "drain", "drain a partition"}[c.rng.IntN(9)]
	if c.places[place] != nil && len(c.alive()) == 1 {
		place = (place + 1) % len(c.places) // one process stays
	}
	c.done[what]++
	switch {
	case what == "jam, move":
		c.endOutage() // else the partitions would not move in time
		c.pass(time.Until(c.excused))
	case c.rng.IntN(2) == 0:
		c.beginOutage()
	}
	switch what {
	case "move":
		c.move(place)
	case "stop twice":
		c.empty(place, c.moment(2*time.Second))
	case "kill":
		if r := c.places[place]; r != nil {
			c.places[place] = nil
			r.kill()
		}
	case "full audit, stop twice":
		c.limitAudit(true)
		c.pass(c.moment(5 * time.Second))
		c.empty(place, c.moment(3*time.Second))
		c.pass(10 * time.Second)
		c.limitAudit(false)
		c.excuse(crewStill)
	case "pause", "pause a partition", "drain", "drain a partition":
		c.steer(what)
	case "jam, move":
		c.jammed.Store(true)
		c.pass(c.moment(3 * time.Second))
		c.move(place)
		c.keepBusy(crewLongest + crewEven) // rows that wait for capacity block no partition
		c.checkShares("while some calls get a 429")
		c.jammed.Store(false)
		c.excuse(crewStill)
	}
	c.pass(c.moment(4 * time.Second))
	c.load(c.rng.IntN(60))
}

func (c *crew) move(place int) {
	if c.places[place] == nil {
		c.fill(place)
	} else {
		c.empty(place, 0)
	}
}

// limitAudit makes the audit stream refuse everything, or accept it again.
func (c *crew) limitAudit(on bool) {
	c.t.Helper()
	stream := stagetest.Value(c.js.Stream(c.t.Context(), "AUDIT"))(c.t)
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgs, cfg.Discard = -1, jetstream.DiscardOld
	if on {
		cfg.MaxMsgs, cfg.Discard = int64(stream.CachedInfo().State.Msgs), jetstream.DiscardNew
	}
	stagetest.Value(c.js.UpdateStream(c.t.Context(), cfg))(c.t)
	c.full = on
}

// excuse lets partitions stand still, and stops take longer, for a while.
func (c *crew) excuse(d time.Duration) {
	if until := time.Now().Add(d); until.After(c.excused) {
		c.excused = until
	}
}

// pass lets time pass and checks what must always hold.
func (c *crew) pass(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		c.moveOutage()
		c.lookAtStops()
		c.lookAtProgress()
	}
}

// keepBusy loads a row of each customer now and then: a partition without rows may have no owner.
func (c *crew) keepBusy(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); c.pass(2 * time.Second) {
		c.load(customers)
	}
}

// lookAtStops checks that stops end: a hard one within 5 s whatever is stuck; a soft one, if nothing is stuck, when its
// calls have ended.
func (c *crew) lookAtStops() {
	c.stops = slices.DeleteFunc(c.stops, func(s ending) bool {
		select {
		case <-s.done:
			return true
		default:
		}
		from, limit, what := s.soft, crewLongest+crewHard, "a soft stop"
		switch {
		case !s.hard.IsZero():
			from, limit, what = s.hard, crewHard, "a hard stop"
		case c.full || c.outage.lasts():
			return false
		case c.excused.After(from):
			from = c.excused
		}
		late := time.Since(from) > limit
		if late {
			c.t.Errorf("%v STOP: %s has not ended after %v", c.clock(), what, time.Since(from))
			s.kill()
		}
		return late
	})
}

// lookAtProgress checks that no partition stands still while rows wait for it. Its next row may have to wait for a call
// that holds a slot, and for its own.
func (c *crew) lookAtProgress() {
	c.t.Helper()
	results, rows := c.counts("RESULTS", "results.stage.*.rows", 2), c.counts("ROWS", "rows.*.>", 1)
	for p := range results {
		if results[p] > c.results[p] || results[p] == rows[p] || c.full || c.jammed.Load() || c.outage.lasts() || time.Now().Before(c.excused) || len(c.alive()) == 0 {
			if c.still[p] {
				c.t.Logf("%v partition %d moves again after %v", c.clock(), p, time.Since(c.moved[p]))
			}
			c.results[p], c.moved[p], c.still[p] = results[p], time.Now(), false
		}
		if still := time.Since(c.moved[p]); still > 2*crewLongest+crewStill && !c.still[p] && (still > crewPoison || !c.poisonAt(p, results[p])) {
			c.still[p] = true
			c.t.Errorf("%v PROGRESS: partition %d has stood at %d of %d rows for %v; shares %v", c.clock(), p, results[p], rows[p], still, c.shares())
		}
	}
}

// counts returns how many messages of a stream each partition has; the number of the partition is a token of the subject.
func (c *crew) counts(stream, filter string, token int) []int {
	c.t.Helper()
	s := stagetest.Value(c.js.Stream(c.t.Context(), stream))(c.t)
	info := stagetest.Value(s.Info(c.t.Context(), jetstream.WithSubjectFilter(filter)))(c.t)
	counts := make([]int, crewPartitions)
	for subject, n := range info.State.Subjects {
		p := stagetest.Value(strconv.Atoi(strings.Split(subject, ".")[token]))(c.t)
		counts[p] += int(n)
	}
	return counts
}

func (c *crew) shares() (shares []int) {
	for _, r := range c.alive() {
		shares = append(shares, active(r))
	}
	return shares
}

// checkShares checks that each partition has an owner and the shares differ by one at most.
func (c *crew) checkShares(when string) {
	c.t.Helper()
	shares, sum := c.shares(), 0
	for _, n := range shares {
		sum += n
	}
	if sum != crewPartitions || slices.Max(shares)-slices.Min(shares) > 1 {
		c.t.Errorf("%v SPREAD: the shares are %v %s", c.clock(), shares, when)
	}
}

func (c *crew) finish() {
	c.t.Helper()
	c.endOutage()
	c.pass(time.Until(c.excused))
	for place, r := range c.places {
		if r == nil {
			c.fill(place)
		}
	}
	c.keepBusy(crewLongest + crewEven)
	c.checkShares("in the end")
	c.until("all results", func() bool {
		c.pass(crewLongest + time.Second)
		n := 0
		for _, results := range c.results {
			n += results
		}
		if n < c.rows {
			c.load(customers) // poisonous rows fail soon only while others succeed
			return false
		}
		return true
	})
	for place := range c.places {
		c.empty(place, 0)
	}
	c.pass(crewLongest + 2*crewHard)
	c.checkOrder()
	c.checkAnswers()
	c.t.Logf("order %s, embeds %t, %v of virtual time, %d rows, %d starts, %d calls; %v", c.order, c.embeds, c.clock(), c.rows, c.runs, len(c.tap.seen()), c.done)
}

// checkOrder checks that each row has one result, in order among those of its customer unless the order is none.
func (c *crew) checkOrder() {
	c.t.Helper()
	const results = "results.stage.*.rows"
	if c.order != "none" {
		c.keyed(c.rows, results)
		return
	}
	seen := make(map[string]bool)
	for _, m := range c.read("RESULTS", results) {
		row := m.Header.Get(streams.HeaderSourceSeq)
		if seen[row] {
			c.t.Errorf("row %s has two results", row)
		}
		seen[row] = true
	}
	if len(seen) != c.rows {
		c.t.Errorf("%d rows have results, want %d", len(seen), c.rows)
	}
}
