package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// The gate watches the speed of the stage: a few figures, each as a ratio within the
// round that measured it, beside those that were recorded last. What one round finds
// worse by more than gateTolerance is measured in gateRounds rounds, and only what all of
// them find worse has fallen: a neighbour on the machine slows down one round, not three.
//
//	recorded .95 of the plain loop's rate, now .78: 18% worse, so two rounds more: .90 and .93. It has not fallen.
//	recorded .95, now .78, .76 and .80: it has fallen
const (
	gateTolerance = .15
	gateRounds    = 3
)

// gateFigure is a ratio that the gate watches.
type gateFigure struct {
	name string
	less bool // the less, the better
}

// worse is by which part a figure is worse than it was; negative: better.
func (f gateFigure) worse(was, is float64) float64 {
	if f.less {
		return is/was - 1
	}
	return 1 - is/was
}

// suspect reports whether all of some rounds found the figure worse than it was by more
// than the tolerance. One that was never recorded is not suspect.
func (f gateFigure) suspect(was float64, rounds []float64) bool {
	for _, is := range rounds {
		if !(f.worse(was, is) > gateTolerance) { // also where was is 0, or is no number
			return false
		}
	}
	return was > 0 && len(rounds) > 0
}

// fell is suspect after as many rounds as it takes.
func (f gateFigure) fell(was float64, rounds []float64) bool {
	return len(rounds) >= gateRounds && f.suspect(was, rounds)
}

// gateRecord is what the gate's file holds.
type gateRecord struct {
	Commit  string             `json:"commit"`
	Machine string             `json:"machine"`
	Ratios  map[string]float64 `json:"ratios"` // by the name of the figure; the median of the rounds
}

// gateMeasure measures some figures at once, in their order.
type gateMeasure struct {
	figures []gateFigure
	measure func(context.Context, *site) ([]float64, error)
}

// gateMeasures are the figures of the gate. The first ones warm up the server for the
// others.
func gateMeasures() []gateMeasure {
	return []gateMeasure{
		{[]gateFigure{{name: "whole: rows/s by the plain loop's"}}, gateWhole},
		{[]gateFigure{{name: "noop, the consumer without calls: rows/s by those of bare appends"}}, gateNoop},
		{[]gateFigure{{name: "added p99 at 500 rows/s, by the plain loop's", less: true}}, gateAdded},
		{[]gateFigure{{name: "cores beside the calls at 1,000 rows/s, by the plain loop's", less: true}}, gateBeside},
		{[]gateFigure{
			{name: "process of 100,000 rows: CPU by the plain loop's, its server's and its LLM's", less: true},
			{name: "process of 100,000 rows: peak memory by the plain loop's", less: true},
		}, gateProcess},
	}
}

// gate measures all figures, prints them beside those of the file, and returns an error
// if some have fallen. With update it writes their medians of all rounds into the file
// instead.
func (s *site) gate(ctx context.Context, file string, update bool) error {
	var was gateRecord
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &was)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read what was recorded: %w", err)
	}
	rounds := make(map[string][]float64)
	var figures []gateFigure
	for _, m := range gateMeasures() {
		figures = append(figures, m.figures...)
		for n := range gateRounds {
			if again := slices.ContainsFunc(m.figures, func(f gateFigure) bool { return f.suspect(was.Ratios[f.name], rounds[f.name]) }); n > 0 && !again && !update {
				break
			}
			list, err := m.measure(ctx, s)
			if err != nil {
				return fmt.Errorf("%s: %w", m.figures[0].name, err)
			}
			for i, f := range m.figures {
				rounds[f.name] = append(rounds[f.name], list[i])
			}
		}
	}
	fell := printGate(os.Stdout, figures, was, rounds)
	switch {
	case update:
		return recordGate(ctx, file, rounds)
	case len(fell) > 0:
		return fmt.Errorf("worse than recorded by more than %.0f%% in %d rounds: %s", 100*gateTolerance, gateRounds, strings.Join(fell, "; "))
	}
	return nil
}

