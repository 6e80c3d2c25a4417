package lane

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

func apiError(class llm.Class, status int, text string) *llm.Error {
	return &llm.Error{Class: class, Status: status, Reason: llm.ReasonAPICallFailed, Err: errors.New(text)}
}

// refuseLater has a batch refused a minute after its creation.
func refuseLater(p *provider, refusal func(r *remote) *batchapi.Refusal) {
	p.onGet = func(r *remote) error {
		if why := refusal(r); why != nil {
			r.State, r.Refusal = batchapi.Refused, why
		}
		return nil
	}
}

func TestNamedLinesFailAndTheOthersGoAgain(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		refuseLater(b.api, func(r *remote) *batchapi.Refusal {
			if i := slices.Index(r.seqs, 42); i >= 0 {
				return &batchapi.Refusal{Lines: []int{i + 1, 100000, -1}, Err: apiError(llm.Permanent, 400, "line is bad")}
			}
			return nil
		})
		b.run(100, 4*time.Hour)
		if got := b.kept[42]; !strings.Contains(got, "400") || !strings.Contains(got, "line is bad") {
			t.Errorf("row 42: got %q", got)
		}
		if len(b.calls) > 0 || len(b.api.batches) != 2 || len(b.api.batches[1].seqs) != 99 {
			t.Errorf("got %d batches, %d live calls", len(b.api.batches), len(b.calls))
		}
		if got, want := b.phases(), "intent submitted abandoned intent submitted ended"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A provider may refuse a batch in its reply to the creation. What it says of the lines counts like a later refusal.
func TestABatchMayBeRefusedAtOnce(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.refuses = func(job batchapi.Job) *batchapi.Refusal {
			if i := slices.Index(b.api.files[job.File], 42); i >= 0 {
				return &batchapi.Refusal{Lines: []int{i + 1}, Err: apiError(llm.Permanent, 400, "line is bad")}
			}
			return nil
		}
		b.run(100, 4*time.Hour)
		if got := b.kept[42]; !strings.Contains(got, "400") || len(b.calls) > 0 || len(b.api.batches) != 1 {
			t.Errorf("row 42: got %q; %d batches, %d live calls", got, len(b.api.batches), len(b.calls))
		}
	})
}

func TestABadRowIsFoundByHalves(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		refuseLater(b.api, func(r *remote) *batchapi.Refusal {
			if slices.Contains(r.seqs, 42) {
				return &batchapi.Refusal{Err: apiError(llm.Permanent, 400, "something is bad")}
			}
			return nil
		})
		b.run(160, 24*time.Hour)
		b.check()
		// 100, 50, 25, 13 rows, then few enough to find out for themselves.
		if len(b.calls) == 0 || len(b.calls) > 10 || b.calls[42] != 1 {
			t.Errorf("live calls %v", b.calls)
		}
		if s := b.lane.Status(); s.Paused != "" {
			t.Error(s.Paused)
		}
	})
}

func TestRefusalsOfEverythingPauseTheLane(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 500
		b.settings.Rows = 500
		refuseLater(b.api, func(*remote) *batchapi.Refusal {
			return &batchapi.Refusal{Err: apiError(llm.Permanent, 400, "no batches for you")}
		})
		b.open()
		time.Sleep(20 * time.Minute)
		// While a probe is under way its upload succeeds, and nothing is known to be wrong.
		b.until(10*time.Minute, "a pause", func() bool { return strings.Contains(b.lane.Status().Paused, "no batches for you") })
		if len(b.calls) > 0 {
			t.Errorf("%d live calls", len(b.calls))
		}
		b.api.mu.Lock()
		b.api.onGet = nil
		b.api.mu.Unlock()
		b.finish(24 * time.Hour)
	})
}

func TestAFullQueueIsWaitedFor(t *testing.T) {
	for name, later := range map[string]bool{"at once": false, "later": true} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.settings.Wait = time.Second
			const most = 12_500 // tokens, at 100 a row
			full := func(but *remote, more int) bool {
				sum := 100 * more
				for _, r := range b.api.batches {
					if b.api.progress(r); r.State == batchapi.Running && r != but {
						sum += 100 * len(r.seqs)
					}
				}
				return sum > most
			}
			refusal := apiError(llm.Capacity, 429, "token_limit_exceeded")
			if later {
				refuseLater(b.api, func(r *remote) *batchapi.Refusal {
					if r.State == batchapi.Running && r.Answered == 0 && full(r, len(r.seqs)) {
						return &batchapi.Refusal{Capacity: true, Err: refusal}
					}
					return nil
				})
			} else {
				b.api.onCreate = func(_ int, job batchapi.Job) error {
					if full(nil, job.Lines.Rows) {
						return refusal
					}
					return nil
				}
			}
			b.run(500, 48*time.Hour)
			b.check()
			if len(b.calls) > 0 {
				t.Errorf("%d live calls", len(b.calls))
			}
			if n := len(b.api.creates); n > 40 {
				t.Errorf("%d batches were created", n)
			}
		})
	}
}

func TestABadKeyPausesTheLane(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		good, tries, reloads := false, 0, 0
		b.api.onUpload = func() error {
			if tries++; good {
				return nil
			}
			return apiError(llm.Fatal, 401, "invalid key")
		}
		b.reload = func() error {
			if reloads++; reloads == 30 {
				good = true
			}
			return nil
		}
		b.rows = 100
		b.open()
		time.Sleep(10 * time.Minute)
		if s := b.lane.Status(); !strings.Contains(s.Paused, "invalid key") {
			t.Errorf("got %+v", s)
		}
		b.finish(3 * time.Hour)
		if tries > 31 || len(b.api.batches) != 1 {
			t.Errorf("%d uploads, %d batches", tries, len(b.api.batches))
		}
	})
}

func TestNoBatchGoesWithoutMoney(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		money := 1.5
		b.reserve = func(_ string, usd float64) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if usd > money {
				return errors.New("the ceiling is reached")
			}
			money -= usd
			return nil
		}
		b.rows = 200
		b.open()
		time.Sleep(2 * time.Hour)
		if s := b.lane.Status(); len(b.api.batches) != 1 || !strings.Contains(s.Paused, "ceiling") {
			t.Errorf("%d batches, paused by %q", len(b.api.batches), s.Paused)
		}
		b.mu.Lock()
		money = 10
		b.mu.Unlock()
		b.finish(3 * time.Hour)
	})
}

func TestAnUnknownBatchIsPatientlyLookedFor(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		since := time.Now()
		b.api.onGet = func(*remote) error {
			if time.Since(since) < 8*time.Minute {
				return batchapi.ErrNotFound
			}
			return nil
		}
		b.run(100, 3*time.Hour)
		b.check()
		if len(b.api.batches) != 1 {
			t.Errorf("%d batches", len(b.api.batches))
		}
	})
}
