// Command bench measures what the stage costs beside the calls that it makes: the whole program against loops that
// somebody writes in an afternoon and that guarantee nothing, all against the same nats-server and the same LLM, each in
// a process of its own. Contenders take turns, and what counts is the ratio within a round: machines differ, and this one
// may be busy.
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
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/llm-stage/stage/cmd/stage/app"
)

func scenarios() []*scenario {
	return []*scenario{
		{name: "whole", about: "instant LLM, pool 64, rows of 1 KiB", rows: 30_000, pool: 64, rowBytes: 1024, contenders: []string{"stage", "dh", "d", "c"}},
		{name: "calls", about: "calls of 100 ms, 1,000 at a time", rows: 60_000, pool: 1000, rowBytes: 1024, latency: 100 * time.Millisecond, contenders: []string{"stage", "h"}},
		{name: "no LLM", about: "rows answered at once, without calls", rows: 60_000, pool: 64, rowBytes: 1024, contenders: []string{"noop", "a1", "ag"}},
		{name: "slow", about: "1% of the calls take 2 s, the others 50 ms, pool 64", rows: 12_000, pool: 64, rowBytes: 1024, latency: 50 * time.Millisecond, slow: 2 * time.Second, contenders: []string{"stage"}},
	}
}

func main() {
	role := flag.String("role", "", "what this process is; set by itself")
	url := flag.String("url", "", "of the nats-server; set by itself")
	llm := flag.String("llm", "", "of the LLM; set by itself")
	rows := flag.Int("rows", 0, "rows of each run; 0: as many as the scenario has")
	pool := flag.Int("pool", 0, "calls at a time; 0: as the scenario has")
	latency := flag.Duration("latency", 0, "of the LLM; set by itself")
	slow := flag.Duration("slow", 0, "of its slow calls; set by itself")
	rounds := flag.Int("rounds", 3, "how often each contender has its turn")
	profile := flag.String("profile", "", "`file` that the stage's CPU profile is written to")
	serverProfile := flag.String("server-profile", "", "`file` that the nats-server's CPU profile of the stage's turn is written to")
	only := flag.String("run", ".", "regular expression of the scenarios to run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch *role {
	case "":
		err = compare(ctx, *only, *rounds, *rows, *pool, *profile, *serverProfile)
	case "stage":
		err = runStage(*profile)
	case "llm":
		err = serveLLM(ctx, *latency, *slow)
	default:
		err = runLoop(ctx, *role, *url, *llm, *rows, *pool)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compare runs the scenarios and prints a table of each.
func compare(ctx context.Context, only string, rounds, rows, pool int, profile, serverProfile string) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "stage-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	s, err := open(ctx, dir, serverProfile)
	s.profile = profile
	defer s.close()
	if err != nil {
		return err
	}
	for _, sc := range scenarios() {
		if !chosen.MatchString(sc.name) {
			continue
		}
		if rows > 0 {
			sc.rows = rows
		}
		if pool > 0 {
			sc.pool = pool
		}
		if err := s.table(ctx, sc, rounds); err != nil {
			return err
		}
	}
	if chosen.MatchString("lone") {
		return s.lone(ctx, rounds)
	}
	return nil
}

// table lets the contenders of a scenario take turns and prints what they came to.
func (s *site) table(ctx context.Context, sc *scenario, rounds int) error {
	all := make(map[string][]figures)
	for range rounds {
		for _, who := range sc.contenders {
			f, err := s.contend(ctx, sc, who)
			if err != nil {
				return err
			}
			all[who] = append(all[who], f)
		}
	}
	fmt.Printf("\n%s: %s, %d rows, %d rounds\n\n", sc.name, sc.about, sc.rows, rounds)
	fmt.Println("| | rows/s | client CPU µs/row | server CPU µs/row | peak MiB | its rows/s by this | its CPU by this |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, who := range sc.contenders {
		m := median(all[who])
		var speed, cpu []float64
		for i, f := range all[who] {
			own := all[sc.contenders[0]][i]
			speed, cpu = append(speed, own.PerSec/f.PerSec), append(cpu, own.CPU/f.CPU)
		}
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %.0f | %.2f | %.2f |\n", who, m.PerSec, m.CPU, m.Server, m.PeakMiB, middle(speed), middle(cpu))
	}
	if sc.slow > 0 {
		mean := .99*sc.latency.Seconds() + .01*sc.slow.Seconds()
		fmt.Printf("\nof pool / mean latency, %.0f rows/s: %.3f\n", float64(sc.pool)/mean, median(all["stage"]).PerSec/(float64(sc.pool)/mean))
	}
	return nil
}

// runStage is stage run in this process, so that it can be profiled.
func runStage(profile string) error {
	f, err := os.Create(profile)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // the profile is written by then, or there is none
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	env := app.OSEnv()
	env.Args = []string{"run"}
	if code := app.Main(context.Background(), env); code != 0 {
		return fmt.Errorf("stage run ended with %d", code)
	}
	return nil
}

// describe tells what the figures are of.
func describe(list []time.Duration) string {
	var b strings.Builder
	for i, d := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(d.Round(10 * time.Microsecond).String())
	}
	return b.String()
}
