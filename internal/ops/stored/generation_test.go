package stored_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

// Of a stream that is missing for a moment only a reader that can't ask takes what comes
// for another one.
func TestAMissingStreamIsAnotherOneOnlyForThoseWhoDoNotAsk(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		for ask, want := range map[bool]int{false: 2, true: 0} {
			restarts, waits, reads := 0, 0, 0
			g := stored.Generation{Ask: ask, Restart: func() { restarts++ }}
			broken := errors.New("connection lost")
			err := g.Follow(t.Context(), func() error {
				if reads++; reads < 3 {
					return jetstream.ErrStreamNotFound
				}
				return broken
			}, func() { waits++ })
			if !errors.Is(err, broken) || restarts != want || waits != 1 {
				t.Errorf("ask %v: got error %v, %d restarts and %d notes that it waits; want %v, %d and 1", ask, err, restarts, waits, broken, want)
			}
		}
	})
}

func TestAStreamThatWasCreatedAgainIsAnotherOne(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		restarts := 0
		g := stored.Generation{Ask: true, Restart: func() { restarts++ }}
		look := func(want int) {
			t.Helper()
			stagetest.Must(t, g.Look(t.Context(), b.JS, "ROWS"))
			if restarts != want {
				t.Errorf("got %d restarts, want %d", restarts, want)
			}
		}
		look(1) // nothing is read yet
		look(1)
		stream := stagetest.Value(b.JS.Stream(t.Context(), "ROWS"))(t)
		time.Sleep(time.Second)
		stagetest.Must(t, b.JS.DeleteStream(t.Context(), "ROWS"))
		if err := g.Look(t.Context(), b.JS, "ROWS"); !errors.Is(err, jetstream.ErrStreamNotFound) || restarts != 1 {
			t.Errorf("without the stream: got error %v and %d restarts", err, restarts)
		}
		stagetest.Value(b.JS.CreateStream(t.Context(), stream.CachedInfo().Config))(t)
		look(2)
	})
}
