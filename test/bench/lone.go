package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	loneRows = 200
	lonePace = 20 * time.Millisecond
)

// lone sends one row at a time, each after the result of the last, and measures from its publication to its result.
func (s *site) lone(ctx context.Context, rounds int) error {
	sc := &scenario{rows: loneRows + 1, pool: 64, rowBytes: 1024}
	times := make(map[string][]time.Duration)
	var ratios []float64
	for range rounds {
		half := make(map[string]time.Duration)
		for _, who := range []string{"stage", "dh"} {
			list, err := s.loneBy(ctx, sc, who)
			if err != nil {
				return err
			}
			times[who] = append(times[who], list...)
			slices.Sort(list)
			half[who] = list[len(list)/2]
		}
		ratios = append(ratios, half["stage"].Seconds()/half["dh"].Seconds())
	}
	fmt.Printf("\nlone: one row at a time, instant LLM, from its publication to its result, %d rounds of %d\n\n", rounds, loneRows)
	for _, who := range []string{"stage", "dh"} {
		list := times[who]
		slices.Sort(list)
		fmt.Printf("%s: p50, p90, p99 %s\n", who, describe([]time.Duration{list[len(list)/2], list[len(list)*9/10], list[int(math.Ceil(float64(len(list))*.99))-1]}))
	}
	fmt.Printf("p50 of the stage by dh's: %.2f\n", middle(ratios))
	return nil
}

func (s *site) loneBy(ctx context.Context, sc *scenario, who string) ([]time.Duration, error) {
	if err := s.lay(ctx, sc, 0); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	llm, err := s.startLLM(ctx, sc)
	if err != nil {
		return nil, err
	}
	results := make(chan *nats.Msg, 16)
	sub, err := s.nc.ChanSubscribe("results.stage.0.rows", results)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends anyway
	cmd, out := s.contender(ctx, sc, who, llm)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var list []time.Duration
	for n := range sc.rows {
		began := time.Now()
		if _, err := s.js.Publish(ctx, "rows.a", sc.row(n)); err != nil {
			return nil, err
		}
		select {
		case <-results:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: no result of row %d: %w\n%s", who, n, context.Cause(ctx), out)
		}
		if n > 0 { // the first one waits for its contender to start
			list = append(list, time.Since(began))
		}
		time.Sleep(lonePace)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait() // a signal may have ended it
	return list, nil
}
