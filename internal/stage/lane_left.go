package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// laneNamed is how many open batches an error or a log line names; the others are
// counted.
const laneNamed = 5

// FindLane looks for batches that earlier processes of the stage have left open, before
// [New]. The settings of the lane may be gone, or may have changed, while a provider
// works on these batches. Without this look nobody would collect them: all their rows
// would be called again, and both the batches and the calls would be billed.
//
// The last claims of the partitions name the lane of their owners, so a stage that never
// had a lane reads nothing that it would not read anyway. Where the settings ask for no
// lane, cfg becomes that of a stage that collects, see [config.Config.CollectLane]. Where
// the batches can't be collected, the error lists the choices.
//
// A lane without open batches is taken over, too, if its last owner may have opened some:
// in a rolling update another replica may do so until it stops, and this one may be the
// next owner.
func FindLane(
	ctx context.Context, cfg *config.Config, conn *natsconn.Conn, log *slog.Logger,
) error {
	found, err := claimedLanes(ctx, cfg, conn)
	if err != nil {
		// The check of the streams comes later and names each problem with its setting.
		// A stream with a problem may be the reason why the claim can't be read, and the
		// check then says more than the failed read.
		looks := stored.Streams(cfg)
		looks.Create = false
		return cmp.Or(config.Explained(streams.Ensure(ctx, conn.NC(), looks)), err)
	}
	if len(found) == 0 {
		return nil
	}
	js, err := streams.JetStream(conn.NC())
	if err != nil {
		return err
	}

	// With several lanes, those with open batches go first, then those that may get some.
	var collect *leftLane
	for i := range found {
		l := &found[i]
		if err := l.read(ctx, js, cfg); err != nil {
			return err
		}
		if why := l.refusal(cfg); why != "" {
			return config.Invalid(errors.New(why))
		}
		switch {
		case collect == nil || len(l.open) > 0:
			collect = l
		case len(collect.open) == 0 && !l.closing:
			collect = l
		}
	}

	if cfg.LaneOn() || len(collect.open) == 0 && (collect.closing || !canCollect(cfg)) {
		return nil
	}
	cfg.CollectLane(collect.stream, collect.rows, collect.poll)
	if len(collect.open) > 0 {
		log.Warn("batches are open at the provider, and no STAGE_LANE is set: "+
			"they are collected, no new one is opened, and all other rows are called live",
			slog.Int("batches", len(collect.open)), slog.Int("rows", collect.openRows()),
			slog.String("batch", collect.names()))
	}
	return nil
}

// left returns an error where the batches of an earlier owner's lane are open and this
// process, which has no lane, would call their rows again. [FindLane] can't find these:
//
//  1. Replica A starts, with the settings of the lane.
//  2. Replica B starts without them. FindLane finds no claim of A yet.
//  3. A claims the partition, opens batches, and is killed.
//  4. B claims the partition. The claim of A names the lane, and B calls left.
//
// B then waits with the rows, and says that it must be started again: its next process
// finds the batches.
func (b *batchLanes) left(ctx context.Context, claimed *streams.ClaimedLane) error {
	js, err := streams.JetStream(b.Conn.NC())
	if err != nil {
		return err
	}
	l := leftLane{stream: claimed.Stream}
	if err := l.read(ctx, js, b.Cfg); err != nil {
		return err
	}
	if len(l.open) == 0 {
		return nil
	}
	return &streams.UnfitError{Err: fmt.Errorf("the replica that served the partition before has "+
		"left open batches: %d with %d rows, recorded in stream %s (%s); "+
		"this replica has no STAGE_LANE and has started before they were opened: "+
		"start it again, and it collects them",
		len(l.open), l.openRows(), l.stream, l.names())}
}

// leftLane is a lane that earlier processes had.
type leftLane struct {
	stream  string
	rows    int // most rows in batches, or 0 if it is unknown
	poll    time.Duration
	closing bool // its last owners opened no batches
	open    []lane.Batch
}

