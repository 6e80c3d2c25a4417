package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// summaryTimeout bounds each look into the store for the summary. Numbers that are not
// known by then are left out.
const summaryTimeout = 5 * time.Second

// printSummary prints on standard error how many rows were done, and which failed, and
// writes the file of the summary if there is one.
func (p *Pipeline) printSummary(hard context.Context, took time.Duration) {
	sum := p.Stage.Summary()
	sum.Pace = auditlog.NewPace(p.Stage.Usage.All().Took, took, sum.Throttled,
		p.Stage.Cfg.Pool.Size)
	used, tokens := p.Stage.Usage.All(), "unknown"
	if u := used.Usage; u != nil {
		tokens = strconv.FormatInt(u.TotalTokens, 10)
	} else if used.Calls == 0 {
		tokens = "0"
	}
	const line = "%d results written, %d of them errors, in %s; this run: %d calls, " +
		"%d capacity retries, %s tokens, cost in USD %s, peak delay %s\n"
	fmt.Fprintf(p.Stderr, line, p.written, p.failed, took.Round(100*time.Millisecond), //nolint:errcheck // nowhere left to report it
		sum.Total.Calls, sum.CapacityRetries, tokens, used.Cost(),
		sum.PeakDelay.Round(time.Millisecond))
	if text := sum.Gain(p.Stage.Cfg.Pool.Size); text != "" {
		terminal.PrintLine(p.Stderr, "speed-up %s", text)
	}
	if all := p.allRuns(hard); all != nil && all.Calls > used.Calls {
		terminal.PrintLine(p.Stderr, "all runs of the job: %s", describeUsage(all))
	}
	if advice := p.Stage.SlotsAdvice(took); advice != "" {
		terminal.PrintLine(p.Stderr, "%s", advice)
	}
	if p.summary != "" {
		if err := p.writeSummary(p.summary, sum); err != nil {
			terminal.PrintLine(p.Stderr, "%v", err)
		}
	}
	if p.failed > 0 {
		terminal.PrintLine(p.Stderr, "%d of %s failed:", p.failed,
			terminal.Plural(int(p.written), "row"))
		repaired := p.places != nil && len(p.places.newest) > 0
		p.failures.print(p.Stderr, repaired, p.rest)
	}
}

// allRuns returns the usage of all runs of a resumed job, by its audit. It is nil if
// there was no earlier run, or if the audit does not say.
func (p *Pipeline) allRuns(ctx context.Context) *usage.Numbers {
	if !p.earlier || ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
	defer cancel()
	js, err := streams.JetStream(p.Stage.Conn.NC())
	if err != nil {
		return nil
	}
	audit := usage.NewReader(p.Stage.Cfg, usage.NewBook(nil),
		usage.Options{Stages: []string{p.Stage.Cfg.Name}})
	if err := audit.Read(ctx, js); err != nil {
		return nil
	}
	r := audit.Report()
	if r.Unreadable > 0 || r.AuditBegins != nil || r.Unused.Answers > 0 { // then the sum is too low
		return nil
	}
	return &r.Total
}

// describeUsage returns calls, tokens and cost in a line.
func describeUsage(n *usage.Numbers) string {
	tokens, spent := "unknown", "unknown"
	if n.TotalTokens != nil {
		tokens = strconv.FormatInt(*n.TotalTokens, 10)
	}
	switch {
	case n.CostUSD != nil:
		spent = strconv.FormatFloat(*n.CostUSD, 'f', 6, 64)
	case n.KnownCostUSD > 0:
		spent = fmt.Sprintf("at least %.6f", n.KnownCostUSD)
	}
	return fmt.Sprintf("%d calls, %s tokens, cost in USD %s", n.Calls, tokens, spent)
}

// printKept prints that answers are kept which are paid for, but not written since an
// earlier row has no answer. Without this line, a user whose job has reached its cost
// ceiling would believe that they are lost.
func (p *Pipeline) printKept(hard context.Context, why error) {
	if why == nil || !p.resumable || hard.Err() != nil || !p.Stage.Cfg.Journal.Enabled {
		return
	}
	ctx, cancel := context.WithTimeout(hard, summaryTimeout)
	defer cancel()
	n, err := p.keptAnswers(ctx)
	if err != nil || n == 0 {
		return
	}
	command := "the same command"
	if errors.Is(why, cost.ErrCeiling) {
		command += " with a higher --max-cost-usd"
	}
	are := "answers are"
	if n == 1 {
		are = "answer is"
	}
	terminal.PrintLine(p.Stderr, "%d more paid %s kept in the job, behind rows without one: "+
		"%s uses them and does not pay for them again", n, are, command)
}

// keptAnswers counts the answers in the journal for rows that have no result yet. The
// stage must have ended.
func (p *Pipeline) keptAnswers(ctx context.Context) (n int, err error) {
	js, err := streams.JetStream(p.Stage.Conn.NC())
	if err != nil {
		return 0, err
	}
	// Results may have been stored after the last one that was written.
	if _, err := p.places.read(ctx); err != nil {
		return 0, err
	}
	cfg := p.Stage.Cfg
	entries := stored.ReadOptions{
		Stream: cfg.Journal.Stream, Filters: []string{streams.JournalSubjects(cfg.Name, 0)},
		HeadersOnly: true, Brief: true,
	}
	type answer struct{ row, item string } // item is the element of a row that fans out
	kept := make(map[answer]bool)
	err = stored.Each(ctx, js, entries, func(m *jetstream.RawStreamMsg) error {
		row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil || row <= p.places.low || p.places.own.Has(row) {
			return nil //nolint:nilerr // an entry that is not purged yet
		}
		kept[answer{m.Header.Get(streams.HeaderSourceSeq), m.Header.Get(streams.HeaderItem)}] = true
		return nil
	})
	return len(kept), err
}
