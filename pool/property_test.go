package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
	"github.com/llm-stage/stage/pool/gate"
)

// attempt is how a call goes: it takes that long and then the server, or the call itself, says this.
type attempt struct {
	took    time.Duration
	verdict pool.Verdict
	panics  bool
	server  int // that was asked
}

func anyAttempt(t *rapid.T) attempt {
	a := attempt{
		took:    time.Duration(rapid.IntRange(0, 3000).Draw(t, "took")) * ms,
		verdict: rapid.SampledFrom([]pool.Verdict{ok, ok, busy, busy, reset, bad, badKey, cancelled, refused, refused, sick, sick, sickOnce, unknownParameter, wrongSchema, loginPage, short}).Draw(t, "verdict"),
		panics:  rapid.IntRange(0, 20).Draw(t, "panics") == 0,
	}
	if a.verdict.Class == pool.Fatal {
		a.verdict.Unsent = rapid.Bool().Draw(t, "unsent")
	}
	if rapid.Bool().Draw(t, "retry after") {
		a.verdict.Hint.RetryAfter = time.Duration(rapid.IntRange(-1, 5000).Draw(t, "retry after")) * ms
	}
	return a
}

// plan is a whole life of a pool.
type plan struct {
	cfg     pool.Config
	law     aimd.Config
	jobs    [][]attempt
	pauses  []time.Duration // before each submission
	drainAt time.Duration   // 0: when all is done
	stopAt  time.Duration   // 0: never
	recalls []time.Duration // of the jobs with even numbers
}

func (p *plan) mayRecall(job int) bool { return len(p.recalls) > 0 && job%2 == 0 }

func anyPlan(t *rapid.T) plan {
	p := plan{
		cfg: pool.Config{
			Size:          rapid.IntRange(1, 5).Draw(t, "size"),
			QueueLimit:    rapid.IntRange(1, 10).Draw(t, "queue limit"),
			RowTimeout:    time.Duration(rapid.SampledFrom([]int{0, 0, 1, 2000, 10000}).Draw(t, "row timeout")) * ms,
			FailOnFatal:   rapid.Bool().Draw(t, "fail on fatal"),
			Fallbacks:     make([]pool.Server, rapid.IntRange(0, 2).Draw(t, "fallbacks")),
			FallbackAfter: time.Duration(rapid.SampledFrom([]int{0, 1, 1500}).Draw(t, "fallback after")) * ms,
			OutageHold:    time.Duration(rapid.SampledFrom([]int{0, 0, 3000}).Draw(t, "outage hold")) * ms,
			ProbeInterval: time.Duration(rapid.IntRange(1, 5000).Draw(t, "probe interval")) * ms,
			Retry: pool.RetryConfig{
				MaxAttempts:   rapid.IntRange(1, 3).Draw(t, "attempts"),
				BaseDelay:     time.Second,
				BackoffFactor: 2,
				MaxDelay:      2 * time.Second,
			},
		},
		law: aimd.Config{
			MinDelay:     time.Duration(rapid.SampledFrom([]int{0, 0, 10, 500}).Draw(t, "floor")) * ms,
			MaxDelay:     time.Second,
			Multiplier:   2,
			RecoveryStep: 50 * ms,
		},
		jobs: rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(anyAttempt), 0, 5), 1, 15).Draw(t, "jobs"),
	}
	for range p.jobs {
		p.pauses = append(p.pauses, time.Duration(rapid.SampledFrom([]int{0, 0, 0, 700}).Draw(t, "pause"))*ms)
	}
	if rapid.Bool().Draw(t, "drains") {
		p.drainAt = time.Duration(rapid.IntRange(1, 20000).Draw(t, "drain at")) * ms
	}
	if rapid.Bool().Draw(t, "stops") {
		p.stopAt = time.Duration(rapid.IntRange(1, 20000).Draw(t, "stop at")) * ms
	}
	for _, at := range rapid.SliceOfN(rapid.IntRange(1, 20000), 0, 3).Draw(t, "recalls") {
		p.recalls = append(p.recalls, time.Duration(at)*ms)
	}
	return p
}

// TestEveryJobIsDoneOnce holds whatever the calls say, however long they take and whenever the pool stops: every job
// that was taken is done exactly once, with an end that its verdicts allow; the bounds hold on the way; Run returns.
func TestEveryJobIsDoneOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := anyPlan(t)
		rapid.SyncTest(t, func(t *rapid.T) { live(t, plan) })
	})
}

