package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
)

// aheadReadMost bounds the reading of the log at a take-over, with all attempts at it.
const aheadReadMost = time.Minute

// lineUp makes the reorder buffer of the term. Where rows above the low-water mark are
// emitted, it finds out which from the log: they come again behind the reset, and must
// not be answered again.
func (t *term) lineUp(ctx, soft context.Context, lost <-chan nats.Status) (err error) {
	var finished []uint64
	if t.own.end.ahead > 0 {
		if finished, err = t.readAhead(ctx, soft, lost); err != nil {
			return err
		}
	}
	for _, seq := range finished {
		t.c.carried.emitted(seq)
	}
	limits := t.c.order.limits(&t.c.cfg)
	if t.window.buf, err = sequencer.New[place](limits, t.own.end.low, finished); err != nil {
		return fatal(fmt.Errorf("consumer: window: %w", err))
	}
	if limits.Shared || limits.Parked > 0 { // in any other case no row is ever away
		err = t.openReturns()
	}
	return err
}

// readAhead reads the log from the first result of a row above the low-water mark on.
// Meanwhile the pin is renewed, because reading may take longer than it lasts:
//
//	A takes over and reads for two seconds. Its pin runs out after one.
//	B finds nobody pinned, claims the partition, and reads as well. A is fenced.
//	B's pin runs out while it reads. A claims again, and so on.
//
// The reading ends at once when the stage stops or the connection is lost: as long as the
// pin is renewed nobody else could take over.
func (t *term) readAhead(ctx, soft context.Context, lost <-chan nats.Status) (
	finished []uint64, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, aheadReadMost)
	defer cancel()
	err = t.in.whilePinned(ctx, soft, lost, func(ctx context.Context) (err error) {
		finished, err = t.c.results.finishedAhead(ctx, t.own.end, &t.own.ahead)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.c.at("ahead read")
	return finished, nil
}
