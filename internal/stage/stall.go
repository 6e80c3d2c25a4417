package stage

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// stallLook is the time between two looks at a partition that may be stalled,
	// stallLookIdle at one without rows, and stallLookOthers at one that another replica
	// has.
	stallLook       = 5 * time.Second
	stallLookIdle   = 15 * time.Second
	stallLookOthers = 30 * time.Second
	// stallAsk bounds how long the server is waited for.
	stallAsk = 3 * time.Second
	// dispatchMost is how long a slow throttle, a limit per minute or a small share of a
	// budget may keep the rows of a partition from their next call, besides the time that
	// a call may take and the wait between two attempts.
	dispatchMost = 5 * time.Minute
	// stalledAgain is the time between two warnings about the same partition.
	stalledAgain = 10 * time.Minute
)

// watchdog looks at each partition again and again, and notices one in which nothing moves
// although rows wait. It shares nothing with what serves the partitions, because a fault
// there, whatever it is, must not hide itself. Safe for concurrent use.
type watchdog struct {
	*view
	mu     sync.Mutex
	why    map[int]string // by partition
	vacant map[int]bool   // nobody has the partition, and no row waits
}

// of returns what was found last: why a partition stands still, empty if it does not, and
// whether nobody has it.
func (w *watchdog) of(partition int) (why string, vacant bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why[partition], w.vacant[partition]
}

func (w *watchdog) set(partition int, why string, vacant bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil {
		w.why, w.vacant = make(map[int]string), make(map[int]bool)
	}
	w.why[partition], w.vacant[partition] = why, vacant
}

// run watches all partitions until ctx ends.
func (w *watchdog) run(ctx context.Context) {
	var looks sync.WaitGroup
	defer looks.Wait()
	for _, c := range w.consumers {
		looks.Go(func() { w.watchPartition(ctx, c) })
	}
}

// watchPartition watches one partition until ctx ends.
func (w *watchdog) watchPartition(ctx context.Context, c *consumer.Consumer) {
	var watch status.Watch
	var began, warned time.Time
	name := streams.DurableName(w.Cfg.Name, c.Status().Partition)
	for wait := time.Second; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		sight := w.sight(ctx, c, name)
		partition, why := c.Status().Partition, watch.Saw(sight)
		rows := sight.Pending+sight.AckPending > 0
		w.set(partition, why, sight.Asked && !sight.Pinned && !rows && !sight.Mine)
		switch log := w.Log.With(slog.Int("partition", partition)); {
		case why == "" && !began.IsZero():
			log.Info("progress again", lastedAttr(sight.At.Sub(began)))
			began, warned = time.Time{}, time.Time{}
		case why != "" && sight.At.Sub(warned) >= stalledAgain:
			if began.IsZero() {
				began = sight.At
			}
			log.Warn("no progress although rows wait, and no reason is known", slog.String("seen", why))
			warned = sight.At
		}
		switch {
		case sight.Mine && (rows || sight.Open > 0), rows && !sight.Pinned:
			wait = stallLook
		case sight.Mine, !sight.Pinned:
			wait = stallLookIdle
		default:
			wait = stallLookOthers
		}
	}
}

// sight looks at a partition.
func (w *watchdog) sight(ctx context.Context, c *consumer.Consumer, name string) status.Sight {
	snap := w.look(c)
	snap.Collect(time.Now())
	st, stats := &snap.Partitions[0], &snap.Pool
	v := status.Sight{
		Mine: st.Role == consumer.Owner || st.Taking, Emitted: st.Emitted, Mark: st.HighWaterMark,
		Open: st.Window + st.SetAside, Answered: st.Buffered, Parked: st.Parked, Begun: w.caller.Begun(st.Partition),
		InFlight: stats.InFlight, Waiting: stats.Waiting, Held: snap.Stops(st.Partition), Throttled: snap.Throttled(),
		Dispatch: dispatchMost + w.Cfg.LLM.Timeout + w.Cfg.Retry.MaxDelay,
	}
	if !v.Held {
		asked, cancel := context.WithTimeout(ctx, stallAsk)
		defer cancel()
		if info, err := w.askDurable(asked, name); err == nil {
			v.Asked, v.Pending, v.AckPending = true, info.NumPending, uint64(max(info.NumAckPending, 0))
			for _, g := range info.PriorityGroups {
				v.Pinned = v.Pinned || g.PinnedClientID != ""
			}
		}
	}
	v.At = time.Now()
	return v
}

// askDurable asks the server for its counts, over the connection that there is now.
func (w *watchdog) askDurable(ctx context.Context, name string) (*jetstream.ConsumerInfo, error) {
	js, err := streams.JetStream(w.Conn.NC())
	if err != nil {
		return nil, err
	}
	durable, err := js.Consumer(ctx, w.Cfg.Input.Stream, name)
	if err != nil {
		return nil, err
	}
	return durable.CachedInfo(), nil
}
