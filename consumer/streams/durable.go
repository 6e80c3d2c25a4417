package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// PullRowsMin is the least number of rows for which a durable consumer must allow a
// request.
const PullRowsMin = 256

// PinGroup is the one priority group of a durable consumer. The client that holds its pin
// takes the rows of the partition.
const PinGroup = "stage"

// ackWait is how long the server waits before it sends an unacked row again. Rows are
// held for as long as the provider has no capacity; every term resets the consumer by
// itself, so the time-out has nothing to do.
const ackWait = 24 * time.Hour

// DurableConfig names the durable consumer of one partition and says how it must be.
type DurableConfig struct {
	// Name of the stage, and the partition, counted from 0.
	Name      string
	Partition int
	// InputStream holds the rows. InputSubject is the filter of this partition's rows,
	// see [InputFilter].
	InputStream, InputSubject string
	// ResultStream bounds the size of a result.
	ResultStream string
	// WindowRows is how many rows may be delivered and not acked; in order by key those
	// that are set aside come on top, so that it is OrderSpan. Default 1024.
	WindowRows int
	// PinnedTTL is how long a silent owner keeps the pin. Default 1 s.
	PinnedTTL time.Duration
	// Order of the results. Default [OrderStream]. In another one rows are acked one by
	// one: an ack that covers those before it would ack rows that wait for their results.
	Order Order
	// OrderSpan bounds how many rows above the low-water mark may be taken. It does not
	// matter in [OrderStream]. The default is 65536. It is at least WindowRows.
	OrderSpan int
	// LaneRows is how many rows may be in the batch lane, beside the window and within
	// the span. It is 0 without a lane.
	LaneRows int
	// Create allows to create a consumer that is missing, and to change window and
	// time-outs of one that exists.
	Create bool
}

// WithDefaults returns c with the defaults in place of zero values.
func (c DurableConfig) WithDefaults() DurableConfig {
	c.WindowRows = cmp.Or(c.WindowRows, 1024)
	c.PinnedTTL = cmp.Or(c.PinnedTTL, time.Second)
	c.Order = cmp.Or(c.Order, OrderStream)
	c.OrderSpan = cmp.Or(c.OrderSpan, max(c.WindowRows, 1<<16))
	if c.LaneRows > 0 {
		c.OrderSpan = max(c.OrderSpan, c.WindowRows+c.LaneRows)
	}
	return c
}

// acksEach reports whether rows are acked one by one.
func (c DurableConfig) acksEach() bool { return c.Order != OrderStream }

// Durable is the durable consumer of one partition as [OpenDurable] has found or created
// it. Its methods may be called by one goroutine at a time.
type Durable struct {
	// Handle is the client library's. Its cached info is from the opening.
	Handle jetstream.Consumer
	// Name of the consumer.
	Name string
	// AcksDelete says that acks delete rows from the input stream (work queue and
	// interest retention).
	AcksDelete bool
	// MessageBytesMax is the size of the largest message that the results stream takes.
	MessageBytesMax int

	cfg     DurableConfig
	version string // of the server that has the streams, see serverVersion
	// acksOthers says that an ack covers all rows before it, although each must be acked
	// by itself. The next reset replaces the consumer.
	acksOthers bool
	nc         *nats.Conn
	js         jetstream.JetStream
}

// UnfitError says that a stream, a durable consumer or the server can't serve a stage
// until a person has changed it: trying again does not help.
type UnfitError struct{ Err error }

// Error returns the text of Err.
func (e *UnfitError) Error() string { return e.Err.Error() }

// Unwrap returns the error that says what must be changed.
func (e *UnfitError) Unwrap() error { return e.Err }

// unfit returns an error about the field that the format names last.
func unfit(format string, args ...any) error {
	if field, is := args[len(args)-1].(Field); is {
		return &UnfitError{Err: NewSettingError(field, format, args...)}
	}
	return &UnfitError{Err: fmt.Errorf(format, args...)}
}

