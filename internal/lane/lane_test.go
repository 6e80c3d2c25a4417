package lane

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/llm"
)

func TestRowsAreAnsweredByABatch(t *testing.T) {
	inBothKinds(t, func(t *testing.T, b *bench) {
		b.open()
		b.add(250)
		b.settle(2 * time.Hour)
		b.check()
		if got, want := len(b.api.batches), 3; got != want {
			t.Errorf("got %d batches, want %d", got, want)
		}
		if len(b.calls) > 0 || len(b.api.deleted) != 3 {
			t.Errorf("got %d live calls, %d batches deleted", len(b.calls), len(b.api.deleted))
		}
	})
}

// A job is over as soon as its last row is, and there may be no next term to tidy up.
func TestTheEndOfATermTidiesUp(t *testing.T) {
	inBothKinds(t, func(t *testing.T, b *bench) {
		b.open()
		b.addAndAwait(250)
		b.close()
		b.check()
		if len(b.api.deleted) != 3 {
			t.Errorf("%d batches are deleted at the provider, want 3", len(b.api.deleted))
		}
		b.checkTidy()
	})
}

func TestTheEndOfATermCountsWhatItCancels(t *testing.T) {
	inBothKinds(t, func(t *testing.T, b *bench) {
		due := time.Now().Add(10 * time.Minute)
		b.deadline = func(uint64) time.Time { return due }
		b.open()
		b.addAndAwait(150)
		b.close()
		b.check()
		if len(b.api.cancels) != 2 || len(b.api.deleted) != 2 || len(b.settled) != 2 {
			t.Errorf("of 2 batches %d were cancelled, %d deleted, %d settled", len(b.api.cancels), len(b.api.deleted), len(b.settled))
		}
		if got, want := b.phases(), "intent submitted intent submitted cancelled cancelled"; got != want {
			t.Errorf("got events %q, want %q", got, want)
		}
		b.checkTidy()
	})
}

// What ends the run of a live call ends that of a batch, too: nothing goes on without somebody's help.
func TestAPauseThatNothingEndsIsReported(t *testing.T) {
	fatal := &llm.Error{Class: llm.Fatal, Reason: llm.ReasonAPICallFailed, Provider: "mock", Status: 401, Err: errors.New("bad key")}
	for name, c := range map[string]struct {
		key     error
		reserve func(open int) error
		want    string
	}{
		"key":                     {key: fatal, want: "bad key"},
		"no room below a ceiling": {reserve: func(int) error { return errors.New("does not fit") }, want: "does not fit"},
		"one batch at a time": {reserve: func(open int) error {
			if open > 0 {
				return errors.New("does not fit now")
			}
			return nil
		}},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			var told []error
			b.paused = func(why error) { told = append(told, why) }
			b.api.onUpload = func() error { return c.key }
			if c.reserve != nil {
				b.reserve = func(string, float64) error {
					b.mu.Lock()
					defer b.mu.Unlock()
					b.reserved++
					if err := c.reserve(b.reserved - 1 - len(b.settled)); err != nil {
						b.reserved--
						return err
					}
					return nil
				}
			}
			b.open()
			b.add(250)
			if c.want == "" {
				b.await(12 * time.Hour)
			}
			time.Sleep(10 * time.Minute)
			b.close()
			switch {
			case c.want == "" && len(told) > 0:
				t.Errorf("it was told %v", told)
			case c.want != "" && (len(told) != 1 || !strings.Contains(told[0].Error(), c.want)):
				t.Errorf("it was told %v, want one error with %q", told, c.want)
			}
		})
	}
}
