package stopping

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stuck is a reader or writer whose calls return only once it is released, like those of a pipe without another end.
type stuck struct{ released chan struct{} }

func (s stuck) Read([]byte) (int, error)    { <-s.released; return 0, io.EOF }
func (s stuck) Write(p []byte) (int, error) { <-s.released; return len(p), nil }

func newStuck(t *testing.T) stuck {
	t.Helper()
	s := stuck{make(chan struct{})}
	t.Cleanup(func() { close(s.released) })
	return s
}

func TestPatienceEndsShortlyAfterAHardStop(t *testing.T) {
	for name, tt := range map[string]struct {
		hard, want time.Duration // hard 0: it never ends
	}{
		"no hard stop":             {0, 10 * time.Second},
		"before it begins":         {-1, 2 * time.Second},
		"in the middle":            {3 * time.Second, 5 * time.Second},
		"when it has almost ended": {9 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hard, kill := context.WithCancel(t.Context())
				defer kill()
				if tt.hard < 0 {
					kill()
				} else if tt.hard > 0 {
					time.AfterFunc(tt.hard, kill)
				}
				began := time.Now()
				ctx, cancel := Within(hard, 10*time.Second, 2*time.Second)
				defer cancel()
				<-ctx.Done()
				if got := time.Since(began); got != tt.want {
					t.Errorf("it lasted %v, want %v", got, tt.want)
				}
			})
		})
	}
}

func TestAReadThatNeverEndsIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signal := &InterruptError{Signal: os.Interrupt}
		ctx, stop := context.WithCancelCause(t.Context())
		in, feed := io.Pipe()
		r := Reader(ctx, in)
		go func() {
			_, _ = feed.Write([]byte("a row\n"))
			time.Sleep(time.Minute)
			stop(signal)
		}()
		defer feed.Close() //nolint:errcheck // a pipe's never fails
		began := time.Now()
		got, err := io.ReadAll(r)
		if string(got) != "a row\n" || !errors.Is(err, signal) || time.Since(began) != time.Minute {
			t.Errorf("read %q, %v after %v", got, err, time.Since(began))
		}
		if got, err := io.ReadAll(Reader(t.Context(), strings.NewReader("all"))); string(got) != "all" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

func TestAWriteThatNobodyTakesIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signal := &InterruptError{Signal: os.Interrupt}
		ctx, stop := context.WithCancelCause(t.Context())
		var out strings.Builder
		good := NewWriter(ctx, &out)
		bad := NewWriter(ctx, newStuck(t))
		time.AfterFunc(time.Minute, func() { stop(signal) })
		if n, err := good.Write([]byte("taken")); n != 5 || err != nil || out.String() != "taken" {
			t.Errorf("a write that is taken: %d, %v", n, err)
		}
		began := time.Now()
		if _, err := bad.Write([]byte("lost")); !errors.Is(err, signal) || time.Since(began) != time.Minute+outputPatience {
			t.Errorf("it ended with %v after %v", err, time.Since(began))
		}
		if _, err := bad.Write([]byte("lost")); !errors.Is(err, signal) {
			t.Errorf("the next write: %v", err)
		}
	})
}
