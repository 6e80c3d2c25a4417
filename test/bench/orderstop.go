package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

// What a row that has no result for ever does to the others, and what the next owner does
// with theirs.

const (
	// refusedNumber is the row that is always refused: the throttle has found the rate by
	// then.
	refusedNumber = 3000
	// stalled is how long no result must come for a stage that stands still.
	stalled = 10 * time.Second
)

// orderRefused has one row refused whenever it is called: the others are to come out as
// fast as without it.
func orderRefused(ctx context.Context, s *site, rounds int) error {
	sc := &scenario{rows: 20_000, spare: orderWindow, pool: orderPool, rowBytes: 1024, latency: orderCall, key: anyKey, kill: true}
	refused := *sc
	refused.refusedRow = func(n int) bool { return n == refusedNumber }
	without, with := make(map[string][]figures), make(map[string][]figures)
	came := 0
	if err := inOrders(rounds, orderings, func(o ordering) error {
		f, err := s.contend(ctx, sc.in(o), "stage")
		if err != nil {
			return err
		}
		without[o.name] = append(without[o.name], f)
		if o.name == inStream.name {
			came, err = s.untilStalled(ctx, refused.in(o))
			return err
		}
		f, err = s.contend(ctx, refused.in(o), "stage")
		with[o.name] = append(with[o.name], f)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("\n**order, refused row**: row %d is refused with 429 whenever it is called; calls of %s, pool %d, window %d, %d keys, the input always full, %s\n\n", refusedNumber+1, orderCall, sc.pool, orderWindow, orderKeys, inRounds(rounds))
	fmt.Println("| order | rows/s without that row | rows/s with it | by that without | results then |\n| --- | --- | --- | --- | --- |")
	for _, o := range orderings {
		if o.name == inStream.name {
			fmt.Printf("| %s | %.0f | | | %d, and none in the next %s |\n", o.name, median(without[o.name]).PerSec, came, stalled)
			continue
		}
		fmt.Printf("| %s | %.0f | %.0f | %.3f | all %d that were measured |\n", o.name, median(without[o.name]).PerSec, median(with[o.name]).PerSec, ratios(with[o.name], without[o.name], speed), sc.rows)
	}
	for _, o := range []ordering{byKey, inNone} {
		goal{what: "rows/s by those without the refused row, order " + o.name, least: .98}.print(ratios(with[o.name], without[o.name], speed))
	}
	return nil
}

// untilStalled counts the results that come until none has come for a while.
func (s *site) untilStalled(ctx context.Context, sc *scenario) (rows int, err error) {
	err = s.during(ctx, sc, "stage", sc.rows+sc.spare, func(t *turn) error {
		last := time.Now()
		_, err := t.until(ctx, func(now sample) bool {
			if now.rows > rows {
				rows, last = now.rows, now.at
			}
			return now.at.Sub(last) > stalled
		})
		t.kill()
		return err
	})
	return rows, err
}

const (
	aheadRows    = 65_536
	aheadLast    = refusedNumber + 1 + aheadRows // the last row that is done when the owner is killed, or the one that is not
	aheadMore    = 2000                          // rows that the next owner finds besides
	takeOverGoal = 2 * time.Second
)

// takeOver is how long the parts of one take, by the server's clock.
type takeOver struct {
	claim  time.Duration // from the kill to the next owner's claim: most of it is the wait for the pin
	first  time.Duration // from the claim to the first new result
	beyond time.Duration // from the claim to the first result of a row behind all that were done
}

// orderTakeOver kills an owner that has emitted many rows above one without a result, and
// starts the next one, whose LLM answers that row as well.
func orderTakeOver(ctx context.Context, s *site, rounds int) error {
	sc := &scenario{
		rows: aheadLast + aheadMore, pool: orderPool, rowBytes: 256,
		env: []string{fmt.Sprintf("STAGE_ORDER_SPAN=%d", aheadRows+1)},
	}
	all := make(map[string][]takeOver)
	if err := inOrders(rounds, orderings, func(o ordering) error {
		own := sc.in(o)
		blocked := refusedNumber
		if o.name == inStream.name {
			blocked = aheadLast - 1 // nothing comes out behind it
		}
		own.refusedRow = func(n int) bool { return n == blocked }
		own.key = func(n int) int {
			if n == blocked {
				return orderKeys // no other row's
			}
			return anyKey(n)
		}
		one, err := s.takeOver(ctx, own)
		all[o.name] = append(all[o.name], one)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("\n**order, take-over**: kill of an owner that has emitted %d rows, in order stream all before the first row without a result, else all behind it; the next owner is started at once; instant LLM, pool %d, rows of %d bytes, %s\n\n", aheadRows, sc.pool, sc.rowBytes, inRounds(rounds))
	fmt.Println("| order | from the kill to the claim, s | from the claim to the first new result, s | from the claim to the first result behind those that were done, s | from the kill to the first new result, s |\n| --- | --- | --- | --- | --- |")
	part := func(o ordering, of func(takeOver) time.Duration) float64 {
		var list []float64
		for _, t := range all[o.name] {
			list = append(list, of(t).Seconds())
		}
		return middle(list)
	}
	first := func(t takeOver) time.Duration { return t.first }
	for _, o := range orderings {
		fmt.Printf("| %s | %.2f | %.3f | %.3f | %.2f |\n", o.name, part(o, func(t takeOver) time.Duration { return t.claim }), part(o, first),
			part(o, func(t takeOver) time.Duration { return t.beyond }), part(o, func(t takeOver) time.Duration { return t.claim + t.first }))
	}
	for _, o := range []ordering{byKey, inNone} {
		goal{what: "seconds from the claim to the first new result, order " + o.name, most: takeOverGoal.Seconds()}.print(part(o, first))
	}
	return nil
}

func (s *site) takeOver(ctx context.Context, sc *scenario) (t takeOver, err error) {
	var killed time.Time
	var end uint64
	err = s.during(ctx, sc, "stage", sc.rows, func(t *turn) error {
		if _, err := t.until(ctx, rowsDone(aheadLast-1)); err != nil {
			return err
		}
		t.kill()
		killed = time.Now()
		info, err := t.results.Info(ctx)
		if err == nil {
			end = info.State.LastSeq
		}
		return err
	})
	if err != nil {
		return t, err
	}
	quick := *sc
	quick.refusedRow = nil // the row's mark means nothing then
	if err := s.with(ctx, &quick, "stage", func(t *turn) error {
		_, err := t.until(ctx, rowsDone(sc.rows))
		return err
	}); err != nil {
		return t, err
	}
	return s.takeOverParts(ctx, killed, end)
}

// takeOverParts reads the log behind the sequence that the killed owner left.
func (s *site) takeOverParts(ctx context.Context, killed time.Time, end uint64) (t takeOver, err error) {
	results, err := s.js.Stream(ctx, "RESULTS")
	if err != nil {
		return t, err
	}
	claim, err := results.GetMsg(ctx, end+1)
	if err != nil {
		return t, err
	}
	t.claim = claim.Time.Sub(killed)
	for seq := end + 2; t.beyond == 0; seq++ {
		m, err := results.GetMsg(ctx, seq)
		if err != nil {
			return t, err
		}
		row, err := strconv.Atoi(m.Header.Get(streams.HeaderSourceSeq))
		if err != nil || m.Subject != resultSubject {
			return t, fmt.Errorf("message %d of the log is no result: %w", seq, err)
		}
		if t.first == 0 {
			t.first = m.Time.Sub(claim.Time)
		}
		if row > aheadLast {
			t.beyond = m.Time.Sub(claim.Time)
		}
	}
	return t, nil
}
