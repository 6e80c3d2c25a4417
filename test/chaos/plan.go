package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

// kind is a kind of fault.
type kind string

// The kinds of faults.
const (
	kill     kind = "kill"     // kill -9 of a replica of the stage, mostly the owner
	zombie   kind = "zombie"   // the owner is suspended, a rival takes over, the owner wakes up
	stop     kind = "stop"     // SIGTERM of a replica; it must drain and exit with 0
	cut      kind = "cut"      // the network between a replica and all servers
	server   kind = "server"   // kill -9 of nats-server: the only one, one of three, or all three
	suspend  kind = "suspend"  // nats-server is suspended
	isolate  kind = "isolate"  // the network between one server and the two others
	stepDown kind = "stepdown" // the leader of a stream, of the consumer or of the cluster steps down
	unpin    kind = "unpin"    // the owner loses its pin
	full     kind = "full"     // a stream is full
	move     kind = "move"     // a replica joins or leaves, and a server goes down while partitions are being released
	disk     kind = "disk"     // the disk of a nats-server is full; it is freed, and the server started again
	llmOut   kind = "llm"      // the LLM is out: connections are refused, a gateway answers 502, or nothing is answered
)

// kinds are all of them with their share in the default mix; cluster means that it needs
// three servers, spread that it needs several partitions.
var kinds = []struct {
	kind    kind
	share   int
	cluster bool
	spread  bool
}{
	{kill, 10, false, false},
	{zombie, 4, false, false},
	{stop, 3, false, false},
	{cut, 3, false, false},
	{server, 4, false, false},
	{suspend, 1, false, false},
	{isolate, 2, true, false},
	{stepDown, 5, true, false},
	{unpin, 2, false, false},
	{full, 2, false, false},
	{disk, 0, false, false}, // only on request: it needs root
	{move, 5, false, true},
	{llmOut, 4, false, false},
}

// meanGap is the mean time between faults in the default mix; with -rows, meanRows are
// between them.
const (
	meanGap  = 2 * time.Second
	meanRows = 200
)

// plan describes a run.
type plan struct {
	seed       uint64
	rows       int           // 0: as many as go in duration
	duration   time.Duration // of publishing rows and injecting faults; 0 means until all rows are published
	timeout    time.Duration // for the whole run
	servers    int
	version    string // of nats-server; empty means the one that go.mod names
	replicas   int
	partitions int
	pool       int
	window     int
	latency    time.Duration // median of a call
	asked      int           // different questions of the rows
	dedupe     string        // STAGE_DEDUPE; unless it is off, some rows ask the same
	order      streams.Order // STAGE_ORDER
	keys       int           // of the rows, where the order is not that of the stream
	lane       bool          // most rows go in batches; the LLM's Batch API is that of
	api        string
	chain      bool // three stages in a row, the second one with STAGE_FOREACH
	// keepElements is STAGE_FOREACH_ERRORS=keep.
	keepElements bool
	embed        bool // the rows are texts to embed, embedRows of which share a call
	budget       bool // the replicas have STAGE_BUDGET in common, and the adaptive throttle
	race         bool // build the stage with the race detector
	keep         bool // keep the logs of a run that found nothing
	verbose      bool
	dir          string
	counts       map[kind]int
}

// inFlight is how many prompts are in the calls of a pool at a time.
func (p *plan) inFlight() int {
	if p.embed {
		return p.pool * embedRows
	}
	return p.pool
}

// throttle is the settings of the throttle that the replicas have.
func (p *plan) throttle() []string {
	if p.budget {
		return []string{"STAGE_THROTTLE=adaptive", "STAGE_BUDGET=chaos"}
	}
	return []string{"STAGE_THROTTLE=classic"}
}

// fault is one entry of the schedule. All that it draws comes from its own seed, so that
// one does not change another.
type fault struct {
	kind kind
	at   float64 // of the run's progress, from 0 to 1
	seed uint64
}