// printGate prints the table of the figures and returns the names of those that have
// fallen.
func printGate(w io.Writer, figures []gateFigure, was gateRecord, rounds map[string][]float64) (fell []string) {
	fmt.Fprintf(w, "\n| | now | recorded at %s | worse by | |\n| --- | --- | --- | --- | --- |\n", cmp.Or(was.Commit, "no commit")) //nolint:errcheck // a report
	for _, f := range figures {
		list := make([]string, len(rounds[f.name]))
		for i, is := range rounds[f.name] {
			list[i] = fmt.Sprintf("%.2f", is)
		}
		recorded, by, verdict := "", "", "not recorded"
		if old := was.Ratios[f.name]; old > 0 {
			recorded, by, verdict = fmt.Sprintf("%.2f", old), fmt.Sprintf("%.0f%%", 100*f.worse(old, middle(rounds[f.name]))), ""
			switch {
			case f.fell(old, rounds[f.name]):
				verdict = "fell"
				fell = append(fell, f.name)
			case len(list) > 1:
				verdict = "not in all rounds"
			}
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", f.name, strings.Join(list, ", "), recorded, by, verdict) //nolint:errcheck // a report
	}
	return fell
}

// recordGate writes the medians of the rounds into the file.
func recordGate(ctx context.Context, file string, rounds map[string][]float64) error {
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=8", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("the commit that is recorded: %w", err)
	}
	now := gateRecord{Commit: strings.TrimSpace(string(commit)), Machine: machine(), Ratios: make(map[string]float64)}
	for name, list := range rounds {
		now.Ratios[name] = float64(int(middle(list)*1000+.5)) / 1000
	}
	text, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644) //nolint:gosec // it is committed
}

// named returns a scenario with as many rows.
func named(name string, rows int) *scenario {
	all := scenarios()
	sc := all[slices.IndexFunc(all, func(sc *scenario) bool { return sc.name == name })]
	sc.rows = rows
	return sc
}

// turns has contenders of a scenario work one after the other.
func (s *site) turns(ctx context.Context, sc *scenario, who ...string) ([]figures, error) {
	all := make([]figures, len(who))
	for i, who := range who {
		f, err := s.contend(ctx, sc, who)
		if err != nil {
			return nil, err
		}
		all[i] = f
	}
	return all, nil
}

func gateWhole(ctx context.Context, s *site) ([]float64, error) {
	f, err := s.turns(ctx, named("whole", 40_000), "stage", "dh")
	if err != nil {
		return nil, err
	}
	return []float64{f[0].PerSec / f[1].PerSec}, nil
}

func gateNoop(ctx context.Context, s *site) ([]float64, error) {
	f, err := s.turns(ctx, named("noop", 60_000), "noop", "a")
	if err != nil {
		return nil, err
	}
	return []float64{f[0].PerSec / f[1].PerSec}, nil
}

func gateBeside(ctx context.Context, s *site) ([]float64, error) {
	f, err := s.turns(ctx, named("few calls", 8_000), "stage", "dh", "h")
	if err != nil {
		return nil, err
	}
	cores := func(f figures) float64 { return f.CPU * f.PerSec }
	return []float64{(cores(f[0]) - cores(f[2])) / (cores(f[1]) - cores(f[2]))}, nil
}

func gateAdded(ctx context.Context, s *site) ([]float64, error) {
	sc := addedScenario()
	var p99 []float64
	for _, who := range []string{"stage", "dh"} {
		list, err := s.addedBy(ctx, sc, who)
		if err != nil {
			return nil, err
		}
		slices.Sort(list)
		p99 = append(p99, percentile(list, 99).Seconds())
	}
	return []float64{p99[0] / p99[1]}, nil
}

const processRows = 100_000

// gateProcess compares a job of stage process, whose server and LLM are in the process,
// with the CPU that the plain loop, its server and its LLM take for as many rows: the same
// calls, results and events, but no order and no guarantees. Seconds are no measure here:
// a job waits for the disk, which the loop does not, and a disk may be twice as fast on
// another day.
func gateProcess(ctx context.Context, s *site) ([]float64, error) {
	f, err := s.turns(ctx, named("whole", 60_000), "dh")
	if err != nil {
		return nil, err
	}
	job, err := s.process(ctx, processRows)
	if err != nil {
		return nil, err
	}
	loop := processRows * (f[0].CPU + f[0].Server + f[0].LLM) / 1e6
	return []float64{job.cpu.Seconds() / loop, job.peak / f[0].PeakMiB}, nil
}
