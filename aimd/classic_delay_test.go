package aimd

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func accept(law *Classic) { law.Accepted(time.Time{}, Ticket{}) }

func reject(law *Classic) { law.Rejected(time.Time{}, Ticket{}, Hint{}) }

// TestClassicDelay plays scripts of capacity errors (e) and successes (s) and names the delay after each.
func TestClassicDelay(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
		script string
		want   []time.Duration
	}{
		{"the first error sets the recovery step", nil, "e", []time.Duration{50 * ms}},
		{"the first error sets the floor where that is higher", func(c *Config) { c.MinDelay = 80 * ms }, "e", []time.Duration{80 * ms}},
		{"the first error stays below the ceiling", func(c *Config) { c.MaxDelay = 20 * ms }, "ee", []time.Duration{20 * ms, 20 * ms}},
		{
			"later errors multiply", func(c *Config) { c.RecoveryStep = 100 * ms }, "eee",
			[]time.Duration{100 * ms, 200 * ms, 400 * ms},
		},
		{
			"up to the ceiling", func(c *Config) { c.RecoveryStep, c.MaxDelay = 100*ms, 500*ms }, "eeeee",
			[]time.Duration{100 * ms, 200 * ms, 400 * ms, 500 * ms, 500 * ms},
		},
		{"a success takes the step off", nil, "eess", []time.Duration{50 * ms, 100 * ms, 50 * ms, 0}},
		{"at 0 it stays at 0", nil, "ss", []time.Duration{0, 0}},
		{
			"down to the floor", func(c *Config) { c.MinDelay, c.RecoveryStep = 10*ms, 100*ms }, "ess",
			[]time.Duration{100 * ms, 10 * ms, 10 * ms},
		},
		{"a success raises a delay of 0 to the floor", func(c *Config) { c.MinDelay = 10 * ms }, "s", []time.Duration{10 * ms}},
		{
			"without a step it never recovers", func(c *Config) { c.MinDelay, c.RecoveryStep = 10*ms, 0 }, "eess",
			[]time.Duration{10 * ms, 20 * ms, 20 * ms, 20 * ms},
		},
		{"a ceiling of 0 switches it off", func(c *Config) { c.MaxDelay = 0 }, "ee", []time.Duration{0, 0}},
		{
			"a product beyond any duration is the ceiling",
			func(c *Config) { c.MaxDelay, c.Multiplier = math.MaxInt64, math.MaxFloat64 }, "ee",
			[]time.Duration{50 * ms, math.MaxInt64},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			law := newClassic(t, test.change)
			for i, verdict := range test.script {
				if verdict == 'e' {
					reject(law)
				} else {
					accept(law)
				}
				if got := law.Stats().CurrentDelay; got != test.want[i] {
					t.Fatalf("after %q the delay is %v, want %v", test.script[:i+1], got, test.want[i])
				}
			}
		})
	}
}

// anyConfig draws valid settings, the odd ones included: no floor, no room, no step, factors near 1.
func anyConfig(t *rapid.T) Config {
	floor := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(1, int64(time.Hour))).Draw(t, "min")
	cfg := Config{
		MinDelay:     time.Duration(floor),
		MaxDelay:     time.Duration(rapid.Int64Range(floor, int64(2*time.Hour)).Draw(t, "max")),
		Multiplier:   rapid.Float64Range(math.Nextafter(1, 2), 1e6).Draw(t, "multiplier"),
		RecoveryStep: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "step")),
	}
	if cfg.MinDelay == 0 {
		cfg.RecoveryStep++
	}
	return cfg
}

// TestClassicKeepsItsBounds holds for every valid setting and every script: the delay is 0 or within its bounds,
// an error never shortens it, a success never lengthens it (but to the floor), and the statistics add up.
func TestClassicKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := anyConfig(t)
		law, err := NewClassic(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var want Stats
		t.Repeat(map[string]func(*rapid.T){
			"error": func(t *rapid.T) {
				before := law.Stats().CurrentDelay
				reject(law)
				want.CapacityRetries++
				if after := law.Stats().CurrentDelay; after < before {
					t.Fatalf("a capacity error took the delay from %v to %v", before, after)
				}
			},
			"success": func(t *rapid.T) {
				before := law.Stats().CurrentDelay
				accept(law)
				want.Successes++
				if after := law.Stats().CurrentDelay; after > max(before, cfg.MinDelay) {
					t.Fatalf("a success took the delay from %v to %v", before, after)
				}
			},
			"": func(t *rapid.T) {
				delay := law.Stats().CurrentDelay
				if delay != 0 && (delay < cfg.MinDelay || delay > cfg.MaxDelay) {
					t.Fatalf("delay %v is outside [%v, %v]", delay, cfg.MinDelay, cfg.MaxDelay)
				}
				want.CurrentDelay = delay
				want.PeakDelay = max(want.PeakDelay, delay)
				if got := law.Stats(); got != want {
					t.Fatalf("stats %+v, want %+v", got, want)
				}
			},
		})
	})
}

func TestEveryProblemOfTheSettingsIsNamed(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  Config
		want []string // a part of each line
	}{
		{"default", Default(), nil},
		{"no step, but a floor", Config{MinDelay: 1, MaxDelay: 1, Multiplier: 1.1}, nil},
		{"zero value", Config{}, []string{"Multiplier is 0", "RecoveryStep is 0"}},
		{
			"all at once",
			Config{MinDelay: -1, MaxDelay: -2, Multiplier: 1, RecoveryStep: -3},
			[]string{"MinDelay is -1ns", "MaxDelay is -2ns", "Multiplier is 1,", "RecoveryStep is -3ns"},
		},
		{"not a number", Config{Multiplier: math.NaN(), RecoveryStep: 1}, []string{"Multiplier is NaN"}},
		{"infinite", Config{Multiplier: math.Inf(1), RecoveryStep: 1}, []string{"Multiplier is +Inf"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewClassic(test.cfg)
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(test.want) {
				t.Fatalf("%d problems, want %d: %v", len(lines), len(test.want), err)
			}
			for i, want := range test.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("problem %q, want %q in it", lines[i], want)
				}
			}
		})
	}
}

func BenchmarkClassic(b *testing.B) {
	law := newClassic(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		reject(law)
		accept(law)
		_ = law.Stats().CurrentDelay
	}
}
