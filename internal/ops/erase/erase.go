// Package erase removes what the streams of a stage hold of a row, wherever it lies, and
// leaves a tombstone.
//
//	row := []erase.Range{{First: 7, Last: 7}}
//	plan, err := erase.New(ctx, js, cfg, erase.Options{Rows: row, By: "alice"})
//	plan.Report().Write(os.Stdout) // what would be removed, and where
//	err = plan.Execute(ctx)
//
// A row may have left its text in a dozen places: its message in the input, its result and
// the object that holds a large one, the events of its calls, a reply in the journal, a
// stored reply, a dead letter, a batch. The tombstone is stored before anything is removed,
// and the result goes last. So whatever is killed in between, a tombstone whose result is
// still there says that an erasure was not finished, and the next one finishes it: each
// step finds what is left by itself, and does nothing where nothing is.
//
// A chooser finds the rows that are meant (choose.go), a finder what is stored of them
// (find.go), and an eraser removes it (execute.go). The [Plan] is what lies between the last
// two: a [Report] for people, and the rows with all that was found of each (rows.go). A
// [Chain] has a plan for each of several stages.
package erase

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
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
	// Partition, unless it is negative, is the only partition whose rows are erased.
	Partition int
	// By is who erases, for the tombstones. Asked is all that is known of this person, for
	// the audit.
	By, Asked string
	// DeleteBatch deletes the files of a batch at its provider. If it is nil, they stay,
	// and the report says so.
	DeleteBatch func(ctx context.Context, b Batch) error
	// Results, if set, is called with the results that are erased, before any is removed. A
	// caller that has copied them elsewhere removes them there. It may be called again with
	// the same results after an interruption.
	Results func(ctx context.Context, results []*jetstream.RawStreamMsg, t *proof.Tombstone) error
	// Step, if set, is called before each change with what it is. Its error ends the
	// execution.
	Step func(what string) error
}

// Range is the sequences from First to Last, both included.
type Range struct{ First, Last uint64 }

// Batch is a batch at a provider, by the provider's id.
type Batch struct{ Provider, Model, ID string }

// Plan is what an erasure will do: the rows, and all that was found of them. It is not safe
// for concurrent use.
type Plan struct {
	store
	o      Options
	now    time.Time
	report *Report
	rows   chosenRows
}

// New looks up which rows are meant, and all that is stored of them. A selection of rows
// that never were, or a stream that can't be changed, is a [config.Error].
func New(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o Options) (*Plan, error) {
	p := &Plan{
		store: store{js: js, nc: js.Conn(), cfg: cfg}, o: o, now: time.Now().UTC(),
		rows:   chosenRows{byRow: make(map[uint64]*erasure)},
		report: &Report{Stage: cfg.Name, Rows: []uint64{}, Erased: []uint64{}, Pending: []Pending{}, Places: []PlaceCount{}, Notes: []string{}},
	}
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	choose := chooser{store: &p.store, o: &p.o, report: p.report, rows: &p.rows}
	if err := choose.all(ctx); err != nil {
		return nil, err
	}
	find := finder{store: &p.store, report: p.report, rows: &p.rows, logs: choose.logs}
	if err := find.all(ctx); err != nil {
		return nil, err
	}
	p.report.count(p.rows.list, p.cfg.Result.Stream)
	return p, nil
}

// Report returns what the plan says, and after [Plan.Execute] what was done.
func (p *Plan) Report() *Report { return p.report }

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool {
	return !slices.ContainsFunc(p.rows.list, func(e *erasure) bool { return e.at > 0 || len(e.found) > 0 || len(e.batches) > 0 })
}

// OwnerPrefix begins the owner of a claim that an erasure has appended.
const OwnerPrefix = "erase-"

// Execute does what the plan says. All tombstones are stored first. From then on the next
// erasure finds the rows that this one has left half-erased, after a kill or an error, and
// finishes them.
func (p *Plan) Execute(ctx context.Context) error {
	r := eraser{
		store: &p.store, o: &p.o, report: p.report, rows: p.rows.list, now: p.now,
		run: OwnerPrefix + rand.Text()[:12], deleted: make(map[Batch]bool),
	}
	return r.all(ctx)
}