func parsePlan(args []string, output func(*flag.FlagSet)) (*plan, error) {
	p := &plan{order: streams.OrderStream}
	fs := flag.NewFlagSet("chaos", flag.ContinueOnError)
	output(fs)
	fs.Uint64Var(&p.seed, "seed", 0, "`number` that the schedule, the rows and the LLM are drawn from; 0: any")
	fs.IntVar(&p.rows, "rows", 0, "`number` of rows; the faults are spread over them")
	fs.DurationVar(&p.duration, "duration", 0, "how long to publish rows and inject faults; without -rows 1m")
	fs.DurationVar(&p.timeout, "timeout", 0, "give up after this time; 0: 10m more than -duration, 2h with -rows")
	fs.IntVar(&p.servers, "servers", 1, "1 or 3 nats-servers; with 3 the streams have 3 replicas")
	fs.StringVar(&p.version, "nats", "", "`version` of nats-server, such as v2.12.15; empty: the one of go.mod")
	fs.IntVar(&p.replicas, "replicas", 3, "`number` of processes of the stage")
	fs.IntVar(&p.partitions, "partitions", 1, "STAGE_PARTITIONS")
	fs.IntVar(&p.pool, "pool", 32, "STAGE_POOL_SIZE")
	fs.IntVar(&p.window, "window", 256, "STAGE_WINDOW")
	fs.DurationVar(&p.latency, "latency", 150*time.Millisecond, "median time of a call")
	fs.StringVar(&p.dedupe, "dedupe", "off", "STAGE_DEDUPE: `off`, inflight or stored; unless off, every fifth row asks what an earlier one did")
	fs.Func("order", "STAGE_ORDER: stream, `key` or none (default stream)", func(text string) error {
		p.order = streams.Order(text)
		return nil
	})
	fs.IntVar(&p.keys, "keys", 1000, "`number` of keys (subjects) that the rows have where -order is key or none; every fourth row has the first one")
	fs.BoolVar(&p.budget, "budget", false, "the replicas share a budget: STAGE_BUDGET, and STAGE_THROTTLE=adaptive")
	fs.BoolVar(&p.lane, "lane", false, "most rows go in batches of a Batch API: STAGE_LANE=batch")
	fs.StringVar(&p.api, "api", "", "with -lane, whose Batch `API`: openai, azure, anthropic or gemini; empty: one by the seed")
	fs.BoolVar(&p.chain, "chain", false, "three stages in a row, the second one with STAGE_FOREACH; its STAGE_FOREACH_ERRORS is keep if the seed is even, else row")
	fs.BoolVar(&p.embed, "embed", false, "the rows are texts to embed, some of which share a call: STAGE_TASK=embed; not more than a -pool of 8 for a -window of 256")
	fs.BoolVar(&p.race, "race", false, "build the stage with the race detector")
	fs.BoolVar(&p.keep, "keep", false, "keep the logs in any case")
	fs.BoolVar(&p.verbose, "v", false, "print each fault")
	fs.StringVar(&p.dir, "dir", "", "`directory` for stores and logs; empty: a new one")
	faults := fs.String("faults", "", "how many of each kind, such as kill=100,server=30, and none of the others; empty: a mix of all")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if p.rows == 0 && p.duration == 0 {
		p.duration = time.Minute
	}
	if p.timeout == 0 {
		p.timeout = cmp.Or(p.duration+10*time.Minute, 2*time.Hour)
		if p.rows > 0 {
			p.timeout = 2 * time.Hour
		}
	}
	if p.seed == 0 {
		p.seed = uint64(rand.Uint32())
	}
	p.keepElements = p.seed%2 == 0
	if p.lane && p.api == "" {
		p.api = apis[p.seed%uint64(len(apis))].name
	}
	counts, err := parseCounts(*faults)
	if p.counts = counts; counts == nil {
		p.counts = p.mix()
	}
	p.asked = max(1, p.questions(p.rows))
	faulty := func(ok bool, text string, args ...any) error {
		if ok {
			return nil
		}
		return fmt.Errorf(text, args...)
	}
	return p, errors.Join(err,
		faulty(fs.NArg() == 0, "unexpected arguments: %s", strings.Join(fs.Args(), " ")),
		faulty(p.rows == 0 || p.duration == 0, "-rows and -duration: choose one"),
		faulty(p.rows >= 0 && p.duration >= 0 && p.timeout > 0, "-rows, -duration and -timeout must not be negative"),
		faulty(p.servers == 1 || p.servers == 3, "-servers %d: 1 or 3", p.servers),
		faulty(p.replicas >= 2 && p.replicas <= 20, "-replicas %d: from 2 to 20", p.replicas),
		faulty(p.partitions >= 1 && p.partitions <= 64, "-partitions %d: from 1 to 64", p.partitions),
		faulty(p.pool >= 1 && p.window >= p.pool, "-pool %d -window %d: at least 1, and the window no smaller", p.pool, p.window),
		faulty(p.servers == 3 || p.counts[isolate]+p.counts[stepDown] == 0, "%s and %s need -servers 3", isolate, stepDown),
		faulty(p.partitions > 1 || p.counts[move] == 0, "%s needs -partitions 2 or more", move),
		faulty(slices.Contains([]streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone}, p.order), "-order %s: stream, key or none", p.order),
		faulty(p.keys >= 1 && p.keys <= 1_000_000, "-keys %d: from 1 to 1000000", p.keys),
		faulty(!p.lane || p.dedupe == "off", "-lane: not with -dedupe"),
		faulty(!p.chain || !p.lane && p.dedupe == "off" && p.order != streams.OrderNone, "-chain: not with -lane, -dedupe or -order none"),
		faulty(!p.embed || !p.lane && !p.chain && p.dedupe == "off", "-embed: not with -lane, -chain or -dedupe"),
		faulty(!p.lane || pathOf(p.api) != "", "-api %s: openai, azure, anthropic or gemini", p.api),
		faulty(slices.Contains([]string{"off", "inflight", "stored"}, p.dedupe), "-dedupe %s: off, inflight or stored", p.dedupe),
	)
}

