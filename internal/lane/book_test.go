package lane

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestAFullStreamHoldsBatchesBack(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 100
		b.makeStream(600)
		b.open()
		time.Sleep(15 * time.Minute)
		if s := b.lane.Status(); len(b.api.batches) != 0 || !strings.Contains(s.Problem, "LANE") {
			t.Errorf("%d batches, %+v", len(b.api.batches), s)
		}
		b.makeStream(-1)
		b.finish(2 * time.Hour)
		if len(b.api.batches) != 1 {
			t.Errorf("%d batches", len(b.api.batches))
		}
	})
}

func TestRecordsThatAreGoneAreWrittenAgain(t *testing.T) {
	for name, lose := range map[string]func(b *bench) error{
		"deleted": func(b *bench) error { return b.nats.JS.DeleteStream(b.t.Context(), "LANE") },
		"purged": func(b *bench) error {
			s, err := b.nats.JS.Stream(b.t.Context(), "LANE")
			if err != nil {
				return err
			}
			return s.Purge(b.t.Context())
		},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.rows = 100
			b.open()
			b.until(10*time.Minute, "a batch", func() bool { return b.phases() == "intent submitted" })
			stagetest.Must(t, lose(b))
			time.Sleep(time.Minute)
			b.add(100) // they are not submitted while there is no stream
			time.Sleep(5 * time.Minute)
			if name == "deleted" {
				if len(b.api.batches) != 1 {
					t.Errorf("%d batches", len(b.api.batches))
				}
				b.makeStream(-1)
			}
			b.until(30*time.Minute, "the second batch", func() bool { return strings.Count(b.phases(), "submitted") == 2 })
			b.kill()
			b.lane.Close()
			b.open()
			b.finish(3 * time.Hour)
			if len(b.api.batches) != 2 {
				t.Errorf("%d batches", len(b.api.batches))
			}
		})
	}
}

func TestAnOldOwnerIsFenced(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 50
		b.open()
		old, oldProc, oldConn := b.lane, b.proc, b.nc
		time.Sleep(10 * time.Second) // rows gather
		b.open()
		b.await(3 * time.Hour)
		oldProc.dead.Store(true)
		old.Close()
		oldConn.Close()
		b.close()
		b.check()
		if !errors.Is(b.fenced, consumer.ErrFenced) || len(b.api.batches) != 1 {
			t.Errorf("fenced by %v, %d batches", b.fenced, len(b.api.batches))
		}
	})
}

func TestNothingIsLeftInTheStreamButItsEnd(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		for range 3 {
			b.rows += 200
			b.open()
			b.await(3 * time.Hour)
			b.until(time.Hour, "an empty lane", func() bool { return len(b.lane.Status().Batches) == 0 })
			time.Sleep(time.Minute)
			b.close()
		}
		if n := stagetest.Stored(t, b.nats.JS, "LANE", "lane.>"); n > 4 {
			t.Errorf("%d records are left", n)
		}
	})
}

func TestBatchesOfAnotherInputAreCancelled(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 100
		b.dieAt("submitted recorded")
		b.created = b.created.Add(time.Minute)
		b.open()
		b.settle(3 * time.Hour)
		if len(b.api.batches) != 2 || len(b.api.cancels) != 1 || b.api.cancels[0] != "batch-0" {
			t.Errorf("%d batches, cancelled %v", len(b.api.batches), b.api.cancels)
		}
	})
}