// OpenDurable creates the durable consumer of a partition if it is missing and cfg allows
// that, and checks one that exists. Streams must exist. The error is an [*UnfitError]
// where trying again can't help.
func OpenDurable(ctx context.Context, nc *nats.Conn, cfg DurableConfig) (*Durable, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	cfg = cfg.WithDefaults()
	js, err := JetStream(nc)
	if err != nil {
		return nil, fmt.Errorf("durable consumer: %w", err)
	}
	d := &Durable{
		Name: DurableName(cfg.Name, cfg.Partition), MessageBytesMax: int(nc.MaxPayload()),
		cfg: cfg, nc: nc, js: js,
	}
	input, err := Look(ctx, js, cfg.InputStream)
	if err != nil {
		return nil, err
	}
	results, err := Look(ctx, js, cfg.ResultStream)
	if err != nil {
		return nil, err
	}
	if size := results.CachedInfo().Config.MaxMsgSize; size > 0 {
		d.MessageBytesMax = min(d.MessageBytesMax, int(size))
	}
	d.AcksDelete = input.CachedInfo().Config.Retention != jetstream.LimitsPolicy
	d.version = serverVersion(nc, input.CachedInfo())
	if err := d.checkResettable(); err != nil {
		return nil, err
	}
	if d.Handle, err = d.open(ctx, input); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Durable) open(ctx context.Context, input jetstream.Stream) (jetstream.Consumer, error) {
	handle, err := input.Consumer(ctx, d.Name)
	switch {
	case err == nil:
		return d.check(ctx, input, handle)
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, fmt.Errorf("look at consumer %s of stream %s: %w", d.Name, d.cfg.InputStream,
			d.denied(err))
	case !d.cfg.Create:
		return nil, unfit("consumer %s of stream %s does not exist: create it, or set %s=true",
			d.Name, d.cfg.InputStream, FieldCreate)
	}
	// Another replica may create it at the same moment; the same configuration twice is
	// no error.
	handle, err = input.CreateConsumer(ctx, d.config())
	if err != nil {
		return nil, fmt.Errorf("create consumer %s of stream %s: %w", d.Name, d.cfg.InputStream,
			d.denied(err))
	}
	return handle, nil
}

func (d *Durable) config() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable:        d.Name,
		Description:    "rows of llm-stage " + d.cfg.Name,
		FilterSubject:  d.cfg.InputSubject,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckAllPolicy,
		AckWait:        ackWait,
		MaxDeliver:     -1,
		MaxAckPending:  d.cfg.WindowRows + d.cfg.LaneRows,
		PriorityPolicy: jetstream.PriorityPolicyPinned,
		PriorityGroups: []string{PinGroup},
		PinnedTTL:      d.cfg.PinnedTTL,
	}
	if d.cfg.Order == OrderKey {
		cfg.MaxAckPending = d.cfg.OrderSpan
	}
	if d.AcksDelete || d.cfg.acksEach() { // so each row is acked by itself
		cfg.AckPolicy = jetstream.AckExplicitPolicy
	}
	return cfg
}

// check refuses a consumer that would serve other rows or in another way, and sets its
// window and time-outs.
func (d *Durable) check(
	ctx context.Context, input jetstream.Stream, handle jetstream.Consumer,
) (jetstream.Consumer, error) {
	have, want := handle.CachedInfo().Config, d.config()
	name := fmt.Sprintf("consumer %s of stream %s", d.Name, d.cfg.InputStream)
	d.acksOthers = d.cfg.acksEach() && have.AckPolicy == jetstream.AckAllPolicy
	if err := d.serves(name, have, want); err != nil {
		return nil, err
	}
	if have.MaxAckPending == want.MaxAckPending && have.AckWait == want.AckWait &&
		have.PinnedTTL == want.PinnedTTL && have.MaxDeliver == want.MaxDeliver && len(have.BackOff) == 0 {
		return handle, nil
	}
	if !d.cfg.Create {
		if have.MaxAckPending > 0 && have.MaxAckPending < want.MaxAckPending {
			const tooFew = "%s delivers at most %d rows ahead (max ack pending), the stage takes %d: raise it"
			switch {
			case d.cfg.LaneRows > 0:
				return nil, unfit(tooFew+", or lower %s", name, have.MaxAckPending,
					want.MaxAckPending, FieldLaneRows)
			case d.cfg.Order == OrderKey:
				return nil, unfit(tooFew, name, have.MaxAckPending, want.MaxAckPending)
			}
			return nil, unfit(tooFew+", or lower %s", name, have.MaxAckPending, want.MaxAckPending,
				FieldWindowRows)
		}
		return handle, nil
	}
	have.MaxAckPending, have.AckWait, have.PinnedTTL = want.MaxAckPending, want.AckWait, want.PinnedTTL
	have.MaxDeliver, have.BackOff = want.MaxDeliver, nil
	handle, err := input.UpdateConsumer(ctx, have)
	if err != nil {
		return nil, fmt.Errorf("set window and time-outs of %s: %w", name, d.denied(err))
	}
	return handle, nil
}

