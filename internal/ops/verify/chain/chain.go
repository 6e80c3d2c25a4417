// Package chain proves a chain of stages, each of which has the results of the one before
// it as its input: each stage by itself, and that every result of the last is made from
// exactly the results that it names, down to the first input.
//
//	report, err := chain.Run(ctx, js, cfg, []string{"map", "reduce"}, os.Stderr)
//
// The settings of each stage are read from the audit event of its last run (settings.go).
// Where there is none, they are guessed from the streams (guess.go).
package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/nats-io/nats.go/jetstream"
)

// chain collects the settings and the reports of the stages.
type chain struct {
	js     jetstream.JetStream
	report *Report
	stages []*config.Config // in order of flow
}

// Run proves the chain of stages of these names, in the order in which rows flow, from
// the streams alone. All are on one server; the settings of each, with its streams, are
// those of its last run. cfg has the audit stream to look for them first. It shows its
// progress if progress is a terminal.
//
// Stages are verified from the last to the first. The rows that a result was made from
// were stored before it, so the stage before, which is read later, must have them. Memory
// is bounded as for one stage ([verify.Run]).
//
// An error means that the check could not be made; names that form no chain are a
// [config.Error]. The report holds the findings (see [Report.Err]).
func Run(ctx context.Context, js jetstream.JetStream, cfg *config.Config, names []string, progress io.Writer) (*Report, error) {
	if err := CheckNames(names); err != nil {
		return nil, err
	}
	c := &chain{js: js, report: newReport(names)}
	if err := c.find(ctx, cfg); err != nil {
		return nil, err
	}
	for i := range names[1:] {
		l, err := c.link(c.stages[i], c.stages[i+1])
		if err != nil {
			return nil, err
		}
		c.report.Links = append(c.report.Links, l)
	}
	c.report.Stages = make([]*verify.Report, len(names))
	for i := len(names) - 1; i >= 0; i-- {
		o := verify.Options{Linked: true}
		if i > 0 {
			before := c.stages[i-1]
			o.Upstream = verify.Upstream{Name: before.Name, ResultSubject: before.Result.Subject, Partitions: before.Streams.Partitions}
		}
		report, err := verify.RunWith(ctx, js, c.stages[i], o, progress)
		if err != nil {
			return nil, fmt.Errorf("stage %s: %w", names[i], err)
		}
		c.report.Stages[i] = report
	}
	c.report.conclude()
	return c.report, nil
}

// Stages returns the settings of stages, for each the settings of its last run: see [Run].
// notes say what was assumed about them.
func Stages(ctx context.Context, js jetstream.JetStream, cfg *config.Config, names []string) (stages []*config.Config, notes []string, err error) {
	if err := CheckNames(names); err != nil {
		return nil, nil, err
	}
	c := &chain{js: js, report: newReport(names)}
	if err := c.find(ctx, cfg); err != nil {
		return nil, nil, err
	}
	return c.stages, c.report.Notes, nil
}

// CheckNames returns a [config.Error] if the names cannot form a chain.
func CheckNames(names []string) error {
	if len(names) < 2 {
		return config.Invalid(errors.New("--chain: a chain has two stages or more: give their names in the order in which rows flow, such as map,reduce"))
	}
	for i, name := range names {
		switch {
		case name == "":
			return config.Invalid(fmt.Errorf("--chain: name %d is empty", i+1))
		case !config.ValidStageName(name):
			return config.Invalid(fmt.Errorf("--chain: %q is no name of a stage: give those of STAGE_NAME, separated by commas", name))
		case slices.Contains(names[:i], name):
			return config.Invalid(fmt.Errorf("--chain: stage %s is named twice: rows pass a stage once", name))
		}
	}
	return nil
}
