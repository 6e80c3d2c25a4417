package lane

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// Everything goes wrong at random, and every few minutes the process is killed, at any step or between two.
func TestWhateverHappensNothingIsLost(t *testing.T) {
	for seed := range uint64(stagetest.Runs(0, 1, 4)) {
		for name, api := range kinds {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				virtual(t, func(t *testing.T) { stress(t, seed, api()) })
			})
		}
	}
}

func stress(t *testing.T, seed uint64, api *provider) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 21)) //nolint:gosec // a test that is repeatable
	b := newBench(t, api)
	trouble(b, rnd, &dice{rnd: rand.New(rand.NewPCG(seed, 22))}) //nolint:gosec // as above
	for range 12 {
		killed := b.killAt(steps[rnd.IntN(len(steps))], 1+rnd.IntN(4))
		b.open()
		for range 4 {
			b.add(rnd.IntN(40))
			select {
			case <-killed:
			case <-time.After(time.Duration(rnd.IntN(600)) * time.Second):
			}
		}
		if !b.proc.dead.Load() {
			b.kill()
		}
		b.onStep(nil)
		b.lane.Close()
		time.Sleep(time.Duration(rnd.IntN(60)) * time.Second)
	}
	b.open()
	b.await(48 * time.Hour)
	b.until(24*time.Hour, "an empty lane", func() bool { return len(b.lane.Status().Batches) == 0 })
	b.close()
	for seq := range b.rows {
		if b.kept[seq+1] == "" {
			t.Errorf("row %d is lost", seq+1)
		}
	}
	if len(b.twice) > 0 {
		t.Errorf("rows %v are answered twice", b.twice)
	}
	for token, n := range api.creates {
		if n > 1 {
			t.Errorf("batch %s was created %d times", token, n)
		}
	}
	t.Logf("%d rows in %d batches, %d live calls", b.rows, len(api.batches), len(b.calls))
}

// dice are for several goroutines.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.IntN(n)
}

// trouble has a provider fail in all ways.
func trouble(b *bench, rnd *rand.Rand, d *dice) {
	api := b.api
	b.settings.Rows, b.settings.Open, b.settings.Wait = 20+rnd.IntN(60), 1+rnd.IntN(5), time.Duration(1+rnd.IntN(120))*time.Second
	api.takes, api.lag = time.Duration(1+rnd.IntN(60))*time.Minute, time.Duration(rnd.IntN(20))*time.Second
	often := func(percent int) bool { return d.roll(100) < percent }
	start := time.Now()
	due := map[uint64]time.Time{}
	b.deadline = func(seq uint64) time.Time {
		if seq%10 == 0 && due[seq].IsZero() {
			due[seq] = start.Add(time.Duration(10+seq) * time.Minute)
		}
		return due[seq]
	}
	for seq := range uint64(5000) { // drawn before: rows come from many goroutines
		b.deadline(seq)
	}
	transient := func() error { return apiError(llm.Transient, 503, "try again") }
	api.onUpload = func() error {
		if often(5) {
			return transient()
		}
		return nil
	}
	api.onCreate = func(_ int, job batchapi.Job) error {
		b.onlyOnce(job)
		switch {
		case often(5):
			return errDead // not there, and nobody knows
		case often(5):
			return apiError(llm.Capacity, 429, "full")
		case often(3):
			return apiError(llm.Fatal, 401, "bad key")
		}
		return nil
	}
	api.onCreated = func(int) error {
		if often(10) {
			return errDead
		}
		return nil
	}
	api.onGet = func(r *remote) error {
		switch {
		case often(5):
			return transient()
		case r.State == batchapi.Running && often(2):
			r.State, r.Refusal = batchapi.Refused, &batchapi.Refusal{Capacity: often(50), Err: apiError(llm.Capacity, 429, "no room")}
			if !r.Refusal.Capacity {
				r.Refusal.Err = apiError(llm.Permanent, 400, "bad line")
				if often(50) {
					r.Refusal.Lines = []int{1 + d.roll(len(r.seqs))}
				}
			}
		case r.State == batchapi.Running && often(2):
			r.State, r.Output = batchapi.Expired, "out"
		}
		return nil
	}
	api.cut = func(_, line int) error {
		if line > 0 && d.roll(300) == 0 {
			return transient()
		}
		return nil
	}
	api.lines = func(r *remote) []batchapi.Line {
		return b.messyLines(r, rand.New(rand.NewPCG(uint64(len(r.seqs)), r.seqs[0])))
	} //nolint:gosec // as above
}

// onlyOnce fails the test where a row of a job is in a batch that runs, which must not be where a file can be withdrawn.
func (b *bench) onlyOnce(job batchapi.Job) {
	if b.api.limits.Inline {
		return
	}
	in := map[uint64]string{}
	for _, r := range b.api.batches {
		if b.api.progress(r); r.State == batchapi.Running {
			for _, seq := range r.seqs {
				in[seq] = r.ID
			}
		}
	}
	for _, seq := range b.api.files[job.File] {
		if in[seq] != "" {
			b.t.Errorf("row %d is in batch %s, which runs, when another is created", seq, in[seq])
		}
	}
}

// messyLines are the results of a batch: the same at each reading.
func (b *bench) messyLines(r *remote, rnd *rand.Rand) (lines []batchapi.Line) {
	for i := range r.seqs {
		line := b.api.lineOf(r, i)
		switch n := rnd.IntN(100); {
		case n < 8 || r.State == batchapi.Expired && n < 40:
			line.Kind, line.Status, line.Body = batchapi.Lapsed, 0, nil
		case n < 12:
			line.Status = 429
		case n < 14:
			line.Status = 400
		case n < 16:
			continue
		case n < 20:
			lines = append(lines, line)
		}
		lines = append(lines, line)
	}
	return lines
}