func live(t *rapid.T, plan plan) {
	law, err := aimd.NewClassic(plan.law)
	if err != nil {
		t.Fatal(err)
	}
	plan.cfg.Law = law
	for i := range plan.cfg.Fallbacks {
		plan.cfg.Fallbacks[i] = pool.Server{Gates: []pool.Gate{gate.NewAtMost(1 + i), gate.NewCallsPerMinute(600)}}
	}
	var inFlight gauge
	verdicts := make([][]attempt, len(plan.jobs)) // as given, a slot for each job
	p, err := pool.New(plan.cfg, inFlight.watch(func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
		step := attempt{verdict: ok}
		if n := len(verdicts[in]); n < len(plan.jobs[in]) {
			step = plan.jobs[in][n]
		}
		if pause(ctx, step.took) {
			step = attempt{verdict: cancelled}
		}
		step.server = a.Server
		verdicts[in] = append(verdicts[in], step)
		if step.panics {
			panic("boom")
		}
		return in, step.verdict
	}))
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if plan.stopAt > 0 {
		defer time.AfterFunc(plan.stopAt, stop).Stop()
	}
	if plan.drainAt > 0 {
		defer time.AfterFunc(plan.drainAt, p.Drain).Stop()
	}
	for _, at := range plan.recalls {
		defer time.AfterFunc(at, func() { p.Recall(func(in int) bool { return plan.mayRecall(in) }) }).Stop()
	}
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()

	done := make(chan result, 2*len(plan.jobs))
	taken := 0
	for i := range plan.jobs {
		time.Sleep(plan.pauses[i])
		err := p.Submit(context.Background(), i, func(r result) { done <- r })
		if errors.Is(err, pool.ErrStopped) {
			break
		}
		if err != nil {
			t.Fatalf("submit: %v", err)
		}
		taken++
	}
	results := make([]result, 0, taken)
	for range taken {
		results = append(results, <-done)
	}
	p.Drain()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("Run: %v", err)
	}
	if len(done) > 0 {
		t.Fatalf("job %d was done more than once", (<-done).In)
	}

	slices.SortFunc(results, func(a, b result) int { return a.In - b.In })
	var successes, rejections int
	for i, r := range results {
		if r.In != i {
			t.Fatalf("the results do not have job %d once: %d", i, r.In)
		}
		if i > 0 && !r.Started.IsZero() && (results[i-1].Started.IsZero() && !plan.mayRecall(i-1) || r.Started.Before(results[i-1].Started)) {
			t.Fatalf("job %d started before the one submitted earlier", i)
		}
		checkEnd(t, plan.cfg, r, verdicts[i], plan.drainAt > 0 || plan.stopAt > 0 || plan.mayRecall(i))
		for _, v := range verdicts[i] {
			switch {
			case v.panics:
			case v.verdict.Class == pool.OK:
				successes++
			case v.verdict.Class == pool.Capacity:
				rejections++
			}
		}
	}
	stats := p.Stats()
	if most := inFlight.most; most > plan.cfg.Size || stats.MaxConcurrent < most {
		t.Fatalf("%d calls in flight, the statistics report %d, the size is %d", most, stats.MaxConcurrent, plan.cfg.Size)
	}
	if int(stats.Successes) != successes || int(stats.CapacityRetries) != rejections || stats.InFlight != 0 || stats.Waiting != 0 {
		t.Fatalf("%d successes and %d rejections, but the statistics are %+v", successes, rejections, stats)
	}
}

// checkEnd fails unless the result is one that those attempts may lead to.
func checkEnd(t *rapid.T, cfg pool.Config, r result, attempts []attempt, mayHandBack bool) {
	failures, doubtful, rejections, unsent := make([]int, 1+len(cfg.Fallbacks)), make([]int, 1+len(cfg.Fallbacks)), 0, 0
	for _, a := range attempts {
		switch {
		case a.panics:
		case a.verdict.Origin == pool.OfHost:
		case a.verdict.Origin == pool.OfServer, a.verdict.Alike != "", a.verdict.Origin == pool.OfNetwork && a.server > 0:
			doubtful[a.server]++ // may count
		case a.verdict.Origin == pool.OfNetwork:
		case a.verdict.Class == pool.Transient:
			failures[a.server]++
		case a.verdict.Class == pool.Capacity:
			rejections++
		case a.verdict.Unsent:
			unsent++
		}
	}
	if r.Attempts != len(attempts)-rejections-unsent || r.CapacityRetries != rejections || slices.Max(failures) > cfg.Retry.MaxAttempts {
		t.Fatalf("job %d: %d attempts and %d rejections, after %v", r.In, r.Attempts, r.CapacityRetries, attempts)
	}
	var last attempt
	if len(attempts) > 0 {
		last = attempts[len(attempts)-1]
	}
	var allowed bool
	switch class := last.verdict.Class; {
	case errors.Is(r.Err, pool.ErrHandedBack):
		final := class == pool.OK || class == pool.Permanent || last.panics
		final = final && last.verdict.Origin == pool.OfJob && last.verdict.Alike == "" // else it may be in doubt
		allowed = r.Class == pool.Cancelled && (class == pool.Cancelled || mayHandBack && (len(attempts) == 0 || !final))
	case errors.Is(r.Err, pool.ErrOutage):
		allowed = cfg.OutageHold > 0 && r.Class == pool.Transient && r.Finished.Sub(r.Queued) >= cfg.OutageHold
	case errors.Is(r.Err, pool.ErrRowTimeout):
		allowed = cfg.RowTimeout > 0 && r.Class == class && r.Finished.Sub(r.Started) >= cfg.RowTimeout
	case last.panics:
		_, allowed = errors.AsType[*pool.PanicError](r.Err)
	case r.Class != class:
	case class == pool.OK:
		allowed = r.Err == nil && r.Out == r.In
	case class == pool.Transient:
		n := failures[last.server]
		allowed = errors.Is(r.Err, last.verdict.Err) && (last.verdict.Origin != pool.OfNetwork || last.server > 0) && last.verdict.Origin != pool.OfHost &&
			n <= cfg.Retry.MaxAttempts && n+doubtful[last.server] >= cfg.Retry.MaxAttempts
	case class == pool.Permanent:
		allowed = errors.Is(r.Err, last.verdict.Err)
	case class == pool.Fatal:
		allowed = errors.Is(r.Err, errKey) && !last.verdict.Unsent && (cfg.FailOnFatal || last.server > 0)
	}
	if !allowed {
		t.Fatalf("job %d: %v, class %v, after %v", r.In, r.Err, r.Class, attempts)
	}
}
