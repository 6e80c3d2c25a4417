package consumer

import (
	"cmp"
	"context"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// survey is what the streams and the durable consumer say before a claim: the place to go
// on at, and whether it is right to go on there. It changes nothing, so it is made twice:
// at the start, so that a person sees at once what they must fix, and before each claim.
type survey struct {
	c              *Consumer
	durable        *streams.Durable
	consumer       *jetstream.ConsumerInfo
	input, results *jetstream.StreamInfo
	last           *streams.Claim // nil: there is none
	end            logEnd
}

// checkStart looks once, before this process stands by, for what would keep it from
// serving the partition: a person who starts it should see that at once, and not when its
// turn comes.
func (c *Consumer) checkStart(ctx context.Context, durable *streams.Durable) error {
	if c.started {
		return nil
	}
	_, err := c.survey(ctx, durable)
	c.started = err == nil
	return err
}

// survey looks at the streams and the durable consumer. Its error is what keeps this
// process from serving the partition.
func (c *Consumer) survey(ctx context.Context, durable *streams.Durable) (*survey, error) {
	if err := c.cfg.Streams.Look(ctx); err != nil {
		return nil, err
	}
	s := &survey{c: c, durable: durable}
	input, err := streams.Look(ctx, c.js, c.cfg.InputStream)
	if err != nil {
		return nil, err
	}
	if s.consumer, err = durable.Info(ctx); err != nil {
		return nil, err
	}
	results, err := streams.Look(ctx, c.js, c.cfg.ResultStream)
	if err != nil {
		return nil, err
	}
	s.input, s.results = input.CachedInfo(), results.CachedInfo()
	if s.end, err = c.results.readEnd(ctx); err != nil {
		return nil, err
	}
	if s.last, err = c.results.lastClaim(ctx); err != nil {
		return nil, err
	}
	if err := s.checkInput(); err != nil {
		return nil, err
	}
	if err := s.checkOrder(); err != nil {
		return nil, err
	}
	if left := c.cfg.LaneLeft; s.last != nil && s.last.Lane != nil && c.cfg.Lane == nil && left != nil {
		if err := left(ctx, s.last.Lane); err != nil {
			return nil, err
		}
	}
	return s, s.checkResume()
}

// checkInput compares the input stream with the one of the last claim.
func (s *survey) checkInput() error {
	cfg, created, claims := &s.c.cfg, s.input.Created, s.c.results.claimSubject
	switch {
	case s.last != nil && s.last.InputStream == cfg.InputStream && s.last.InputCreated.Equal(created):
	case cfg.NewInput:
		// The new stream's rows are counted from its beginning.
		s.end.logMark, s.end.newInput = logMark{}, true
	case s.last == nil && s.acked():
		return unfit(streams.NewSettingError(streams.FieldNewInput, "%w: rows of stream %s up to sequence %d are acked, but stream %s holds no claim on %s: restore it from a backup, or start under another name, or process everything again with %s",
			ErrResumePointLost, cfg.InputStream, s.consumer.AckFloor.Stream, cfg.ResultStream, claims, streams.FieldNewInput))
	case s.last == nil:
	case s.last.InputStream != cfg.InputStream:
		return fatal(streams.NewSettingError(streams.FieldNewInput, "%w: the last claim on %s is for stream %s, the input is %s: choose another name, or start with %s to begin with the new stream",
			ErrInputRecreated, claims, s.last.InputStream, cfg.InputStream, streams.FieldNewInput))
	default:
		return fatal(streams.NewSettingError(streams.FieldNewInput, "%w: stream %s was created at %s, the claim on %s knows %s: choose another name, or start with %s to begin with the new stream",
			ErrInputRecreated, cfg.InputStream, created.Format(time.RFC3339), claims, s.last.InputCreated.Format(time.RFC3339), streams.FieldNewInput))
	}
	return nil
}

// acked reports whether a row that is still there has been acked. A new consumer's ack
// floor lies right below the row that it begins with, which may be any.
func (s *survey) acked() bool {
	state := s.input.State
	return state.Msgs > 0 && s.consumer.AckFloor.Stream >= max(state.FirstSeq, s.consumer.Config.OptStartSeq)
}

// checkOrder refuses another order than the one of the last claim where rows above the
// low-water mark are emitted: in the new order they may be too early.
func (s *survey) checkOrder() error {
	cl, cfg, end := s.last, &s.c.cfg, s.end
	if cl == nil || end.ahead == 0 || cl.SameOrder(cfg.Order, cfg.OrderKey) {
		return nil
	}
	const way = "and of the rows after row %d, which wait, %d have their results already: start as before until all rows that were taken have theirs, and stop; then change it, or choose another %s now"
	if cl.Order == streams.OrderKey && cfg.Order == streams.OrderKey {
		return unfit(streams.NewSettingError(streams.FieldOrderKey, "%s is %s and was %s when the stage last ran, "+way,
			streams.FieldOrderKey, cfg.OrderKey, cl.Key, end.low, end.ahead, streams.FieldName))
	}
	return unfit(streams.NewSettingError(streams.FieldOrder, "%s is %s and was %s when the stage last ran, "+way,
		streams.FieldOrder, cfg.Order, cmp.Or(cl.Order, streams.OrderStream), end.low, end.ahead, streams.FieldName))
}

// checkResume compares the place to go on at with the place where the durable consumer
// begins.
func (s *survey) checkResume() error {
	if start := s.consumer.Config.OptStartSeq; start > s.end.low+1 && s.durable.CanReset() {
		return unfit(streams.NewSettingError(streams.FieldName, "consumer %s of stream %s begins at sequence %d, the results go on after %d: rows between would never come; choose another %s, or delete the consumer",
			s.durable.Name, s.c.cfg.InputStream, start, s.end.low, streams.FieldName))
	}
	return nil
}
