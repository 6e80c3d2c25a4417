package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ackWait is how long the server waits before it sends an unacked row to somebody else. Rows are held for as long as the
// provider has no capacity; every term sets the consumer back by itself, so the time-out has nothing to do.
const ackWait = 24 * time.Hour

// EnsureDurable does what a [Consumer] does with its durable consumer at a start, and nothing else: it creates one that is
// missing, where cfg allows it, and checks one that exists. Streams must exist. Of cfg it reads names, InputSubject,
// WindowRows, PinnedTTL and Create. What watches the durable, an autoscaler say, can so be set up before the first
// replica.
func EnsureDurable(ctx context.Context, nc *nats.Conn, cfg Config) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	cfg.setDefaults()
	c := &Consumer{cfg: cfg, nc: nc, js: js, durable: DurableName(cfg.Name, cfg.Partition)}
	_, err = c.ensureDurable(ctx)
	return err
}

// ensureDurable finds or creates the durable consumer and remembers what the streams allow.
func (c *Consumer) ensureDurable(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	input, err := c.js.Stream(ctx, c.cfg.InputStream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", c.cfg.InputStream, c.denied(err))
	}
	results, err := c.js.Stream(ctx, c.cfg.ResultStream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", c.cfg.ResultStream, c.denied(err))
	}
	largest := int32(c.nc.MaxPayload())
	if size := results.CachedInfo().Config.MaxMsgSize; size > 0 {
		largest = min(largest, size)
	}
	c.maxMessage.Store(largest)
	c.toFloor = input.CachedInfo().Config.Retention != jetstream.LimitsPolicy
	if err := c.checkResettable(); err != nil {
		return nil, err
	}

	durable, err := input.Consumer(ctx, c.durable)
	switch {
	case err == nil:
		return c.checkDurable(ctx, input, durable)
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, fmt.Errorf("look at consumer %s of stream %s: %w", c.durable, c.cfg.InputStream, c.denied(err))
	case !c.cfg.Create:
		return nil, fatalAtStart(fmt.Errorf("consumer %s of stream %s does not exist: create it, or set STAGE_CREATE_STREAMS=true", c.durable, c.cfg.InputStream))
	}
	// Another replica may create it at the same moment; the same configuration twice is no error.
	durable, err = input.CreateConsumer(ctx, c.durableConfig())
	if err != nil {
		return nil, fmt.Errorf("create consumer %s of stream %s: %w", c.durable, c.cfg.InputStream, c.denied(err))
	}
	return durable, nil
}

func (c *Consumer) durableConfig() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable:        c.durable,
		Description:    "rows of llm-stage " + c.cfg.Name,
		FilterSubject:  c.cfg.InputSubject,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckAllPolicy,
		AckWait:        ackWait,
		MaxDeliver:     -1,
		MaxAckPending:  c.cfg.WindowRows,
		PriorityPolicy: jetstream.PriorityPolicyPinned,
		PriorityGroups: []string{pinGroup},
		PinnedTTL:      c.cfg.PinnedTTL,
	}
	if c.toFloor {
		// An ack deletes the row here, so each goes for itself.
		cfg.AckPolicy = jetstream.AckExplicitPolicy
	}
	return cfg
}

