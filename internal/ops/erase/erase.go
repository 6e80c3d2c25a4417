// Package erase removes what the streams of a stage hold of a row, wherever it lies, and
// leaves a tombstone.
//
//	plan, err := erase.New(ctx, js, cfg, erase.Options{Rows: []erase.Range{{First: 7, Last: 7}}, By: "alice"})
//	plan.Report().Write(os.Stdout) // what would be removed, and where
//	err = plan.Execute(ctx)
//
// A row may have left its text in a dozen places: its message in the input, its result and
// the object that holds a large one, the events of its calls, a reply in the journal, a
// stored reply, a dead letter, a batch. The tombstone is stored before anything is removed,
// and the result goes last. So whatever is killed in between, a tombstone whose result is
// still there says that an erasure was not finished, and the next one finishes it: each
// step finds what is left by itself, and does nothing where nothing is.
package erase

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options select the rows, and say who erases them. At least one of Rows, Field, Key,
// Origin and Resume selects.
type Options struct {
	// Rows are sequences of the input stream.
	Rows []Range
	// Field and Value select the rows of the input that have a top-level member of this
	// name and value: a string by its text, anything else by its JSON.
	Field, Value string
	// Key selects by the key of the row, where results are in order by key.
	Key *string
	// Origin selects the rows that were made from a row of another stage's input: see
	// [streams.HeaderOriginStream]. It may be nil.
	Origin func(stream string, seq uint64) bool
	// Resume selects the rows whose erasure was not finished. They are finished first in
	// any case.
	Resume bool
	// Partition, unless it is negative, leaves out the rows of all others.
	Partition int
	// By is who erases, for the tombstones, and Asked all that is known of it, for the
	// audit.
	By, Asked string
	// DeleteBatch deletes the files of a batch at its provider. If it is nil, they stay,
	// and the report says so.
	DeleteBatch func(ctx context.Context, b Batch) error
	// Results, if set, is called with the results that are erased, before any is removed:
	// whoever has copied them elsewhere removes them there. It may be called again with the
	// same after an interruption.
	Results func(ctx context.Context, results []*jetstream.RawStreamMsg, t *proof.Tombstone) error
	// Step, if set, is called before each change with what it is. Its error ends the
	// execution.
	Step func(what string) error
}

// Range is the sequences from First to Last, both included.
type Range struct{ First, Last uint64 }

// Batch is a batch at a provider, by the provider's id.
type Batch struct{ Provider, Model, ID string }

// erasure is one row that is erased. It may have been erased before: then what is left of
// it is found again.
type erasure struct {
	partition int
	row       uint64
	at        uint64      // place of its result, or 0 if that is gone already
	header    nats.Header // of the result
	tombstone *proof.Tombstone
	found     []found
	batches   []Batch
}

// found is one message, or one object, that goes.
type found struct {
	place  Place
	stream string
	seq    uint64
	object string // name in the bucket, for PlaceObject
	bucket string
	copied bool // of an event: what stays of it is stored already
	shared bool // of a call event: it served rows that stay
}

// Plan is what an erasure will do. It is not safe for concurrent use.
type Plan struct {
	js     jetstream.JetStream
	nc     *nats.Conn
	cfg    *config.Config
	o      Options
	now    time.Time
	report *Report

	input, results, audit *jetstream.StreamInfo // input and audit may be nil

	rows  []*erasure
	byRow map[uint64]*erasure
	logs  []*partitionLog
	calls map[Batch]bool // batches that were deleted
}

// New looks up which rows are meant, and all that is stored of them. A selection of rows
// that never were, or a stream that can't be changed, is a [config.Error].
func New(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o Options) (*Plan, error) {
	p := &Plan{
		js: js, nc: js.Conn(), cfg: cfg, o: o, now: time.Now().UTC(), byRow: make(map[uint64]*erasure), calls: make(map[Batch]bool),
		report: &Report{Stage: cfg.Name, Erased: []uint64{}, Pending: []Pending{}, Places: []PlaceCount{}, Notes: []string{}},
	}
	if err := p.lookAtStreams(ctx); err != nil {
		return nil, err
	}
	if err := p.choose(ctx); err != nil {
		return nil, err
	}
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	p.count()
	return p, nil
}

// Report is what the plan says, and after [Plan.Execute] what was done.
func (p *Plan) Report() *Report { return p.report }

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool {
	return !slices.ContainsFunc(p.rows, func(e *erasure) bool { return e.at > 0 || len(e.found) > 0 || len(e.batches) > 0 })
}

// lookAtStreams reads the configurations of the streams that every stage has.
func (p *Plan) lookAtStreams(ctx context.Context) (err error) {
	if p.results, err = p.stream(ctx, p.cfg.Result.Stream); err != nil {
		return err
	}
	if p.results == nil {
		return stored.MissingStream(jetstream.ErrStreamNotFound, p.cfg.Result.Stream, "STAGE_RESULT_STREAM")
	}
	if p.input, err = p.stream(ctx, p.cfg.Input.Stream); err != nil {
		return err
	}
	if p.audit, err = p.stream(ctx, p.cfg.Audit.Stream); err != nil {
		return err
	}
	var denied []string
	for _, info := range []*jetstream.StreamInfo{p.results, p.audit} {
		if info != nil && Denies(info.Config) {
			denied = append(denied, info.Config.Name)
		}
	}
	if len(denied) > 0 {
		return config.Invalid(fmt.Errorf("%s: %s", strings.Join(denied, ", "), WhyDenied))
	}
	return nil
}

// Denies reports whether nothing can be erased from a stream.
func Denies(cfg jetstream.StreamConfig) bool { return cfg.DenyDelete || cfg.Sealed }

// WhyDenied says of a stream that denies deletes what to do.
const WhyDenied = "the stream denies deletes (deny_delete), which no server can undo, so nothing can be erased from it: " +
	"move its messages to a new stream, as docs/erase.md shows under \"A stream that denies deletes\""

// Denied returns the names of the streams of a stage that deny deletes.
func Denied(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (names []string, err error) {
	for _, name := range []string{cfg.Result.Stream, cfg.Audit.Stream} {
		s, err := streams.Look(ctx, js, name)
		if err != nil {
			return nil, err
		}
		if Denies(s.CachedInfo().Config) {
			names = append(names, name)
		}
	}
	return names, nil
}

// stream returns nil for a stream that does not exist.
func (p *Plan) stream(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	s, err := streams.Look(ctx, p.js, name)
	if isMissing(err) {
		return nil, nil //nolint:nilnil // that it is missing is an answer
	}
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// row returns the erasure of a row, and makes it where there is none yet.
func (p *Plan) row(partition int, row uint64) *erasure {
	e := p.byRow[row]
	if e == nil {
		e = &erasure{partition: partition, row: row}
		p.byRow[row] = e
		p.rows = append(p.rows, e)
	}
	return e
}

// step announces a change.
func (p *Plan) step(format string, args ...any) error {
	if p.o.Step == nil {
		return nil
	}
	return p.o.Step(fmt.Sprintf(format, args...))
}
