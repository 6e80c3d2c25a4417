package budget

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// deniedFor is how long to take no part after the server has denied a message or a
// subscription: each attempt is an error in its log. The permission may be granted
// meanwhile.
const deniedFor = time.Minute

// denial is what the server does not allow.
type denial struct {
	mu    sync.Mutex // guards the rest, for a few instructions
	until time.Time
	told  bool
}

// denied reports whether the server has denied something of late.
func (b *Budget) denied() bool {
	b.denial.mu.Lock()
	defer b.denial.mu.Unlock()
	return time.Now().Before(b.denial.until)
}

// watchErrors takes the errors of the budget's subjects from the connection's handler,
// which would report each of them, until stop is called.
func (b *Budget) watchErrors() (stop func()) {
	nc := b.nc.Load()
	others := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		switch {
		case errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+strings.TrimSuffix(Subject(b.cfg.Name), ">")):
			b.deny(err)
		case others != nil:
			others(nc, sub, err)
		}
	})
	return func() { nc.SetErrorHandler(others) }
}

// deny notes that the server has denied something. The first time it is reported.
func (b *Budget) deny(err error) {
	b.denial.mu.Lock()
	defer b.denial.mu.Unlock()
	b.denial.until = time.Now().Add(deniedFor)
	if b.denial.told {
		return
	}
	b.denial.told = true
	b.cfg.Logger.Warn("the shared budget is denied, so this process throttles by itself: its NATS user must be allowed to publish and subscribe",
		slog.String("subject", Subject(b.cfg.Name)), slog.Any("error", err))
}
