package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// scenario is a job that several contenders do.
type scenario struct {
	name, about   string
	rows          int
	pool          int
	rowBytes      int
	latency, slow time.Duration
	text          time.Duration    // that each text to embed adds to latency
	dimensions    int              // of vectors, if rows are embedded; 0 means that they are answered
	slowRow       func(n int) bool // whether row n's call is slow
	refusedRow    func(n int) bool // whether row n's calls are refused, all of them; nil means that none is
	key           func(n int) int  // of row n; nil means all rows have the same subject
	spare         int              // rows laid besides, so that what is measured ends while there is still enough to do
	kill          bool             // the contender could not stop by itself
	env           []string         // of the stage, besides
	gogc          string           // of the contenders; empty means as they set it
	contenders    []string         // the stage first
	goals         []goal
	warmUp        time.Duration // 0: the usual
	perCall       float64       // KiB of memory that a call in flight may take; 0 means that it is not measured
	beside        float64       // how often dh's cores beside those of h the stage may take; 0 means that it is not asked
}

// goal bounds the ratio of the stage's figure to another's in the same round.
type goal struct {
	what  string
	by    string // the other contender
	of    func(figures) float64
	least float64 // 0: there is none
	most  float64 // 0: there is none
}

// oneByOne after a contender's name: on streams that take no groups.
const oneByOne = " one by one"

// before is the contender that is an earlier program of stage.
const before = "before"

// isStage reports whether a contender is a program of stage.
func isStage(who string) bool { return who == "stage" || who == before }

// against has an earlier program take turns with the stage.
func (sc *scenario) against() {
	if i := slices.Index(sc.contenders, "stage"); i >= 0 {
		sc.contenders = slices.Insert(sc.contenders, i+1, before)
	}
}

func speed(f figures) float64 { return f.PerSec }

func cpu(f figures) float64 { return f.CPU }

func scenarios() []*scenario {
	return []*scenario{
		{
			name: "whole", about: "instant LLM, pool 64, rows of 1 KiB", rows: 60_000, pool: 64, rowBytes: 1024, contenders: []string{"stage", "dh", "d", "c"},
			goals: []goal{{what: "rows/s by dh's", by: "dh", of: speed, least: .95}, {what: "CPU by dh's", by: "dh", of: cpu, most: 1.05}},
		},
		{
			name: "calls", about: "calls of 100 ms, 1,000 at a time", rows: 60_000, pool: 1000, rowBytes: 1024, latency: 100 * time.Millisecond, contenders: []string{"stage", "dh", "h"}, perCall: 35,
			env:   []string{"STAGE_WINDOW=4096"},
			goals: []goal{{what: "calls/s by h's", by: "h", of: speed, least: .95}},
		},
		{
			name: "long calls", about: "calls of 1 s, 1,000 at a time", rows: 40_000, pool: 1000, rowBytes: 1024, latency: time.Second, contenders: []string{"stage", "h"},
			warmUp: 12 * time.Second, // the throttle's start takes a few calls' time
			goals:  []goal{{what: "calls/s by h's", by: "h", of: speed, least: .95}},
		},
		{
			name: "some calls", about: "calls of 100 ms, 400 at a time", rows: 30_000, pool: 400, rowBytes: 1024, latency: 100 * time.Millisecond, contenders: []string{"stage", "h"},
			goals: []goal{{what: "calls/s by h's", by: "h", of: speed, least: .95}},
		},
		{
			name: "few calls", about: "calls of 100 ms, 100 at a time", rows: 12_000, pool: 100, rowBytes: 1024, latency: 100 * time.Millisecond, contenders: []string{"stage", "dh", "h"}, beside: 1.5,
			goals: []goal{{what: "calls/s by h's", by: "h", of: speed, least: .95}},
		},
		{
			name: "noop", about: "rows answered at once, without calls", rows: 60_000, pool: 64, rowBytes: 1024, contenders: []string{"noop", "a"},
			goals: []goal{{what: "rows/s by those of the bare appends", by: "a", of: speed, least: .7}},
		},
		{
			name: "slow", about: "1% of the calls take 2 s, the others 50 ms, pool 64", rows: 12_000, pool: 64, rowBytes: 1024, latency: 50 * time.Millisecond, slow: 2 * time.Second, slowRow: func(n int) bool { return n%100 == 50 }, contenders: []string{"stage"},
		},
		embedding("embed", 16, 60_000), embedding("embed 1536", 1536, 20_000), embeddingAlone(),
	}
}

