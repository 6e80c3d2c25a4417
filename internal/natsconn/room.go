package natsconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
)

const (
	// roomLook is the time between two looks at the disk of the embedded server.
	roomLook = time.Second
	// roomMin is the room that must be left on the disk for calls to begin. The replies
	// of the calls in flight still have to be stored, each in a result, an event and
	// perhaps the journal: 64 calls with replies of 10 KB take 2 MB. It is a block of the
	// server's files, which it writes once more when it compacts one.
	roomMin = 8 << 20
	// roomAgain is the room after which they begin again. It is more than roomMin, or a
	// disk at the brink would have calls begin and stop each second.
	roomAgain = 2 * roomMin
	// restartFirst and restartMost bound the wait before the server is started again once
	// more, where a write has failed soon after the last time.
	restartFirst = time.Second
	restartMost  = time.Minute
)

// OnFull has f called with why nothing can be stored on the embedded server, and with nil
// when something can, each time that this changes, and at once with the present state,
// until stop is called. F must not block, and must not call methods of c.
func (c *Conn) OnFull(f func(error)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.fullers)
	c.fullers = append(c.fullers, f)
	f(c.full)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fullers[i] = func(error) {}
	}
}

// Full returns why nothing can be stored on the embedded server at the moment: its disk
// is full, or a write has failed. It returns nil if something can be stored, or if
// another process runs the server.
func (c *Conn) Full() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full
}

func (c *Conn) setFull(err error) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = (c.full == nil) != (err == nil)
	c.full = err
	for _, f := range c.fullers {
		f(err)
	}
	return changed
}

// store is what [Conn.WatchRoom] needs of the embedded server.
type store interface {
	Dir() string
	Free() (bytes int64, ok bool)
	Failure() string
	Failed() <-chan struct{}
	Restart() error
}

// WatchRoom looks at the disk of the embedded server until ctx ends. It reports when the
// room is too small for calls to begin (see [Conn.OnFull]). After a failed write the
// streams store nothing, even on an empty disk, until the server is started again;
// WatchRoom starts it again once there is room.
func (c *Conn) WatchRoom(ctx context.Context, log *slog.Logger) {
	if c.Server == nil {
		return
	}
	c.watchRoom(ctx, c.Server, log)
}

func (c *Conn) watchRoom(ctx context.Context, srv store, log *slog.Logger) {
	r := room{srv: srv, log: log}
	ticker := time.NewTicker(roomLook)
	defer ticker.Stop()
	for {
		now := time.Now()
		why := r.short()
		if c.setFull(why) {
			if why != nil {
				log.Error("no call begins until something can be stored; no row is lost", slog.Any("error", why))
			} else {
				log.Info("results can be stored again, calls begin")
			}
		}
		if why != nil && r.restart(now) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-srv.Failed():
		case <-ticker.C:
		}
	}
}

// room is the free space on the disk of a server, as far as it is known.
type room struct {
	srv   store
	log   *slog.Logger
	full  bool          // there was too little at the last look
	next  time.Time     // no restart before
	wait  time.Duration // between the last restart and next
	again error         // why the last restart failed, or nil
}

// short returns why nothing can be stored, or nil.
func (r *room) short() error {
	free, known := r.srv.Free()
	need := int64(roomMin)
	if r.full {
		need = roomAgain
	}
	failure := r.srv.Failure()
	if r.full = known && free < need; r.full {
		return fmt.Errorf("the disk is full: %s free at %s: make room, at least %s", terminal.Bytes(max(0, free)), r.srv.Dir(), terminal.Bytes(roomAgain))
	}
	switch {
	case r.again != nil:
		return fmt.Errorf("the store in %s: %w", r.srv.Dir(), r.again)
	case failure != "":
		return fmt.Errorf("a write to the store in %s has failed, and its server is started again: %w", r.srv.Dir(), errors.New(failure))
	}
	return nil
}

// restart starts the server again, if that may help by now, and reports whether it has.
func (r *room) restart(now time.Time) bool {
	if r.full || now.Before(r.next) {
		return false
	}
	if now.Sub(r.next) > restartMost {
		r.wait = 0
	}
	r.log.Warn("starting the embedded NATS server again: it stores nothing since a write has failed", slog.String("store", r.srv.Dir()))
	r.again = r.srv.Restart()
	r.wait = min(max(2*r.wait, restartFirst), restartMost)
	r.next = time.Now().Add(r.wait)
	if r.again != nil {
		r.log.Error("the embedded NATS server does not start, trying again", slog.Any("error", r.again))
	}
	return r.again == nil
}
