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

// stalls is what the watch over the progress has found. Safe for concurrent use.
type stalls struct {
	mu     sync.Mutex
	why    map[int]string // by partition
	vacant map[int]bool   // nobody has the partition, and no row waits
}

func (s *stalls) of(partition int) (why string, vacant bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why[partition], s.vacant[partition]
}

func (s *stalls) set(partition int, why string, vacant bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why, s.vacant = make(map[int]string), make(map[int]bool)
	}
	s.why[partition], s.vacant[partition] = why, vacant
}

// watchProgress looks at each partition again and again until ctx ends, and notices one
// in which nothing moves although rows wait. It shares nothing with what serves the
// partitions: a fault there, whatever it is, must not hide itself.
func (s *Stage) watchProgress(ctx context.Context) {
	var looks sync.WaitGroup
	defer looks.Wait()
	for _, c := range s.consumers {
		looks.Go(func() { s.watchPartition(ctx, c) })
	}
}

// watchPartition is [Stage.watchProgress] for one partition.
func (s *Stage) watchPartition(ctx context.Context, c *consumer.Consumer) {
	var watch status.Watch
	var began, warned time.Time
	name := streams.DurableName(s.Cfg.Name, c.Status().Partition)
	for wait := time.Second; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		sight := s.sight(ctx, c, name)
		partition, why := c.Status().Partition, watch.Saw(sight)
		rows := sight.Pending+sight.AckPending > 0
		s.stalls.set(partition, why, sight.Asked && !sight.Pinned && !rows && !sight.Mine)
		switch log := s.Log.With(slog.Int("partition", partition)); {
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
func (s *Stage) sight(ctx context.Context, c *consumer.Consumer, name string) status.Sight {
	snap := s.look(c)
	snap.Collect(time.Now())
	st, stats := &snap.Partitions[0], &snap.Pool
	v := status.Sight{
		Mine: st.Role == consumer.Owner || st.Taking, Emitted: st.Emitted, Mark: st.HighWaterMark,
		Open: st.Window + st.SetAside, Answered: st.Buffered, Parked: st.Parked, Begun: s.caller.Begun(st.Partition),
		InFlight: stats.InFlight, Waiting: stats.Waiting, Held: snap.Stops(st.Partition), Throttled: snap.Throttled(),
		Dispatch: dispatchMost + s.Cfg.LLM.Timeout + s.Cfg.Retry.MaxDelay,
	}
	if !v.Held {
		asked, cancel := context.WithTimeout(ctx, stallAsk)
		defer cancel()
		if info, err := s.askDurable(asked, name); err == nil {
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
func (s *Stage) askDurable(ctx context.Context, name string) (*jetstream.ConsumerInfo, error) {
	js, err := streams.JetStream(s.Conn.NC())
	if err != nil {
		return nil, err
	}
	durable, err := js.Consumer(ctx, s.Cfg.Input.Stream, name)
	if err != nil {
		return nil, err
	}
	return durable.CachedInfo(), nil
}