// embedding is rows that share calls of 64, as [loop.embedAndStore] has them, too.
func embedding(name string, dimensions, rows int) *scenario {
	return &scenario{
		name: name, about: fmt.Sprintf("vectors of %d numbers, 64 rows a call of 50 ms and .1 ms a text, 8 at a time, rows of 1 KiB", dimensions),
		rows: rows, pool: 8, rowBytes: 1024, latency: 50 * time.Millisecond, text: 100 * time.Microsecond, dimensions: dimensions, contenders: []string{"stage", "e"},
		env:   []string{"STAGE_TASK=embed", fmt.Sprintf("STAGE_EMBED_DIMENSIONS=%d", dimensions)},
		goals: []goal{{what: "rows/s by e's", by: "e", of: speed, least: .9}},
	}
}

// embeddingAlone is the same with a call for each row.
func embeddingAlone() *scenario {
	sc := embedding("embed alone", 16, 3000)
	sc.about = "the same, one row a call"
	sc.env, sc.contenders, sc.goals = append(sc.env, "STAGE_EMBED_ROWS=1"), []string{"stage"}, nil
	return sc
}

// contenderNames describes the contenders.
var contenderNames = map[string]string{
	"stage":            "stage",
	before:             "the earlier stage",
	"stage" + oneByOne: "stage, on streams that take no groups",
	"dh":               "dh: consume, call in a pool, store result and one event, ack",
	"d":                "d: the same without the call",
	"c":                "c: the same without the event",
	"e":                "e: consume, call in a pool for 64 rows at a time, store the results, ack",
	"h":                "h: bare calls, nothing stored",
	"noop":             "the stage's consumer, with an executor that answers at once",
	"noop" + oneByOne:  "the same, on streams that take no groups",
	"a":                "a: bare conditional appends of results in the same groups",
}

// row is row n: a question of 200 bytes in rowBytes.
func (sc *scenario) row(n int) []byte {
	mark, key := "-", ""
	switch {
	case sc.slow > 0 && sc.slowRow(n):
		mark = slowMark
	case sc.refusedRow != nil && sc.refusedRow(n):
		mark = refusedMark
	}
	if sc.key != nil {
		key = fmt.Sprintf(`"k":"k%d",`, sc.key(n))
	}
	const question = 190
	frame := len(`{"n":123456,"q":" - ","text":""}`) + len(key)
	return fmt.Appendf(nil, `{"n":%d,%s"q":"%s %s","text":%q}`, n, key, mark, strings.Repeat("q", min(question, max(0, sc.rowBytes-frame))), strings.Repeat("x", max(0, sc.rowBytes-question-frame)))
}

// subject is that of row n.
func (sc *scenario) subject(n int) string {
	if sc.key == nil {
		return "rows.a"
	}
	return fmt.Sprintf("rows.k%d", sc.key(n))
}

