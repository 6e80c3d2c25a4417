package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/pool"
	"github.com/llm-stage/stage/pool/gate"
)

// Of each job that has no answer the pool says why it waits, in one kind.
func TestAWaitingJobHasOneReason(t *testing.T) {
	always := func(v pool.Verdict) call {
		return func(context.Context, int, pool.Attempt) (int, pool.Verdict) { return 0, v }
	}
	slowLaw := func() pool.Law {
		law, err := aimd.NewClassic(aimd.Config{MinDelay: time.Hour, MaxDelay: time.Hour, Multiplier: 2, RecoveryStep: ms})
		if err != nil {
			t.Fatal(err)
		}
		return law
	}
	for name, tt := range map[string]struct {
		cfg    pool.Config
		call   call
		jobs   int
		asked  int // about this job
		kind   hold.Kind
		by     string
		why    string
		nextIn time.Duration // 0 means that it is not checked
	}{
		"every slot is taken":    {pool.Config{Size: 2}, sleeper(time.Hour), 3, 2, hold.Slots, "", "", 0},
		"replies keep the slots": {pool.Config{Size: 2, Unkept: func() int { return 2 }}, sleeper(time.Hour), 1, 0, hold.Slots, "2 replies that are not kept yet", "", 0},
		"the law":                {pool.Config{Size: 2, Law: slowLaw()}, sleeper(ms), 2, 1, hold.Throttle, "", "", time.Hour - time.Minute},
		"a limit on calls":       {pool.Config{Size: 2, Gates: []pool.Gate{gate.NewCallsPerMinute(1)}}, sleeper(2 * time.Hour), 2, 1, hold.Limit, "calls per minute", "", 0},
		"calls in flight":        {pool.Config{Size: 2, Gates: []pool.Gate{gate.NewAtMost(1)}}, sleeper(time.Hour), 2, 1, hold.Limit, "calls in flight", "", 0},
		"between two attempts":   {pool.Config{Size: 2, Retry: pool.RetryConfig{MaxAttempts: 3, BaseDelay: time.Hour, BackoffFactor: 1, MaxDelay: time.Hour}, Rand: func() float64 { return .99 }}, always(reset), 1, 0, hold.Retry, "", "connection reset", 0},
		"in doubt, and between two attempts": { // it has waited for another's success twice before, and goes again after 70 s
			pool.Config{Size: 2, Retry: pool.RetryConfig{MaxAttempts: 3, BaseDelay: 44 * time.Second, BackoffFactor: 1, MaxDelay: time.Hour}, Rand: func() float64 { return .5 }},
			failing0, 2, 0, hold.Retry, "", "down", 10 * time.Second,
		},
		"in doubt, and another's success is waited for": { // for two seconds, from 59 s on
			pool.Config{Size: 2, Retry: pool.RetryConfig{MaxAttempts: 3, BaseDelay: 118 * time.Second, BackoffFactor: 1, MaxDelay: time.Hour}, Rand: func() float64 { return .5 }},
			failing0, 2, 0, hold.Doubt, "", "down", time.Second,
		},
		"no capacity":            {pool.Config{Size: 2}, always(pool.Verdict{Class: pool.Capacity, Err: errBusy, Hint: aimd.Hint{RetryAfter: time.Hour}}), 1, 0, hold.Capacity, "", "busy", time.Hour - time.Minute},
		"whose failure it is":    {pool.Config{Size: 2, Retry: pool.RetryConfig{MaxAttempts: 1, BaseDelay: time.Second, BackoffFactor: 1, MaxDelay: time.Second}}, failing0, 2, 0, hold.Doubt, "", "down", 0},
		"a bad key":              {pool.Config{Size: 2}, always(badKey), 3, 2, hold.Other, "", "invalid key", 0},
		"nothing listens":        {pool.Config{Size: 2}, always(pool.Verdict{Class: pool.Transient, Origin: pool.OfNetwork, Absent: true, Unsent: true, Err: errReset}), 2, 1, hold.Outage, "", "connection reset", 0},
		"short of descriptors":   {pool.Config{Size: 3}, shortOf1, 3, 2, hold.Shortage, "", "no descriptor", 0},
		"a job that has started": {pool.Config{Size: 1, Retry: pool.RetryConfig{MaxAttempts: 3, BaseDelay: time.Hour, BackoffFactor: 1, MaxDelay: time.Hour}, Rand: func() float64 { return .99 }}, always(reset), 2, 1, hold.Turn, "", "", 0},
	} {
		bubble(t, name, func(t *testing.T) {
			p := running(t, tt.cfg, tt.call)
			for i := range tt.jobs {
				submit(t, p, i, func(result) {})
			}
			time.Sleep(time.Minute)
			w, known := p.Waits(t.Context(), func(in int) bool { return in == tt.asked })
			if !known || !w.Known || w.Hold.Kind != tt.kind || w.Hold.By != tt.by || w.Hold.Why != tt.why {
				t.Errorf("known %v: %+v, want %s by %q: %q", known, w.Hold, tt.kind, tt.by, tt.why)
			}
			if in := time.Until(w.Hold.Next); tt.nextIn != 0 && (in > tt.nextIn || in < tt.nextIn-time.Second) {
				t.Errorf("next in %v, want %v", in, tt.nextIn)
			}
		})
	}
	bubble(t, "an operator", func(t *testing.T) {
		p := running(t, pool.Config{Size: 2}, sleeper(time.Hour))
		p.Halt(errors.New("paused by alice"))
		submit(t, p, 0, func(result) {})
		synctest.Wait()
		if w, _ := p.Waits(t.Context(), func(int) bool { return true }); w.Hold.Kind != hold.Operator || w.Hold.Why != "paused by alice" {
			t.Errorf("got %+v", w.Hold)
		}
	})
	bubble(t, "a fallback that is shut", func(t *testing.T) { // one job is called there, and fails; the other waits
		p := running(t, pool.Config{
			Size: 2, Retry: pool.RetryConfig{MaxAttempts: 1, BaseDelay: ms, BackoffFactor: 1, MaxDelay: ms},
			Fallbacks: []pool.Server{{Law: slowLaw()}}, ProbeInterval: time.Hour,
		}, func(_ context.Context, _ int, a pool.Attempt) (int, pool.Verdict) {
			if a.Server == 0 {
				return 0, reset
			}
			time.Sleep(time.Second) // the other comes there meanwhile
			return 0, badKey
		})
		for i := range 2 {
			submit(t, p, i, func(result) {})
		}
		time.Sleep(time.Minute)
		w, _ := p.Waits(t.Context(), func(int) bool { return true })
		if !w.Known || w.Server != 1 || w.Hold.Kind != hold.Other || w.Hold.Why != "invalid key" || time.Until(w.Hold.Next) > time.Hour {
			t.Errorf("got %+v", w)
		}
		if w, _ := p.Waits(t.Context(), func(in int) bool { return in == 7 }); w.Known {
			t.Errorf("of a job that is not there: %+v", w)
		}
	})
	bubble(t, "nobody answers", func(t *testing.T) { // it does not run yet
		p := newPool(t, pool.Config{Size: 2}, sleeper(ms))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if w, known := p.Waits(ctx, func(int) bool { return true }); known {
			t.Errorf("got %+v", w)
		}
	})
}

// failing0 fails for the first job as if the server were down, and takes long for the others.
func failing0(ctx context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
	if in == 0 {
		return 0, pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errors.New("down")}
	}
	return sleeper(time.Hour)(ctx, in, pool.Attempt{})
}

// shortOf1 finds no descriptor for any job but the first.
func shortOf1(ctx context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
	if in > 0 {
		return 0, pool.Verdict{Class: pool.Transient, Origin: pool.OfHost, Err: errors.New("no descriptor")}
	}
	return sleeper(time.Hour)(ctx, in, pool.Attempt{})
}
