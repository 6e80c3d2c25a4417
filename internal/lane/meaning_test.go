package lane

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// The same status means something else for each kind of request.
func TestAFailureMeansWhatWasAskedFor(t *testing.T) {
	refusal := func(status int, class llm.Class) error {
		return &llm.Error{Status: status, Class: class, Err: errors.New("no")}
	}
	notFound := fmt.Errorf("%w: %w", batchapi.ErrNotFound, refusal(404, llm.Fatal))
	gone := fmt.Errorf("%w: %w", batchapi.ErrNotFound, refusal(410, llm.Permanent))
	fileOfOthers := fmt.Errorf("%w: %w", batchapi.ErrNotFound, refusal(403, llm.Fatal)) // Gemini
	tests := []struct {
		name string
		err  error
		want [requests]meaning // uploading, creating, finding, polling, fetching, cancelling, withdrawing, deleting
	}{
		{"no such key", refusal(401, llm.Fatal), [...]meaning{account, account, account, account, account, account, account, passing}},
		{"no credit", refusal(402, llm.Fatal), [...]meaning{account, account, account, account, account, account, account, passing}},
		{"not allowed", refusal(403, llm.Fatal), [...]meaning{account, account, account, account, account, done, done, passing}},
		{"not found", notFound, [...]meaning{noAPI, noAPI, noAPI, unknown, unknown, done, done, done}},
		{"gone", gone, [...]meaning{noAPI, noAPI, noAPI, unknown, unknown, done, done, done}},
		{"a file that is not there any more", fileOfOthers, [...]meaning{noAPI, noAPI, noAPI, unknown, unknown, done, done, done}},
		{"no such method", refusal(405, llm.Permanent), [...]meaning{noAPI, noAPI, noAPI, passing, unknown, done, passing, passing}},
		{"not implemented", refusal(501, llm.Permanent), [...]meaning{noAPI, noAPI, noAPI, passing, unknown, done, passing, passing}},
		{"bad request", refusal(400, llm.Permanent), [...]meaning{refused, refused, passing, passing, unknown, done, passing, passing}},
		{"too large", refusal(413, llm.Permanent), [...]meaning{refused, refused, passing, passing, unknown, done, passing, passing}},
		{"over already", refusal(409, llm.Transient), [...]meaning{passing, passing, passing, passing, passing, done, passing, passing}},
		{"a redirect", refusal(302, llm.Fatal), [...]meaning{account, account, account, account, account, account, account, passing}},
		{"too many", refusal(429, llm.Capacity), [...]meaning{passing, crowded, passing, passing, passing, passing, passing, passing}},
		{"a full queue as 403", refusal(403, llm.Capacity), [...]meaning{passing, crowded, passing, passing, passing, passing, passing, passing}},
		{"the server's own failure", refusal(500, llm.Transient), [requests]meaning{}},
		{"no reply", refusal(0, llm.Transient), [requests]meaning{}},
		{"the time is over", errors.New("context deadline exceeded"), [requests]meaning{}},
	}
	names := [requests]string{"uploading", "creating", "finding", "polling", "fetching", "cancelling", "withdrawing", "deleting"}
	for _, tt := range tests {
		for r, want := range tt.want {
			if got := meaningOf(request(r), tt.err); got != want { //nolint:gosec // few
				t.Errorf("%s, %s: got meaning %d, want %d", tt.name, names[r], got, want)
			}
		}
	}
}

func unknownFile() error {
	return fmt.Errorf("%w: %w", batchapi.ErrNotFound, &llm.Error{Status: 404, Class: llm.Fatal, Err: errors.New("no such file")})
}

// One 404 for the results of a batch that has ended is no reason to pause, and not to pay again.
func TestResultsThatAreUnknownForAMomentAreReadAgain(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.paused = func(err error) { t.Errorf("paused: %v", err) }
		b.api.cut = func(pass, _ int) error {
			if pass < 5 {
				return unknownFile()
			}
			return nil
		}
		b.run(100, 3*time.Hour)
		b.check()
		if len(b.api.batches) != 1 || len(b.calls) > 0 {
			t.Errorf("got %d batches and %d live calls", len(b.api.batches), len(b.calls))
		}
	})
}

// Results that stay unknown count as gone, and the rows go again.
func TestResultsThatStayUnknownCountAsGone(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.paused = func(err error) { t.Errorf("paused: %v", err) }
		b.reply = func(uint64, *Errand) bool { return true }
		began := time.Now()
		var second time.Duration
		b.api.cut = func(int, int) error {
			if len(b.api.batches) > 1 {
				return nil
			}
			return unknownFile()
		}
		b.api.onCreated = func(n int) error {
			if n == 1 {
				second = time.Since(began)
			}
			return nil
		}
		b.run(100, 5*time.Hour)
		b.check()
		if len(b.api.batches) != 2 || len(b.calls) > 0 {
			t.Errorf("got %d batches and %d live calls", len(b.api.batches), len(b.calls))
		}
		if least := b.api.takes + 10*time.Minute; second < least {
			t.Errorf("the rows went again after %v, want %v at least", second, least)
		}
		if e := b.ended()[0]; e.Missing != 100 || e.Answered != 0 || e.Reason == "" {
			t.Errorf("got %+v", e)
		}
	})
}

// A 404 of a creation may pass, or be about the file: that is uploaded once more.
func TestACreationThatIsUnknownForAMomentIsTriedAgain(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.paused = func(err error) { t.Errorf("paused: %v", err) }
		tries := 0
		b.api.onCreate = func(int, batchapi.Job) error {
			if tries++; tries < 4 {
				return unknownFile()
			}
			return nil
		}
		b.run(100, 3*time.Hour)
		b.check()
		if len(b.api.batches) != 1 || len(b.api.files) > 3 {
			t.Errorf("got %d batches and %d files", len(b.api.batches), len(b.api.files))
		}
	})
}

// Where no Batch API answers, the lane pauses, says what to check, and goes on when there is one.
func TestALaneWithoutABatchAPIPauses(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		var why error
		b.paused = func(err error) { why = err }
		b.api.onUpload = func() error {
			if why == nil {
				return unknownFile()
			}
			return nil
		}
		b.run(100, 3*time.Hour)
		b.check()
		if why == nil || !errors.Is(why, batchapi.ErrNotFound) {
			t.Fatalf("the lane has not paused for that: %v", why)
		}
		for _, text := range []string{"STAGE_LLM_BASE_URL", "Batch API"} {
			if !contains(why.Error(), text) {
				t.Errorf("%q does not name %s", why, text)
			}
		}
	})
}