// table lets the contenders of a scenario take turns and prints their figures in the form
// of docs/benchmarks.md.
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
	own := sc.contenders[0]
	fmt.Printf("\n**%s**: %s, %d rows, %s\n\n", sc.name, sc.about, sc.rows, inRounds(rounds))
	fmt.Println("| | rows/s | CPU µs/row | cores | allocations/row | KiB/row | server's CPU µs/row | LLM's CPU µs/row | reads and writes/row | server's | stored/row | peak MiB | stage's rows/s by this | stage's CPU by this |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, who := range sc.contenders {
		m := median(all[who])
		fmt.Printf("| %s | %.0f | %.0f | %.2f | %.0f | %.1f | %.0f | %.0f | %.2f | %.2f | %.2f | %.0f |", contenderNames[who],
			m.PerSec, m.CPU, m.CPU*m.PerSec/1e6, m.Allocs, m.Bytes/1024, m.Server, m.LLM, m.IO, m.ServerIO, m.Stored, m.PeakMiB)
		if who == own {
			fmt.Println(" | |")
			continue
		}
		fmt.Printf(" %.2f | %.2f |\n", ratios(all[own], all[who], speed), ratios(all[own], all[who], cpu))
	}
	for _, g := range sc.goals {
		if len(all[own]) == 0 || len(all[g.by]) == 0 {
			continue // left out
		}
		g.print(ratios(all[own], all[g.by], g.of))
	}
	if sc.slow > 0 {
		possible := float64(sc.pool) / (.99*sc.latency.Seconds() + .01*sc.slow.Seconds())
		goal{what: fmt.Sprintf("rows/s by pool / mean latency (%.0f)", possible), least: .95}.print(median(all["stage"]).PerSec / possible)
	}
	if sc.beside > 0 && len(all["dh"]) > 0 && len(all["h"]) > 0 {
		beside := func(who string) float64 {
			f, h := median(all[who]), median(all["h"])
			return (f.CPU*f.PerSec - h.CPU*h.PerSec) / 1e6
		}
		goal{what: fmt.Sprintf("cores beside the calls, stage %.2f, dh %.2f; by dh's", beside(own), beside("dh")), most: sc.beside}.print(beside(own) / beside("dh"))
	}
	if sc.perCall > 0 {
		if err := s.inFlight(ctx, sc, all); err != nil {
			return err
		}
	}
	if group := median(all[own]).Group; group > 0 {
		fmt.Printf("\nResults went into the log %.1f at a time.\n", group)
	}
	return nil
}

// inFlight prints the memory that a call in flight takes: what is in use with the whole
// pool less that with a pool of one, which runs until the window is as full. The
// difference of peak resident memory includes garbage.
func (s *site) inFlight(ctx context.Context, sc *scenario, all map[string][]figures) error {
	const calls = 50
	defer func(p profiling) { s.profiling = p }(s.profiling)
	s.profiling = profiling{} // it is of the turns that were measured
	alone := *sc
	alone.pool = 1
	alone.gogc = "10" // or the last collection would be of a time when the window was still empty
	for _, who := range []string{sc.contenders[0], "h"} {
		var peak float64
		var m map[string]float64
		if err := s.during(ctx, &alone, who, sc.rows, func(t *turn) error {
			_, err := t.until(ctx, rowsDone(calls))
			peak = t.peak()
			var scrapeErr error
			m, scrapeErr = scrape(ctx, t.addr)
			return errors.Join(err, scrapeErr)
		}); err != nil {
			return err
		}
		each := func(with, without float64) float64 { return (with - without) * 1024 / float64(sc.pool-1) }
		g := goal{what: "KiB a call in flight, " + contenderNames[who], most: sc.perCall}
		f := median(all[who])
		fmt.Printf("\n%s Resident at most: %.0f.\n", g.verdict(each(f.LiveMiB, liveMiB(m))), each(f.PeakMiB, peak))
	}
	return nil
}

func (g goal) print(is float64) { fmt.Printf("\n%s\n", g.verdict(is)) }

// verdict states whether a figure reaches the goal.
func (g goal) verdict(is float64) string {
	bound, met := fmt.Sprintf("at least %.2f", g.least), is >= g.least
	if g.most > 0 {
		bound, met = fmt.Sprintf("at most %.2f", g.most), is <= g.most
	}
	how := "missed"
	if met {
		how = "met"
	}
	return fmt.Sprintf("Goal: %s %s. It is %.2f: %s.", g.what, bound, is, how)
}

func inRounds(n int) string {
	if n == 1 {
		return "1 round"
	}
	return fmt.Sprintf("%d rounds", n)
}
