// Package results prints stored results: all of a stage or some, partition by partition
// or as they come. selection.go finds which are printed, and meta.go describes a result
// beside its body.
package results

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// AllPartitions and All are the values of options that select everything.
const (
	AllPartitions = -1
	All           = -1
)

// Options say which results to print, and how.
type Options struct {
	Partition int       // only results of this partition, or AllPartitions
	Failed    bool      // only errors that no later result replaces
	Since     time.Time // only results stored since; zero stands for the first one
	Last      int       // how many of these are printed, the newest ones, or All
	WithMeta  bool      // each result comes with its meta
	// Merged prints the results of all partitions in the order in which they were stored,
	// which keeps the order within each partition. Otherwise one partition comes after
	// the other.
	Merged bool
	// Recreated makes the printer look whether the stream is still the one that it has
	// printed, see [stored.Generation].
	Recreated bool
}

// Printer prints results. It knows which ones it has printed, so a caller that has lost the
// server continues with another. It is not safe for concurrent use.
type Printer struct {
	cfg     *config.Config
	out     *bufio.Writer
	options Options

	which stored.Generation
	begun bool
	at    uint64    // sequence of the last result printed or left out, with Merged
	last  selection // of those that were stored when it began
}

// flushAfter bounds how long a line may wait for the next one if the server's count of
// messages behind it is wrong.
const flushAfter = time.Second

// NewPrinter returns a printer. The caller must flush out when it is done.
func NewPrinter(cfg *config.Config, out *bufio.Writer, o Options) *Printer {
	p := &Printer{cfg: cfg, out: out, options: o}
	p.which = stored.Generation{Ask: o.Recreated, Restart: p.restart}
	return p
}

// Print prints the results that are stored now, with Merged those that it has not printed
// yet.
func (p *Printer) Print(ctx context.Context, js jetstream.JetStream) error {
	if err := p.begin(ctx, js); err != nil {
		return err
	}
	if p.options.Merged || p.options.Partition != AllPartitions {
		return p.read(ctx, js, p.filter(), false)
	}
	n, err := stored.Partitions(ctx, js, p.cfg)
	for i := 0; i < n && err == nil; i++ {
		err = p.read(ctx, js, stored.LogSubject(p.cfg, i, "rows"), false)
	}
	return err
}

// Follow prints the results that are stored and those that come, until ctx ends, and
// returns its cause. While the stream does not exist it waits; it calls waiting once when
// it begins to. A stream that was deleted and created again is printed from its
// beginning.
func (p *Printer) Follow(ctx context.Context, js jetstream.JetStream, waiting func()) error {
	return p.which.Follow(ctx, func() error {
		err := p.begin(ctx, js)
		if err == nil {
			err = p.read(ctx, js, p.filter(), true)
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) { // what is printed may wait long for more
			return cmp.Or(p.out.Flush(), err)
		}
		return err
	}, waiting)
}

// restart makes the printer begin with the first result again: the stream is another one.
func (p *Printer) restart() {
	if p.begun {
		p.begun, p.at, p.options.Last = false, 0, All // the last of the first stream were asked for
	}
}

// filter is the subject of all results that may be printed.
func (p *Printer) filter() string {
	if p.options.Partition != AllPartitions {
		return stored.LogSubject(p.cfg, p.options.Partition, "rows")
	}
	return stored.AllResults(p.cfg)
}

// begin selects among the stored results, once for a stream.
func (p *Printer) begin(ctx context.Context, js jetstream.JetStream) (err error) {
	if err := p.which.Look(ctx, js, p.cfg.Result.Stream); err != nil {
		return err
	}
	if p.begun {
		return nil
	}
	if p.last, err = p.choose(ctx, js); err == nil {
		p.begun = true
	}
	return err
}

// read prints the results of one subject.
func (p *Printer) read(ctx context.Context, js jetstream.JetStream, filter string, follow bool) error {
	o := stored.ReadOptions{Stream: p.cfg.Result.Stream, Filters: []string{filter}, Follow: follow, From: p.last.from}
	switch {
	case p.at > 0:
		o.From = p.at + 1
	case o.From == 0:
		o.Since = p.options.Since
	}
	r, err := stored.Open(ctx, js, o)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		var late <-chan time.Time
		if follow && p.out.Buffered() > 0 {
			late = time.After(flushAfter)
		}
		m, err := r.NextBefore(ctx, late)
		switch {
		case errors.Is(err, stored.ErrNoMore):
			err = p.out.Flush()
		case err != nil || m == nil:
			return err
		default:
			err = p.result(ctx, js.Conn(), m)
			if err == nil && follow && r.Left == 0 { // somebody waits for it
				err = p.out.Flush()
			}
		}
		if err != nil {
			return err
		}
	}
}

// result prints one message if it is a result that is wanted.
func (p *Printer) result(ctx context.Context, nc *nats.Conn, m *jetstream.RawStreamMsg) error {
	before := p.at
	if p.options.Merged {
		p.at = m.Sequence
	}
	partition, ok := stored.PartitionOf(m.Subject)
	if !ok {
		return nil
	}
	r, err := stored.NewResult(m)
	if err != nil || p.options.Failed && (!r.Failed || !p.last.current(r)) {
		return err
	}
	if err := r.Fetch(ctx, nc); err != nil {
		p.at = before
		return err
	}
	if p.options.WithMeta {
		err = writeWithMeta(p.out, p.cfg.Result.Stream, partition, r, m.Header)
	} else {
		err = stored.WriteLine(p.out, r.Body)
	}
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// Counts counts the results of a stage by the outcome of their rows.
type Counts struct {
	Results   uint64 `json:"results"`   // stored, those that were replaced too
	Succeeded uint64 `json:"succeeded"` // rows whose last result is a success
	Failed    uint64 `json:"failed"`    // rows whose last result is an error
}

// Count reads all results, without their bodies.
func Count(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (c Counts, err error) {
	// replaced has the rows with a result in place of their first one, and whether the last
	// one is an error.
	replaced := make(map[uint64]bool)
	err = eachResult(ctx, js, cfg, stored.ReadOptions{Filters: []string{stored.AllResults(cfg)}}, func(r stored.Result) {
		c.Results++
		switch {
		case r.Replaces > 0:
			replaced[r.Replaces] = r.Failed
		case r.Failed:
			c.Failed++
		default:
			c.Succeeded++
		}
	})
	c.Failed -= min(c.Failed, uint64(len(replaced))) // only errors are replaced
	for _, failed := range replaced {
		if failed {
			c.Failed++
		} else {
			c.Succeeded++
		}
	}
	return c, err
}
