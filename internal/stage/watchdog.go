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

// The watchdog looks at a partition more often the more likely it is to be stalled, since
// each look asks the server.
const (
	// stallLook is the time between two looks at a partition with rows that this replica
	// owns or that nobody owns. stallLookIdle is for a partition without rows, and
	// stallLookOthers for one that another replica owns.
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

// watchdog looks at each partition again and again, and notices one in which nothing
// moves although rows wait. It shares nothing with the parts that serve the partitions,
// so that a fault there, whatever it is, can't hide itself. It is safe for concurrent
// use: one goroutine for each partition writes, and pages read.
type watchdog struct {
	*view
	mu     sync.Mutex
	why    map[int]string // why a partition stands still, by partition
	vacant map[int]bool   // partitions that nobody owns, and where no row waits
}

// of returns the last finding: why a partition stands still, or "" if it does not, and
// whether nobody owns it.
func (w *watchdog) of(partition int) (why string, vacant bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why[partition], w.vacant[partition]
}

// set notes a finding.
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

// watchPartition watches one partition until ctx ends. status.Watch compares two looks
// and decides whether the partition moves; this is the loop around it, and the log.
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
			log.Warn("no progress although rows wait, and no reason is known",
				slog.String("seen", why))
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

// sight takes one look at a partition. It asks the server only if nothing else explains
// why rows wait: with a known hold there is nothing to find.
func (w *watchdog) sight(ctx context.Context, c *consumer.Consumer, name string) status.Sight {
	snap := w.look(c)
	snap.Collect(time.Now())
	st, stats := &snap.Partitions[0], &snap.Pool
	v := status.Sight{
		Mine: st.Role == consumer.Owner || st.Taking, Emitted: st.Emitted, Mark: st.HighWaterMark,
		Open: st.Window + st.SetAside, Answered: st.Buffered, Parked: st.Parked,
		Begun:    w.caller.Begun(st.Partition),
		InFlight: stats.InFlight, Waiting: stats.Waiting, Held: snap.Stops(st.Partition),
		Throttled: snap.Throttled(),
		Dispatch:  dispatchMost + w.Cfg.LLM.Timeout + w.Cfg.Retry.MaxDelay,
	}
	if !v.Held {
		asked, cancel := context.WithTimeout(ctx, stallAsk)
		defer cancel()
		if info, err := w.askDurable(asked, name); err == nil {
			v.Asked, v.Pending = true, info.NumPending
			v.AckPending = uint64(max(info.NumAckPending, 0))
			for _, g := range info.PriorityGroups {
				v.Pinned = v.Pinned || g.PinnedClientID != ""
			}
		}
	}
	v.At = time.Now()
	return v
}

// askDurable asks the server for the counts of the durable consumer, over the present
// connection.
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
