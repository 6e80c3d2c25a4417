package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	loneRows = 200
	lonePace = 20 * time.Millisecond
	loneGoal = 1.5
)

// lone sends one row at a time, each after the result of the last, and measures from its
// publication to its result.
func (s *site) lone(ctx context.Context, rounds int) error {
	sc := &scenario{rows: loneRows + 1, pool: 64, rowBytes: 1024}
	who := []string{"stage", "dh"}
	times := make(map[string][]time.Duration)
	var rates []float64
	for range rounds {
		half := make(map[string]time.Duration)
		for _, who := range who {
			list, err := s.loneBy(ctx, sc, who)
			if err != nil {
				return err
			}
			slices.Sort(list)
			times[who], half[who] = append(times[who], list...), percentile(list, 50)
		}
		rates = append(rates, half["stage"].Seconds()/half["dh"].Seconds())
	}
	fmt.Printf("\n**lone**: one row at a time, instant LLM, from its publication to its result, %s of %d rows\n\n", inRounds(rounds), loneRows)
	latencies(who, times)
	goal{what: "p50 by dh's", most: loneGoal}.print(middle(rates))
	return nil
}

// latencies prints a table of times.
func latencies(who []string, times map[string][]time.Duration) {
	fmt.Println("| | p50 ms | p90 ms | p99 ms |")
	fmt.Println("| --- | --- | --- | --- |")
	for _, who := range who {
		list := slices.Sorted(slices.Values(times[who]))
		ms := func(p int) float64 { return float64(percentile(list, p).Microseconds()) / 1e3 }
		fmt.Printf("| %s | %.2f | %.2f | %.2f |\n", contenderNames[who], ms(50), ms(90), ms(99))
	}
}

func (s *site) loneBy(ctx context.Context, sc *scenario, who string) (list []time.Duration, err error) {
	results := make(chan *nats.Msg, 16)
	sub, err := s.nc.ChanSubscribe(resultSubject, results)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends anyway
	err = s.during(ctx, sc, who, 0, func(t *turn) error {
		for n := range sc.rows {
			began := time.Now()
			if _, err := s.js.Publish(ctx, "rows.a", sc.row(n)); err != nil {
				return err
			}
			select {
			case <-results:
			case <-t.ended:
				return errors.New("ended early")
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if n > 0 { // the first one waits for its contender to start
				list = append(list, time.Since(began))
			}
			time.Sleep(lonePace)
		}
		return nil
	})
	return list, err
}
