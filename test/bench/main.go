// Command bench measures what the stage costs beside the calls that it makes: the whole
// program against loops that one writes in an afternoon and that guarantee nothing, all
// against the same nats-server and the same LLM, each in its own process. Contenders take
// turns, and what counts is the ratio within a round: machines differ, and this one may
// be busy.
//
//	go run ./test/bench -rounds 5
//	go run ./test/bench -run 'whole|lone' -rounds 10
//
// docs/benchmarks.md holds the results.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/llm-stage/stage/cmd/stage/cli"
	natsserver "github.com/nats-io/nats-server/v2/server"
)

func main() {
	role := flag.String("role", "", "what this process is; set by itself")
	url := flag.String("url", "", "of the nats-server; set by itself")
	llmURL := flag.String("llm", "", "of the LLM; set by itself")
	rows := flag.Int("rows", 0, "rows of each run; 0: as many as the scenario has")
	pool := flag.Int("pool", 0, "calls at a time; 0: as the scenario has")
	addr := flag.String("addr", "", "of a loop's metrics; set by itself")
	groups := flag.String("groups", "", "file of the groups that bare appends go in; set by itself")
	latency := flag.Duration("latency", 0, "of the LLM; set by itself")
	text := flag.Duration("text", 0, "that each text to embed adds to it; set by itself")
	dimensions := flag.Int("dimensions", 0, "of vectors; set by itself")
	slow := flag.Duration("slow", 0, "of its slow calls; set by itself")
	refuses := flag.Bool("refuses", false, "whether it refuses marked calls; set by itself")
	rounds := flag.Int("rounds", 3, "how often each contender has its turn")
	before := flag.String("before", "", "an earlier `program` of stage, which takes turns with the present one")
	profiled := flag.String("profiled", "stage", "the `contender` that profiles are made of; dh, say")
	profile := flag.String("profile", "", "`file` that its CPU profile is written to")
	serverProfile := flag.String("server-profile", "", "`file` that the nats-server's CPU profile of its turn is written to")
	only := flag.String("run", ".", "regular expression of the scenarios to run")
	contenders := flag.String("contenders", ".", "regular expression of the contenders that have a turn")
	gate := flag.String("gate", "", "measure the few ratios that are watched beside those in this `file`, and nothing else; fail if some have fallen")
	update := flag.Bool("update", false, "with -gate: write them into the file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch *role {
	case "":
		p := plan{rounds: *rounds, rows: *rows, pool: *pool, before: *before, gate: *gate, update: *update, profiling: profiling{who: *profiled, own: *profile, server: *serverProfile}}
		if p.chosen, err = regexp.Compile(*only); err == nil {
			if p.contenders, err = regexp.Compile(*contenders); err == nil {
				err = compare(ctx, p)
			}
		}
	case "stage":
		err = profiledIn(*profile, runStage)
	case "llm":
		err = llm{latency: *latency, text: *text, dimensions: *dimensions, slow: *slow, refuses: *refuses}.serve(ctx)
	default:
		err = profiledIn(*profile, func() error {
			return runLoop(ctx, *role, *url, *addr, &loop{llm: *llmURL, rows: *rows, pool: *pool}, *groups)
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// plan is what to run.
type plan struct {
	chosen, contenders *regexp.Regexp
	rounds, rows, pool int
	before, gate       string
	update             bool
	profiling          profiling
}

// profiling is whose CPU profile goes into which files; an empty name stands for no file.
type profiling struct {
	who         string
	own, server string
}

// compare runs what was chosen, one after the other, and prints a table of each.
func compare(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "stage-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	s, err := open(ctx, dir, p.profiling)
	defer s.close()
	if err != nil {
		return err
	}
	s.before = p.before
	fmt.Println(machine())
	if p.gate != "" {
		return s.gate(ctx, p.gate, p.update)
	}
	for _, sc := range scenarios() {
		if !p.chosen.MatchString(sc.name) {
			continue
		}
		if p.before != "" {
			sc.against()
		}
		sc.contenders = slices.DeleteFunc(sc.contenders, func(who string) bool { return !p.contenders.MatchString(who) })
		if p.rows > 0 {
			sc.rows = p.rows
		}
		if p.pool > 0 {
			sc.pool = p.pool
		}
		if err := s.table(ctx, sc, p.rounds); err != nil {
			return err
		}
	}
	type table struct {
		name string
		run  func(context.Context, int) error
	}
	more := []table{{"lone", s.lone}, {"added", s.added}, {"growth by rows", s.growthInTime}}
	for _, o := range orderTables() {
		more = append(more, table{o.name, func(ctx context.Context, rounds int) error { return o.run(ctx, s, rounds) }})
	}
	for _, g := range growths() {
		more = append(more, table{"growth by " + g.name, func(ctx context.Context, _ int) error { return s.growth(ctx, g) }})
	}
	for _, m := range append(more, table{"memory", s.memory}, table{"process", s.processJob}, table{"startup", s.startup}, table{"binary", s.binary}, table{"cluster", s.cluster}) {
		if p.chosen.MatchString(m.name) {
			if err := m.run(ctx, p.rounds); err != nil {
				return err
			}
		}
	}
	return nil
}

// runStage is stage run in this process, so that it can be profiled.
func runStage() error {
	env := cli.OSEnv()
	env.Args = []string{"run"}
	if code := cli.Main(context.Background(), env); code != 0 {
		return fmt.Errorf("stage run ended with %d", code)
	}
	return nil
}

// profiledIn writes the CPU profile of run into a file; none if it has no name.
func profiledIn(file string, run func() error) error {
	if file == "" {
		return run()
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // the profile is written by then, or there is none
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return run()
}

// machine describes where the figures were measured.
func machine() string {
	model := "unknown processor"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %s, %s/%s, %d cores of %s, nats-server %s", time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), model, natsserver.VERSION)
}
