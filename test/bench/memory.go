package main

import (
	"context"
	"fmt"
	"time"
)

const (
	memoryRowBytes = 64 << 10
	memoryHead     = 100 * time.Second // that the first row's call takes
	memoryPool     = 64
	// memoryPerCall is what a call in flight may take besides its row.
	memoryPerCall = 35 << 10
	memoryOver    = 1.2
)

// memory holds up the head of the line: the first row's call takes long, all rows behind
// it finish and wait. The stage must stay within STAGE_WINDOW_BYTES and a fifth, besides
// what it takes when it is idle and what its pool takes.
func (s *site) memory(ctx context.Context, _ int) error {
	fmt.Printf("\n**memory**: rows of 64 KiB that have finished and wait for the first one, whose call takes %s; pool %d, STAGE_WINDOW=%d\n\n", memoryHead, memoryPool, 50_000)
	fmt.Println("| STAGE_WINDOW_BYTES | rows waiting, at most | their bytes as the stage counts them, MiB | idle, MiB | peak, MiB | bound, MiB | |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, window := range []int{64 << 20, 256 << 20, 8 << 30} {
		rows := min(50_000, 4*window/memoryRowBytes) // enough to fill it several times
		if err := s.memoryWithin(ctx, window, rows); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) memoryWithin(ctx context.Context, window, rows int) error {
	sc := &scenario{
		rows: rows, pool: memoryPool, rowBytes: memoryRowBytes, slow: memoryHead, slowRow: func(n int) bool { return n == 0 },
		env: []string{"STAGE_WINDOW=50000", fmt.Sprintf("STAGE_WINDOW_BYTES=%d", window)},
	}
	idle, err := s.idle(ctx, sc)
	if err != nil {
		return err
	}
	most, weight, peak := 0.0, 0.0, 0.0
	if err := s.during(ctx, sc, "stage", sc.rows, func(t *turn) error {
		_, err := t.until(ctx, func(now sample) bool {
			m, err := scrape(ctx, t.addr)
			if err == nil { // it may not serve yet
				most, weight = max(most, m[`llm_stage_reorder_buffer_rows{partition="0"}`]), max(weight, m[`llm_stage_reorder_buffer_bytes{partition="0"}`])
			}
			return now.rows >= sc.rows
		})
		peak = t.peak()
		return err
	}); err != nil {
		return err
	}
	const mib = 1 << 20
	bound := idle + (memoryOver*float64(window)+memoryPool*(memoryPerCall+2*memoryRowBytes))/mib
	verdict := "kept"
	if peak > bound {
		verdict = "broken"
	}
	fmt.Printf("| %d MiB | %.0f | %.0f | %.0f | %.0f | %.0f | %s |\n", window/mib, most, weight/mib, idle, peak, bound, verdict)
	return nil
}

// idle is the memory of a stage that waits for rows, in MiB.
func (s *site) idle(ctx context.Context, sc *scenario) (peak float64, err error) {
	quick := *sc
	quick.slow = 0
	err = s.during(ctx, &quick, "stage", 1, func(t *turn) error {
		_, err := t.until(ctx, rowsDone(1))
		peak = t.peak()
		return err
	})
	return peak, err
}
