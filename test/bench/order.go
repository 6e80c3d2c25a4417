package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The tables of order compare the stage in its three orders, side by side: what a slow
// row, a row that is refused for ever and a key with most of the rows do to all others,
// what the order itself costs, and how long a take-over takes.

const (
	orderKeys = 10_000
	// orderWindow is what [turn.command] sets for these pools.
	orderWindow = 4096
	orderPool   = 64
	orderCall   = 50 * time.Millisecond
	orderSlow   = 2 * time.Second
	// paceOfPossible is the part of the possible rows/s at which rows come where
	// latencies are measured.
	paceOfPossible = .8
	latencyGoal    = 1.2
)

// ordering is a stage with its results in one order.
type ordering struct {
	name string
	env  []string
}

var (
	inStream = ordering{name: "stream"}
	byKey    = ordering{"key", []string{"STAGE_ORDER=key", "STAGE_ORDER_KEY=subject.2"}}
	byField  = ordering{"key, in a field of the row", []string{"STAGE_ORDER=key", "STAGE_ORDER_KEY=field.k"}}
	inNone   = ordering{"none", []string{"STAGE_ORDER=none"}}

	orderings = []ordering{inStream, byKey, inNone}
)

// in is the scenario in an order.
func (sc *scenario) in(o ordering) *scenario {
	own := *sc
	own.env = slices.Concat(sc.env, o.env)
	return &own
}

// orderTable is one of them.
type orderTable struct {
	name string
	run  func(ctx context.Context, s *site, rounds int) error
}

func orderTables() []orderTable {
	return []orderTable{
		{"order, slow calls", orderSlowCalls},
		{"order, slow calls, paced", orderPaced},
		{"order, refused row", orderRefused},
		{"order, instant calls", orderInstant},
		{"order, hot key", orderHot},
		{"order, take-over", orderTakeOver},
	}
}

// draw is a number below n that depends on nothing but of and salt.
func draw(of int, salt uint64, n int) int {
	return int(rand.NewPCG(uint64(of), salt).Uint64() % uint64(n)) //nolint:gosec // numbers of rows
}

// anyKey is one of all keys, drawn.
func anyKey(n int) int { return draw(n, 1, orderKeys) }

// oneIn100 is one row in each hundred, drawn: so the mean of any part is that of the whole.
func oneIn100(n int) bool { return n%100 == draw(n/100, 2, 100) }

// slowMix is rows of many keys of which 1% are slow.
func slowMix() *scenario {
	return &scenario{rows: 20_000, spare: orderWindow, pool: orderPool, rowBytes: 1024, latency: orderCall, slow: orderSlow, slowRow: oneIn100, key: anyKey}
}

// possible is the rows/s of a pool whose calls take the scenario's latencies and nothing
// else takes any time.
func (sc *scenario) possible() float64 {
	mean := sc.latency.Seconds()
	if sc.slow > 0 {
		mean += (sc.slow - sc.latency).Seconds() / 100
	}
	return float64(sc.pool) / mean
}

// quickKeys reports which rows have a key that no slow row has.
func (sc *scenario) quickKeys(rows int) func(n int) bool {
	slow := make(map[int]bool)
	for n := range rows {
		if sc.slowRow != nil && sc.slowRow(n) {
			slow[sc.key(n)] = true
		}
	}
	return func(n int) bool { return !slow[sc.key(n)] }
}

