package cost

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/llm-stage/stage/auditlog"
)

func lanePrices(t *testing.T) Prices {
	t.Helper()
	p, err := parsePrices([]byte("half: {input: 2, cached: 1, output: 8, batch_input: 1, batch_output: 4}\nlive: {input: 2, output: 8}\n"), false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func laneCall(model, id string, tokens int64) *auditlog.Call {
	return &auditlog.Call{
		Provider: "openai", Model: model, Lane: auditlog.LaneBatch, CallID: id,
		Usage: &auditlog.Usage{PromptTokens: tokens, CompletionTokens: tokens},
	}
}

func TestACallOfABatchHasTheBatchPrice(t *testing.T) {
	l := NewLedger(lanePrices(t), 0)
	c := laneCall("half", "tok-1", 1e6)
	l.Price(c, "half")
	if c.Usage.CostUSD == nil || *c.Usage.CostUSD != 5 {
		t.Errorf("cost %v, want 1 + 4", c.Usage.CostUSD)
	}
	cached := laneCall("half", "tok-1", 1e6)
	cached.Usage.CachedTokens = new(int64(1e6))
	if l.Price(cached, ""); *cached.Usage.CostUSD != 5 {
		t.Errorf("cached tokens without batch_cached cost %v, want them at batch_input", *cached.Usage.CostUSD)
	}
	live := laneCall("half", "id", 1e6)
	live.Lane = ""
	if l.Price(live, ""); *live.Usage.CostUSD != 10 {
		t.Errorf("a live call costs %v, want 10", *live.Usage.CostUSD)
	}
	unknown := laneCall("live", "tok-1", 1e6)
	if l.Price(unknown, ""); unknown.Usage.CostUSD != nil {
		t.Errorf("without a price of the lane a call costs %v, want unknown", *unknown.Usage.CostUSD)
	}
	if got := l.EstimateBatch("openai", "half", 1e6, 1e6); got != 5 {
		t.Errorf("estimate %v, want 5", got)
	}
	if got := l.EstimateBatch("openai", "live", 1e6, 1e6); got != 0 {
		t.Errorf("estimate %v without a price, want 0", got)
	}
}

func TestOnlyPricedModelsUseTheLaneBelowACeiling(t *testing.T) {
	for ceiling, want := range map[float64]bool{0: true, 1: false} {
		l := NewLedger(lanePrices(t), ceiling)
		if got := l.AffordsBatch("openai", "live"); got != want {
			t.Errorf("ceiling %v: a model without a price of the lane: %v", ceiling, got)
		}
		if !l.AffordsBatch("openai", "half") {
			t.Errorf("ceiling %v: a model with its price is refused", ceiling)
		}
	}
}

func TestTheCeilingReservesBatches(t *testing.T) {
	l := NewLedger(lanePrices(t), 10)
	spend := func(id string, usd float64) {
		t.Helper()
		c := laneCall("half", id, 0)
		c.Usage.CostUSD = &usd
		l.Spend(c)
	}
	check := func(spent, reserved float64) {
		t.Helper()
		if l.Spent() != spent || l.Reserved() != reserved {
			t.Fatalf("spent %v, reserved %v, want %v and %v", l.Spent(), l.Reserved(), spent, reserved)
		}
	}
	if err := l.Reserve("a", 6); err != nil {
		t.Fatal(err)
	}
	err := l.Reserve("b", 5)
	if !errors.Is(err, ErrCeiling) || !strings.Contains(err.Error(), "STAGE_MAX_COST_USD") {
		t.Fatalf("over the ceiling: %v", err)
	}
	check(0, 6)
	if err := l.Reserve("a", 7); err != nil {
		t.Fatalf("again for the same batch: %v", err)
	}
	if err := l.Reserve("b", 3); err != nil {
		t.Fatal(err)
	}
	check(0, 10)
	if err := l.Exhausted(); !errors.Is(err, ErrCeiling) || !strings.Contains(err.Error(), "reserved") {
		t.Fatalf("all is reserved: %v", err)
	}
	if err := l.Reserve("c", 0); !errors.Is(err, ErrCeiling) {
		t.Errorf("a batch of unknown cost without money left: %v", err)
	}
	spend("a-1", 2) // of what is reserved
	check(2, 8)
	spend("a-1", 2) // read again
	check(2, 8)
	l.Settle("a", 3) // an answer of 1 was dropped
	check(3, 3)
	spend("a-2", 1) // it was used after all
	check(3, 3)
	spend("a-3", 1)
	check(4, 3)
	l.Settle("b", 0) // nothing was billed
	check(4, 0)
	if err := l.Exhausted(); err != nil {
		t.Errorf("6 USD are left: %v", err)
	}
	l.ReserveAgain("d", 20) // the provider has it already
	check(4, 20)
	if l.Exhausted() == nil {
		t.Error("a batch of an earlier run is not reserved")
	}
}

// Whatever happens in whatever order, what is counted is what a sum over batches gives.
func TestTheLedgerAddsUpBatches(t *testing.T) {
	type model struct {
		open           bool
		floor, counted float64
		rows           map[int]bool
	}
	rapid.Check(t, func(t *rapid.T) {
		l, batches := NewLedger(nil, 0), map[string]*model{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			token := rapid.SampledFrom([]string{"a", "b", "c-d"}).Draw(t, "token")
			usd := float64(rapid.IntRange(0, 16).Draw(t, "usd"))
			m := batches[token]
			if m == nil {
				m = &model{rows: map[int]bool{}}
				batches[token] = m
			}
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				if err := l.Reserve(token, usd); err != nil {
					t.Fatal(err)
				}
				m.open, m.floor = true, usd
			case 1:
				l.Settle(token, usd)
				m.open, m.floor = false, usd
			case 2:
				row := rapid.IntRange(1, 8).Draw(t, "row")
				c := laneCall("m", fmt.Sprintf("%s-%d", token, row), 0)
				c.Usage.CostUSD = &usd
				l.Spend(c)
				if !m.rows[row] {
					m.rows[row], m.counted = true, m.counted+usd
				}
			}
			spent, all := 0.0, 0.0
			for _, m := range batches {
				all += max(m.floor, m.counted)
				if m.open {
					spent += m.counted
				} else {
					spent += max(m.floor, m.counted)
				}
			}
			if math.Abs(l.Spent()-spent) > 1e-9 || math.Abs(l.Spent()+l.Reserved()-all) > 1e-9 {
				t.Fatalf("spent %v and reserved %v, want %v of %v", l.Spent(), l.Reserved(), spent, all)
			}
		}
	})
}

func TestTheLedgerForgetsSettledBatches(t *testing.T) {
	l := NewLedger(nil, 0)
	l.ReserveAgain("open", 1)
	for n := range 3 * closedMax {
		token := fmt.Sprint(n)
		l.ReserveAgain(token, 1)
		l.Settle(token, 1)
	}
	if len(l.batches) > closedMax+1 || l.batches["open"] == nil {
		t.Errorf("%d batches are remembered, the open one: %v", len(l.batches), l.batches["open"])
	}
	if l.Spent() != 3*closedMax || l.Reserved() != 1 {
		t.Errorf("spent %v, reserved %v", l.Spent(), l.Reserved())
	}
}
