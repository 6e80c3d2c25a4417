package erase

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// Chain has the plans of several stages, each of which has the results of the one before it
// as its input. The rows that are chosen in the first are erased in all, by their origin.
type Chain struct {
	Plans []*Plan // in order of flow
}

// NewChain plans an erasure in all stages of a chain, which are in the order in which rows
// flow. Nothing is erased until each row can be erased in all of them: a later stage would
// never see a result that was erased before it was taken.
func NewChain(ctx context.Context, js jetstream.JetStream, stages []*config.Config, o Options) (*Chain, error) {
	c := new(Chain)
	first, err := New(ctx, js, stages[0], o)
	if err != nil {
		return nil, err
	}
	c.Plans = append(c.Plans, first)
	for _, cfg := range stages[1:] {
		later := Options{Partition: -1, By: o.By, Asked: o.Asked, DeleteBatch: o.DeleteBatch, Step: o.Step, Resume: o.Resume}
		if !o.Resume || len(first.rows.list) > 0 {
			later.Origin = first.isOrigin
		}
		p, err := New(ctx, js, cfg, later)
		if err != nil {
			return nil, fmt.Errorf("stage %s: %w", cfg.Name, err)
		}
		c.Plans = append(c.Plans, p)
	}
	return c, nil
}

// isOrigin reports whether the first row of a chain is one that is chosen.
func (p *Plan) isOrigin(stream string, seq uint64) bool {
	return stream == p.cfg.Input.Stream && p.rows.byRow[seq] != nil
}

// Execute erases from the last stage to the first.
func (c *Chain) Execute(ctx context.Context) error {
	for _, p := range c.Plans[1:] {
		if n := len(p.report.Pending); n > 0 {
			return fmt.Errorf("stage %s: %s of this chain can't be erased yet, such as row %d: %s; nothing was erased, run it again",
				p.cfg.Name, terminal.Plural(n, "row"), p.report.Pending[0].Row, p.report.Pending[0].Why)
		}
	}
	for _, p := range slices.Backward(c.Plans) {
		if err := p.Execute(ctx); err != nil {
			return fmt.Errorf("stage %s: %w", p.cfg.Name, err)
		}
	}
	return nil
}

// Empty reports whether there is nothing to do.
func (c *Chain) Empty() bool {
	for _, p := range c.Plans {
		if !p.Empty() {
			return false
		}
	}
	return true
}

// Reports returns the reports of the plans.
func (c *Chain) Reports() (all []*Report) {
	for _, p := range c.Plans {
		all = append(all, p.report)
	}
	return all
}

// Write prints the reports for people.
func (c *Chain) Write(w io.Writer) {
	for _, p := range c.Plans {
		if len(c.Plans) > 1 {
			terminal.PrintLine(w, "stage %s:", p.cfg.Name)
		}
		p.report.Write(w)
	}
}

// Err joins the errors of the reports.
func (c *Chain) Err() error {
	var errs []error
	for _, p := range c.Plans {
		errs = append(errs, p.report.Err())
	}
	return errors.Join(errs...)
}