// serves refuses a consumer that can't be changed in place.
func (d *Durable) serves(name string, have, want jetstream.ConsumerConfig) error {
	switch {
	case have.FilterSubject != want.FilterSubject || len(have.FilterSubjects) > 0:
		return unfit("%s filters %q, the stage wants %q: choose another %s, or delete the consumer",
			name, have.FilterSubject, want.FilterSubject, FieldName)
	case have.DeliverPolicy != jetstream.DeliverAllPolicy &&
		have.DeliverPolicy != jetstream.DeliverByStartSequencePolicy: // see recreate
		return unfit("%s has deliver policy %s, the stage needs %s: choose another %s, or delete the consumer",
			name, have.DeliverPolicy, want.DeliverPolicy, FieldName)
	case have.AckPolicy != jetstream.AckAllPolicy && have.AckPolicy != jetstream.AckExplicitPolicy,
		d.AcksDelete && have.AckPolicy != jetstream.AckExplicitPolicy:
		return unfit("%s has ack policy %s, the stage needs %s: choose another %s, or delete the consumer",
			name, have.AckPolicy, want.AckPolicy, FieldName)
	case d.acksOthers && !d.cfg.Create:
		return unfit("%s has ack policy %s, which can't be changed, and this %s acks rows one by one: stop the stage and delete the consumer, or set %s=true to have it replaced",
			name, have.AckPolicy, FieldOrder, FieldCreate)
	case have.HeadersOnly:
		return unfit("%s delivers headers only: choose another %s, or delete the consumer", name,
			FieldName)
	case have.MaxRequestBatch > 0 && have.MaxRequestBatch < PullRowsMin,
		have.MaxRequestExpires > 0 && have.MaxRequestExpires < d.cfg.PinnedTTL,
		have.MaxRequestMaxBytes > 0:
		return unfit("%s limits requests (batch %d, expires %v, bytes %d), the stage asks for %d rows at once and more: remove the limits, or delete the consumer",
			name, have.MaxRequestBatch, have.MaxRequestExpires, have.MaxRequestMaxBytes, PullRowsMin)
	case have.PriorityPolicy != want.PriorityPolicy,
		!slices.Equal(have.PriorityGroups, want.PriorityGroups):
		return unfit("%s is not pinned to the group %q, so replicas would share its rows: choose another %s, or delete the consumer",
			name, PinGroup, FieldName)
	}
	return nil
}

// Info asks the server for the consumer's state.
func (d *Durable) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	info, err := d.Handle.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at consumer %s: %w", d.Name, d.denied(err))
	}
	return info, nil
}

// Refit looks at the consumer's settings again, and sets window and time-outs where they
// were changed. The error is an [*UnfitError] where it can't serve any more. Another look
// that fails proves nothing, and is no error.
func (d *Durable) Refit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	input, err := d.js.Stream(ctx, d.cfg.InputStream)
	if err != nil {
		return nil // the next request for rows fails, too
	}
	_, err = d.open(ctx, input)
	if _, unfit := errors.AsType[*UnfitError](err); unfit {
		return err
	}
	return nil
}

// Reset has the server deliver again from a sequence, with delivery counts from 1. Where
// acks delete rows it is from the ack floor instead: rows in between may be acked one by
// one, and those that are emitted are skipped.
func (d *Durable) Reset(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	if d.AcksDelete {
		seq = 0
	}
	if !d.CanReset() {
		return d.recreate(ctx, seq)
	}
	if d.acksOthers {
		// Only an owner resets, after its claim. The owner before it is fenced, and finds
		// the consumer gone.
		if err := d.recreate(ctx, 0); err != nil {
			return err
		}
	}
	if _, err := d.js.ResetConsumerToSequence(ctx, d.cfg.InputStream, d.Name, seq); err != nil {
		return fmt.Errorf("reset consumer %s to row %d: %w", d.Name, seq, d.denied(err))
	}
	return nil
}

// recreate deletes the consumer and creates it again, to begin at the sequence: what a
// reset does on servers that have none (before 2.14), and what gives it another ack
// policy. The pin goes with it, and so does what a standby had asked for; both come back
// with the next request.
func (d *Durable) recreate(ctx context.Context, seq uint64) error {
	if err := d.checkResettable(); err != nil {
		return err
	}
	err := d.js.DeleteConsumer(ctx, d.cfg.InputStream, d.Name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete consumer %s: %w", d.Name, d.denied(err))
	}
	cfg := d.config()
	if seq > 1 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq
	}
	if _, err := d.js.CreateConsumer(ctx, d.cfg.InputStream, cfg); err != nil {
		return fmt.Errorf("create consumer %s at row %d: %w", d.Name, seq, d.denied(err))
	}
	d.acksOthers = false
	return nil
}

// checkResettable refuses a server on which the consumer can't be set back in any way.
// Deleting the last consumer of an interest stream deletes its rows. On a work queue the
// unacked rows would come again, but only while no other consumer exists; neither is
// worth the risk.
func (d *Durable) checkResettable() error {
	if !d.AcksDelete || d.CanReset() {
		return nil
	}
	return unfit("%w: version %s can't set a consumer back, and on a stream without limits retention it can't be re-created: use 2.14 or newer",
		ErrServer, d.version)
}

// CanReset reports whether the server can reset the consumer in place. One that can't has
// it created again, so where it begins is only where an owner last set it to.
func (d *Durable) CanReset() bool { return serverSince(d.version, 14) }

// Unpin releases the pin to the client that asks next.
func (d *Durable) Unpin(ctx context.Context) error {
	input, err := d.js.Stream(ctx, d.cfg.InputStream)
	if err != nil {
		return err
	}
	return input.UnpinConsumer(ctx, d.Name, PinGroup)
}

func (d *Durable) denied(err error) error { return Denied(d.nc, err) }