// claimedLanes returns the lanes that the last claims name, one for each stream. The
// claims of older versions name none. On an embedded server, where everything may be
// read, the stream itself is then looked at.
func claimedLanes(
	ctx context.Context, cfg *config.Config, conn *natsconn.Conn,
) ([]leftLane, error) {
	var found []leftLane
	for p := range cfg.Streams.Partitions {
		c, _, err := streams.LastClaim(ctx, conn.NC(), cfg.Result.Stream,
			streams.ClaimSubject(cfg.Result.Subject, cfg.Name, p))
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, nil // nobody has served the stage before
		case err != nil:
			return nil, err
		case c == nil:
			continue
		case c.Lane == nil:
			if len(cfg.NATS.URL) == 0 && len(found) == 0 {
				found = append(found, leftLane{stream: cfg.Lane.Stream, closing: true})
			}
			continue
		}
		i := slices.IndexFunc(found, func(l leftLane) bool { return l.stream == c.Lane.Stream })
		if i < 0 {
			i, found = len(found), append(found, leftLane{stream: c.Lane.Stream, closing: true})
		}
		found[i].rows = max(found[i].rows, c.Lane.Rows)
		found[i].poll = max(found[i].poll, time.Duration(c.Lane.PollMS)*time.Millisecond)
		found[i].closing = found[i].closing && c.Lane.Collects
	}
	return found, nil
}

// read fills in which of the lane's batches are open. A stream that does not exist has
// none.
func (l *leftLane) read(ctx context.Context, js jetstream.JetStream, cfg *config.Config) error {
	all, err := lane.Batches(ctx, js, l.stream, cfg.Name, cfg.Streams.Partitions, time.Now())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("earlier processes of this stage had a batch lane, "+
			"whose batches may be open: %w; allow this (see the permissions of the batch lane), "+
			"or delete stream %s if no batch is open", err, l.stream)
	}
	l.open = slices.DeleteFunc(all, func(b lane.Batch) bool { return !b.Open() })
	return nil
}

// refusal returns why a stage of this configuration can't collect the open batches, and
// the choices. It returns "" if it can.
func (l *leftLane) refusal(cfg *config.Config) string {
	if len(l.open) == 0 {
		return ""
	}
	provider := l.open[0].Provider
	for _, b := range l.open {
		if b.Provider != cfg.LLM.Provider {
			provider = b.Provider
		}
	}
	var change string
	switch {
	case provider != cfg.LLM.Provider:
		change = fmt.Sprintf("STAGE_LLM_PROVIDER is %s now, which does not know them: "+
			"set it back to %s", cfg.LLM.Provider, provider)
	case cfg.LaneOn() && cfg.Lane.Stream != l.stream:
		change = fmt.Sprintf("STAGE_LANE_STREAM is %s now: set it back to %s", cfg.Lane.Stream,
			l.stream)
	case !cfg.Journal.Enabled:
		change = "STAGE_JOURNAL is false now, and their answers wait there: set it to true"
	case cfg.FansOut():
		change = "STAGE_FOREACH is set now, and they answer whole rows: unset it"
	default:
		return ""
	}
	return fmt.Sprintf("open batches of this stage: %d with %d rows at %s, "+
		"recorded in stream %s (%s); %s until they are collected. Or give them up, "+
		"at the price of what they answer: cancel them with `stage lane cancel` and the settings "+
		"of %s, and purge their records with `nats stream purge %s --subject 'lane.%s.>'` (of a "+
		"job of process: start it with --fresh); their rows are then called again",
		len(l.open), l.openRows(), provider, l.stream, l.names(), change, provider, l.stream,
		cfg.Name)
}

// canCollect reports whether a stage of this configuration can have a lane.
func canCollect(cfg *config.Config) bool {
	return cfg.Journal.Enabled && !cfg.FansOut() && config.HasBatchAPI(cfg.LLM.Provider)
}

// openRows returns how many rows the open batches have.
func (l *leftLane) openRows() (n int) {
	for _, b := range l.open {
		n += b.Rows
	}
	return n
}

// names names the first open batches, for an error or a log line.
func (l *leftLane) names() string {
	var names []string
	for i, b := range l.open {
		if i == laneNamed {
			names = append(names, fmt.Sprintf("and %d more", len(l.open)-laneNamed))
			break
		}
		names = append(names, b.Token)
	}
	return strings.Join(names, ", ")
}