// inOrders calls each with all orders, as often as there are rounds.
func inOrders(rounds int, of []ordering, each func(ordering) error) error {
	for range rounds {
		for _, o := range of {
			if err := each(o); err != nil {
				return fmt.Errorf("order %s: %w", o.name, err)
			}
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// orderSlowCalls keeps the input full: how much of the pool's time is used, and what is
// added to a call.
func orderSlowCalls(ctx context.Context, s *site, rounds int) error {
	sc := slowMix()
	all, inUse, times := make(map[string][]figures), make(map[string][]float64), make(byOrder)
	quick := sc.quickKeys(sc.rows + sc.spare)
	measured := func(n int) bool { return n > sc.rows/3 && n < sc.rows }
	if err := inOrders(rounds, orderings, func(o ordering) error {
		f, err := s.contend(ctx, sc.in(o), "stage")
		if err != nil {
			return err
		}
		ways, err := s.ways(ctx)
		all[o.name] = append(all[o.name], f)
		inUse[o.name] = append(inUse[o.name], f.PerSec*meanCall(ways, measured)/float64(sc.pool))
		times.add(o, ways, func(n int) bool { return measured(n) && quick(n) }, way.fromSent)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("\n**order, slow calls**: 1%% of the calls take %s, the others %s, pool %d, %d keys, %d rows, the input always full, %s\n\n", orderSlow, orderCall, sc.pool, orderKeys, sc.rows, inRounds(rounds))
	fmt.Printf("| order | rows/s | of pool / mean latency (%.0f) | of pool / mean measured call | CPU µs/row | allocations/row | peak MiB | keys without a slow row, from the call sent to the result stored: p50 ms | p99 ms | p99 of the calls, ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", sc.possible())
	for _, o := range orderings {
		m, t := median(all[o.name]), times[o.name]
		fmt.Printf("| %s | %.0f | %.3f | %.3f | %.0f | %.0f | %.0f | %.1f | %.1f | %.1f |\n", o.name, m.PerSec, m.PerSec/sc.possible(), middle(inUse[o.name]), m.CPU, m.Allocs, m.PeakMiB, msAt(t.list, 50), msAt(t.list, 99), msAt(t.calls, 99))
	}
	for _, o := range []ordering{byKey, inNone} {
		goal{what: "rows/s by pool / mean latency, order " + o.name, least: .98}.print(median(all[o.name]).PerSec / sc.possible())
	}
	return nil
}

// orderPaced lets the rows come at a pace that the pool can keep up with: how long a row
// is in the stage.
func orderPaced(ctx context.Context, s *site, rounds int) error {
	sc := slowMix()
	sc.rows, sc.spare = 10_000, 0
	perSec := int(paceOfPossible * sc.possible())
	every, others := make(byOrder), make(byOrder)
	quick := sc.quickKeys(sc.rows)
	late := func(n int) bool { return n > 3*perSec } // the throttle's start takes a while
	if err := inOrders(rounds, orderings, func(o ordering) error {
		own := sc.in(o)
		if err := s.during(ctx, own, "stage", 0, func(t *turn) error {
			if err := s.pace(ctx, own, perSec); err != nil {
				return err
			}
			_, err := t.until(ctx, rowsDone(sc.rows))
			return err
		}); err != nil {
			return err
		}
		ways, err := s.ways(ctx)
		every.add(o, ways, late, way.fromTaken)
		others.add(o, ways, func(n int) bool { return late(n) && quick(n) }, way.fromTaken)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("\n**order, slow calls, paced**: the same at %d rows/s, %.1f of what is possible; from the row taken to its result stored, %s of %d rows\n\n", perSec, paceOfPossible, inRounds(rounds), sc.rows)
	fmt.Println("| order | all rows: p50 ms | p99 ms | keys without a slow row: p50 ms | p99 ms | " + partsHead + " |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, o := range orderings {
		e, t := every[o.name], others[o.name]
		fmt.Printf("| %s | %.1f | %.1f | %.1f | %.1f | %s |\n", o.name, msAt(e.list, 50), msAt(e.list, 99), msAt(t.list, 50), msAt(t.list, 99), t.parts())
	}
	for _, o := range []ordering{byKey, inNone} {
		goal{what: "p99 by the calls', order " + o.name, most: latencyGoal}.print(others[o.name].ratio())
	}
	return nil
}

// orderHot gives 90% of the rows to one key and keeps the input full: how long the others
// are in the stage.
func orderHot(ctx context.Context, s *site, rounds int) error {
	const window = 1024
	sc := &scenario{
		rows: 20_000, spare: window, pool: orderPool, rowBytes: 1024, latency: orderCall, env: []string{fmt.Sprintf("STAGE_WINDOW=%d", window)},
		key: func(n int) int {
			if n%10 != draw(n/10, 3, 10) {
				return 0
			}
			return 1 + anyKey(n)
		},
	}
	all := make(map[string][]figures)
	hot, others := make(byOrder), make(byOrder)
	late := func(n int) bool { return n > sc.rows/3 && n < sc.rows }
	if err := inOrders(rounds, orderings, func(o ordering) error {
		f, err := s.contend(ctx, sc.in(o), "stage")
		if err != nil {
			return err
		}
		ways, err := s.ways(ctx)
		all[o.name] = append(all[o.name], f)
		hot.add(o, ways, func(n int) bool { return late(n) && sc.key(n) == 0 }, way.fromTaken)
		others.add(o, ways, func(n int) bool { return late(n) && sc.key(n) != 0 }, way.fromTaken)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("\n**order, hot key**: 90%% of the rows have one key, the others any of %d; calls of %s, pool %d, window %d, the input always full; from the row taken to its result stored, %s of %d rows\n\n", orderKeys, orderCall, sc.pool, window, inRounds(rounds), sc.rows)
	fmt.Printf("| order | rows/s | of pool / latency (%.0f) | the hot key: p50 ms | p99 ms | other keys: p50 ms | p99 ms | %s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", sc.possible(), partsHead)
	for _, o := range orderings {
		m, h, t := median(all[o.name]), hot[o.name], others[o.name]
		fmt.Printf("| %s | %.0f | %.3f | %.1f | %.1f | %.1f | %.1f | %s |\n", o.name, m.PerSec, m.PerSec/sc.possible(), msAt(h.list, 50), msAt(h.list, 99), msAt(t.list, 50), msAt(t.list, 99), t.parts())
	}
	goal{what: "p99 of other keys by their calls', order key", most: latencyGoal}.print(others[byKey.name].ratio())
	return nil
}

// orderInstant measures what the order itself costs.
func orderInstant(ctx context.Context, s *site, rounds int) error {
	sc := &scenario{rows: 60_000, pool: orderPool, rowBytes: 1024, key: anyKey}
	all := make(map[string][]figures)
	list := []ordering{inStream, byKey, byField, inNone}
	if err := inOrders(rounds, list, func(o ordering) error {
		f, err := s.contend(ctx, sc.in(o), "stage")
		all[o.name] = append(all[o.name], f)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("\n**order, instant calls**: instant LLM, pool %d, %d keys, %d rows, %s\n\n", sc.pool, orderKeys, sc.rows, inRounds(rounds))
	fmt.Println("| order | rows/s | by stream's | CPU µs/row | by stream's | allocations/row | more than stream's | KiB/row | server's CPU µs/row | peak MiB | results at a time |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	base := all[inStream.name]
	more := func(o ordering) float64 { return median(all[o.name]).Allocs - median(base).Allocs }
	for _, o := range list {
		m := median(all[o.name])
		fmt.Printf("| %s | %.0f | %.2f | %.0f | %.2f | %.1f | %+.1f | %.1f | %.0f | %.0f | %.0f |\n", o.name, m.PerSec, ratios(all[o.name], base, speed), m.CPU, ratios(all[o.name], base, cpu), m.Allocs, more(o), m.Bytes/1024, m.Server, m.PeakMiB, m.Group)
	}
	for _, o := range list[1:] {
		goal{what: "rows/s by stream's, order " + o.name, least: .9}.print(ratios(all[o.name], base, speed))
		goal{what: "allocations a row more than stream's, order " + o.name, most: 4}.print(more(o))
	}
	return nil
}
