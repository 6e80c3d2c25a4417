package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	startups    = 20
	startupGoal = 150 * time.Millisecond
)

// startup starts the program again and again, each time with one row waiting, and
// measures from the start of the process to the row taken, which the row's audit event
// reports. It also prints what the program holds when it waits for rows.
func (s *site) startup(ctx context.Context, _ int) error {
	sc := &scenario{rows: startups + 1, pool: 64, rowBytes: 1024}
	if err := s.lay(ctx, sc, 0); err != nil {
		return err
	}
	rows, err := s.messages(ctx, "AUDIT", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"audit.stage.0.row"}})
	if err != nil {
		return err
	}
	defer rows.Stop()
	var list []time.Duration
	var idle map[string]float64
	peak := 0.0
	for n := range startups + 1 {
		if _, err := s.js.Publish(ctx, "rows.a", sc.row(n)); err != nil {
			return err
		}
		if err := s.with(ctx, sc, "stage", func(t *turn) error {
			m, err := rows.Next(jetstream.NextMaxWait(time.Minute))
			if err != nil {
				return err
			}
			e, err := auditlog.Decode(m.Data())
			if err != nil {
				return err
			}
			if _, err := t.until(ctx, rowsDone(n+1)); err != nil {
				return err
			}
			if n > 0 { // the first makes the durable consumer
				list = append(list, e.Row.QueuedAt.Sub(t.began))
			}
			peak = t.peak()
			idle, err = scrape(ctx, t.addr)
			return err
		}); err != nil {
			return err
		}
	}
	slices.Sort(list)
	p50 := percentile(list, 50)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	fmt.Printf("\n**startup**: from the start of the process to its first row taken, against a running server, %d starts\n\n", startups)
	fmt.Println("| least ms | p50 ms | most ms | goroutines then | heap MiB | peak MiB |\n| --- | --- | --- | --- | --- | --- |")
	fmt.Printf("| %.0f | %.0f | %.0f | %.0f | %.1f | %.0f |\n", ms(list[0]), ms(p50), ms(list[len(list)-1]), idle[metricGoroutines], idle[metricHeap]/(1<<20), peak)
	goal{what: "p50 in seconds", most: startupGoal.Seconds()}.print(p50.Seconds())
	return nil
}