// checkDurable refuses a consumer that would serve other rows or in another way, and sets its window and time-outs.
func (c *Consumer) checkDurable(ctx context.Context, input jetstream.Stream, durable jetstream.Consumer) (jetstream.Consumer, error) {
	have, want := durable.CachedInfo().Config, c.durableConfig()
	name := fmt.Sprintf("consumer %s of stream %s", c.durable, c.cfg.InputStream)
	switch {
	case have.FilterSubject != want.FilterSubject || len(have.FilterSubjects) > 0:
		return nil, fatalAtStart(fmt.Errorf("%s filters %q, the stage wants %q: choose another STAGE_NAME, or delete the consumer", name, have.FilterSubject, want.FilterSubject))
	case have.DeliverPolicy != jetstream.DeliverAllPolicy && have.DeliverPolicy != jetstream.DeliverByStartSequencePolicy: // see recreateDurable
		return nil, fatalAtStart(fmt.Errorf("%s has deliver policy %s, the stage needs %s: choose another STAGE_NAME, or delete the consumer", name, have.DeliverPolicy, want.DeliverPolicy))
	case have.AckPolicy != jetstream.AckAllPolicy && have.AckPolicy != jetstream.AckExplicitPolicy,
		c.toFloor && have.AckPolicy != jetstream.AckExplicitPolicy:
		return nil, fatalAtStart(fmt.Errorf("%s has ack policy %s, the stage needs %s: choose another STAGE_NAME, or delete the consumer", name, have.AckPolicy, want.AckPolicy))
	case have.HeadersOnly:
		return nil, fatalAtStart(fmt.Errorf("%s delivers headers only: choose another STAGE_NAME, or delete the consumer", name))
	case have.MaxRequestBatch > 0 && have.MaxRequestBatch < pullBatchLeast, have.MaxRequestExpires > 0 && have.MaxRequestExpires < c.cfg.PinnedTTL, have.MaxRequestMaxBytes > 0:
		return nil, fatalAtStart(fmt.Errorf("%s limits requests (batch %d, expires %v, bytes %d), the stage asks for %d rows at once and more: remove the limits, or delete the consumer",
			name, have.MaxRequestBatch, have.MaxRequestExpires, have.MaxRequestMaxBytes, pullBatchLeast))
	case have.PriorityPolicy != want.PriorityPolicy || !slices.Equal(have.PriorityGroups, want.PriorityGroups):
		return nil, fatalAtStart(fmt.Errorf("%s is not pinned to the group %q, so replicas would share its rows: choose another STAGE_NAME, or delete the consumer", name, pinGroup))
	case have.MaxAckPending == want.MaxAckPending && have.AckWait == want.AckWait && have.PinnedTTL == want.PinnedTTL &&
		have.MaxDeliver == want.MaxDeliver && len(have.BackOff) == 0:
		return durable, nil
	}
	if !c.cfg.Create {
		if have.MaxAckPending > 0 && have.MaxAckPending < want.MaxAckPending {
			return nil, fatalAtStart(fmt.Errorf("%s delivers at most %d rows ahead (max ack pending), the window is %d: raise the one or lower STAGE_WINDOW", name, have.MaxAckPending, want.MaxAckPending))
		}
		return durable, nil
	}
	have.MaxAckPending, have.AckWait, have.PinnedTTL, have.MaxDeliver, have.BackOff = want.MaxAckPending, want.AckWait, want.PinnedTTL, want.MaxDeliver, nil
	durable, err := input.UpdateConsumer(ctx, have)
	if err != nil {
		return nil, fmt.Errorf("set window and time-outs of %s: %w", name, c.denied(err))
	}
	return durable, nil
}

// resetDurable has the server deliver again from a sequence, with delivery counts from 1. Where acks delete rows it is
// from the ack floor instead: rows in between may be acked one by one, and those that are emitted are skipped.
func (c *Consumer) resetDurable(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if c.toFloor {
		seq = 0
	}
	if canReset(c.nc.ConnectedServerVersion()) {
		if _, err := c.js.ResetConsumerToSequence(ctx, c.cfg.InputStream, c.durable, seq); err != nil {
			return fmt.Errorf("set consumer %s back to row %d: %w", c.durable, seq, c.denied(err))
		}
		return nil
	}
	return c.recreateDurable(ctx, seq)
}

// recreateDurable does what a reset does on servers that have none (before 2.14): delete the consumer and create it anew
// at the sequence. The pin goes with it, and so does what a standby had asked for; both come back with the next request.
func (c *Consumer) recreateDurable(ctx context.Context, seq uint64) error {
	if err := c.checkResettable(); err != nil {
		return err
	}
	if err := c.js.DeleteConsumer(ctx, c.cfg.InputStream, c.durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete consumer %s: %w", c.durable, c.denied(err))
	}
	cfg := c.durableConfig()
	if seq > 1 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq
	}
	if _, err := c.js.CreateConsumer(ctx, c.cfg.InputStream, cfg); err != nil {
		return fmt.Errorf("create consumer %s at row %d: %w", c.durable, seq, c.denied(err))
	}
	return nil
}

// checkResettable refuses a server on which the consumer can't be set back in any way. Deleting the last consumer of an
// interest stream deletes its rows. On a work queue the unacked rows would come again, but only while no other consumer
// exists; neither is worth the risk.
func (c *Consumer) checkResettable() error {
	if !c.toFloor || canReset(c.nc.ConnectedServerVersion()) {
		return nil
	}
	return fatalAtStart(fmt.Errorf("%w: version %s can't set a consumer back, and on a stream without limits retention it can't be re-created: use 2.14 or newer",
		ErrServer, c.nc.ConnectedServerVersion()))
}
