package natsconn

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/stopping"
)

// disk is a server whose disk the test fills.
type disk struct {
	free     atomic.Int64
	failure  atomic.Pointer[string]
	failed   chan struct{}
	restarts atomic.Int32
	fails    atomic.Bool // a restart fails
	again    atomic.Bool // a write fails right after a restart
}

func (d *disk) Dir() string             { return "/d" }
func (d *disk) Free() (int64, bool)     { return d.free.Load(), true }
func (d *disk) Failed() <-chan struct{} { return d.failed }

func (d *disk) Failure() string {
	if why := d.failure.Load(); why != nil {
		return *why
	}
	return ""
}

func (d *disk) fail() {
	why := "Critical write error: write 1.blk: no space left on device"
	d.failure.Store(&why)
	d.failed <- struct{}{}
}

func (d *disk) Restart() error {
	d.restarts.Add(1)
	if d.fails.Load() {
		return errors.New("it does not start")
	}
	d.failure.Store(nil)
	if d.again.Load() {
		d.fail()
	}
	return nil
}

// TestTheServerStartsAgainOnceThereIsRoom goes through what may befall a disk.
func TestTheServerStartsAgainOnceThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{failed: make(chan struct{}, 1)}
		d.free.Store(1 << 30)
		c := &Conn{}
		defer stopping.Background(t.Context(), func(ctx context.Context) { c.watchRoom(ctx, d, slog.New(slog.DiscardHandler)) })()
		var seen []string
		defer c.OnFull(func(err error) {
			switch {
			case err == nil && len(seen) > 0 && seen[len(seen)-1] != "":
				seen = append(seen, "")
			case err != nil && (len(seen) == 0 || seen[len(seen)-1] != err.Error()):
				seen = append(seen, err.Error())
			}
		})()
		want := func(when, why string, restarts int32) {
			t.Helper()
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			got := ""
			if err := c.Full(); err != nil {
				got = err.Error()
			}
			if (got == "") != (why == "") || !strings.Contains(got, why) || d.restarts.Load() != restarts {
				t.Errorf("%s: %q after %d restarts, want %q after %d", when, got, d.restarts.Load(), why, restarts)
			}
		}
		want("at first", "", 0)
		d.free.Store(roomMin - 1)
		want("with little room", "the disk is full: 8.0 MiB free at /d: make room, at least 16 MiB", 0)
		d.free.Store(roomAgain - 1)
		want("with some room", "the disk is full", 0)
		d.free.Store(roomAgain)
		want("with room, and no write that failed", "", 0)
		d.free.Store(0)
		d.fail()
		want("when a write has failed", "the disk is full: 0 B free at /d", 0)
		d.fails.Store(true)
		d.free.Store(1 << 30)
		want("while it does not start", "it does not start", 2)
		d.fails.Store(false)
		time.Sleep(time.Minute)
		want("once it starts", "", 3)
		if len(seen) == 0 || seen[len(seen)-1] != "" {
			t.Errorf("what was reported ends with %q, want that there is room", seen)
		}

		d.again.Store(true)
		d.fail()
		time.Sleep(10 * time.Minute)
		if n := d.restarts.Load(); n < 10 || n > 25 {
			t.Errorf("%d restarts in ten minutes of writes that fail at once, want a few", n)
		}
		want("then", "a write to the store in /d has failed", d.restarts.Load())
	})
}