func parseCounts(text string) (map[kind]int, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // nothing chosen
	}
	var names []string
	for _, k := range kinds {
		names = append(names, string(k.kind))
	}
	counts := make(map[kind]int)
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || !slices.Contains(names, name) {
			return nil, fmt.Errorf("-faults: %q; write KIND=NUMBER, the kinds are %s", part, strings.Join(names, ", "))
		}
		counts[kind(name)] = n
	}
	return counts, nil
}

// mix is the default number of faults of each kind: at least one.
func (p *plan) mix() map[kind]int {
	total := float64(p.duration) / float64(meanGap)
	if p.rows > 0 {
		total = float64(p.rows) / meanRows
	}
	shares := 0
	for _, k := range kinds {
		if p.fits(k.cluster, k.spread) {
			shares += k.share
		}
	}
	counts := make(map[kind]int)
	for _, k := range kinds {
		if k.share > 0 && p.fits(k.cluster, k.spread) {
			counts[k.kind] = max(1, int(total*float64(k.share)/float64(shares)+.5))
		}
	}
	return counts
}

// fits reports whether a run has what a kind needs.
func (p *plan) fits(cluster, spread bool) bool {
	return (!cluster || p.servers == 3) && (!spread || p.partitions > 1)
}

// lead is the part of a run, at its beginning and at its end, that has no new faults.
const lead = .04

// schedule draws when the faults happen. They are spread evenly at random, so some meet
// others.
func (p *plan) schedule() []fault {
	random := rand.New(rand.NewPCG(p.seed, 1))
	var all []fault
	for _, k := range kinds {
		for range p.counts[k.kind] {
			all = append(all, fault{kind: k.kind, at: lead + (1-2*lead)*random.Float64(), seed: random.Uint64()})
		}
	}
	slices.SortFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}
