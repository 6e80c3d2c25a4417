package load

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// groupWait bounds how long the first row of a group waits for others, so that a row that
// comes alone is called at once. Reading a full group from a file takes less.
const groupWait = 20 * time.Millisecond

// errQuiet ends a group whose source has no further row at the moment.
var errQuiet = errors.New("no row at the moment")

// ahead reads a source in the background, one row ahead. A read of a pipe or a terminal may
// wait for ever, and the rows that came before must be published meanwhile.
type ahead struct {
	rows chan aheadRow
	over chan struct{} // closed by stop
}

type aheadRow struct {
	m   *nats.Msg
	err error
}

// readAhead begins to read rows until next fails. The caller must call stop, after which
// the read under way ends by itself.
func readAhead(next func() (*nats.Msg, error)) *ahead {
	a := &ahead{rows: make(chan aheadRow), over: make(chan struct{})}
	go func() {
		for {
			m, err := next()
			select {
			case a.rows <- aheadRow{m, err}:
			case <-a.over:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return a
}

func (a *ahead) stop() { close(a.over) }

// group returns the rows of the next group: it waits for the first, and returns errQuiet
// when no other comes in time.
func (a *ahead) group(ctx context.Context) func() (*nats.Msg, error) {
	var wait <-chan time.Time // nil until the first row has come
	return func() (*nats.Msg, error) {
		select {
		case row := <-a.rows:
			if wait == nil {
				wait = time.After(groupWait)
			}
			return row.m, row.err
		case <-wait:
			return nil, errQuiet
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
