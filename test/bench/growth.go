package main

import (
	"context"
	"fmt"
)

// growth measures whether a row costs the same in a large pool, behind a long window, and
// by the byte when it is large: the whole program against the instant LLM.
type growth struct {
	name, unit string
	list       []int
	scenario   func(n int) *scenario
}

func growths() []*growth {
	window := func(rows int) []string { return []string{fmt.Sprintf("STAGE_WINDOW=%d", rows)} }
	return []*growth{
		{"pool, window 8192", "pool", []int{1, 10, 64, 500, 2000}, func(n int) *scenario {
			return &scenario{rows: 20_000, pool: n, rowBytes: 1024, env: window(8192)}
		}},
		{"window, pool 64", "window", []int{100, 1000, 10_000, 50_000}, func(n int) *scenario {
			return &scenario{rows: 20_000 + 2*n, pool: 64, rowBytes: 1024, env: window(n)}
		}},
		{"size of the row, of which all but 230 bytes are the prompt; pool 64, window 1024", "bytes", []int{100, 1 << 10, 16 << 10, 128 << 10, 512 << 10}, func(n int) *scenario {
			return &scenario{rows: min(20_000, max(600, 400<<20/n)), pool: 64, rowBytes: n, env: append(window(1024), "STAGE_TEMPLATE={{ row.text }}")}
		}},
	}
}

func (s *site) growth(ctx context.Context, g *growth) error {
	fmt.Printf("\n**growth** by %s\n\n", g.name)
	fmt.Printf("| %s | rows | rows/s | CPU µs/row | allocations/row | KiB/row | peak MiB |\n| --- | --- | --- | --- | --- | --- | --- |\n", g.unit)
	for _, n := range g.list {
		sc := g.scenario(n)
		f, err := s.contend(ctx, sc, "stage")
		if err != nil {
			return err
		}
		fmt.Printf("| %d | %d | %.0f | %.0f | %.0f | %.1f | %.0f |\n", n, sc.rows, f.PerSec, f.CPU, f.Allocs, f.Bytes/1024, f.PeakMiB)
	}
	return nil
}

// growthInTime measures one process at a million rows, from mark to mark.
func (s *site) growthInTime(ctx context.Context, _ int) error {
	marks := []int{1000, 10_000, 100_000, 1_000_000}
	sc := &scenario{rows: marks[len(marks)-1], pool: 64, rowBytes: 256}
	fmt.Printf("\n**growth** by rows: one process, from each mark to the next, rows of %d bytes, pool 64, window 4096; the first thousand pay for the start\n\n", sc.rowBytes)
	fmt.Println("| up to row | CPU µs/row | allocations/row | KiB/row | in use MiB | peak MiB | goroutines |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	return s.during(ctx, sc, "stage", sc.rows, func(t *turn) error {
		last, before := sample{}, map[string]float64{}
		for _, mark := range marks {
			now, err := t.until(ctx, rowsDone(mark))
			if err != nil {
				return err
			}
			after, err := scrape(ctx, t.addr)
			if err != nil {
				return err
			}
			f, n := between(last, now), float64(now.rows-last.rows)
			fmt.Printf("| %d | %.0f | %.0f | %.1f | %.0f | %.0f | %.0f |\n", mark, f.CPU, (after[metricMallocs]-before[metricMallocs])/n, (after[metricBytes]-before[metricBytes])/n/1024, liveMiB(after), t.peak(), after[metricGoroutines])
			last, before = now, after
		}
		return nil
	})
}
