package preview

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/terminal"
)

// dryRunPrompts is how many prompts a dry run shows.
const dryRunPrompts = 3

// DryRun renders the prompt of each row. It prints the first prompts on out, the rows that
// would fail on errs, grouped by their errors, and on out an estimate of tokens and cost.
// The error says how many rows would fail.
//
// With a latency above 0, which is the mean time of a call, it also estimates how long the
// job takes.
func DryRun(ctx context.Context, cfg *config.Config, in Input, latency time.Duration, out, errs io.Writer) error {
	source, err := in.open(ctx)
	if err != nil {
		return err
	}
	defer source.File.Close() //nolint:errcheck // read only
	p, err := executor.LoadPrompt(cfg)
	if err != nil {
		return config.Invalid(err)
	}
	prices, err := cfg.Prices()
	if err != nil {
		return err
	}
	if p.Base.System != "" {
		terminal.PrintLine(out, "--- system prompt\n%s", printable(p.Base.System))
	}
	files := source.Beside()
	defer files.Close() //nolint:errcheck // read only
	p.Media.Files = files
	e := &estimate{foreach: &cfg.Foreach, sizes: newSizes(p)}
	if err := in.each(ctx, source, func(row rowfile.Row) error { e.addRow(ctx, out, p, row); return nil }); err != nil {
		return err
	}
	e.failures.write(errs)
	terminal.PrintLine(out, "---\n%s, %s, %s; nothing was called or stored", terminal.Plural(int(e.rows), "row"), e.outcome(), e.text())
	if text := e.cost(cfg, prices); text != "" {
		terminal.PrintLine(out, "%s", text)
	}
	if latency > 0 {
		terminal.PrintLine(out, "%s", e.duration(cfg, latency))
	}
	return e.failures.err(e.rows, e.gaps)
}

// estimate is roughly what a job needs.
type estimate struct {
	foreach  *config.ForeachConfig
	rows     int64
	gaps     int64 // rows with an error in the place of an element
	failures failures
	sizes    // of the calls that the job makes
}

// addRow renders the prompts of a row, prints the prompts of the first rows, and counts
// all.
func (e *estimate) addRow(ctx context.Context, out io.Writer, p *executor.Prompt, row rowfile.Row) {
	e.rows++
	calls, err := callsOf(e.foreach, row)
	if err != nil {
		e.failures.add(row.Line, err)
		return
	}
	var prompts []string // those to show
	var failure error
	before := e.sizes
	for i := range calls.count() {
		prompt, err := calls.render(ctx, p, i)
		if err != nil {
			if calls.items != nil {
				err = fmt.Errorf("element %d: %w", i, err)
			}
			failure = cmp.Or(failure, err)
			continue
		}
		e.add(prompt)
		if i < shownItems {
			prompts = append(prompts, prompt.text)
		}
	}
	if failure != nil {
		e.failures.add(row.Line, failure)
		if e.foreach.Errors == config.ForeachKeep {
			e.gaps++
		} else { // none of its elements is called
			e.sizes = before
		}
		return
	}
	if e.sent() > dryRunPrompts {
		return
	}
	for i, prompt := range prompts {
		var item *int
		if calls.items != nil {
			item = &i
		}
		terminal.PrintLine(out, "--- %s\n%s", placeText(row.Line, item, calls.count()), printable(prompt))
	}
	if rest := calls.rest(); rest != "" {
		terminal.PrintLine(out, "%s", rest)
	}
}

// outcome is what would become of the rows.
func (e *estimate) outcome() string {
	if e.foreach.Field == "" {
		return fmt.Sprintf("%d of them would fail before any call", e.failures.rows)
	}
	text := fmt.Sprintf("%d of them would fail", e.failures.rows-e.gaps)
	if e.gaps > 0 {
		text += fmt.Sprintf(", %d would have errors in the place of elements", e.gaps)
	}
	return text + ", " + terminal.Plural(int(e.calls), "call") + " for elements"
}

// sent is how many rows would be sent without a failure, not even of an element.
func (e *estimate) sent() int64 { return e.rows - e.failures.rows }

// cost describes what the job costs, as far as that is known beforehand. It is "" without a
// price file.
func (e *estimate) cost(cfg *config.Config, all cost.Prices) string {
	if all == nil {
		return ""
	}
	if cfg.LLM.Model == "" {
		return "the cost is unknown: set STAGE_LLM_MODEL"
	}
	price, ok := all.Lookup(cfg.LLM.Provider, cfg.LLM.Model)
	if !ok {
		return fmt.Sprintf("the cost is unknown: STAGE_PRICES_FILE has no price for %s/%s", cfg.LLM.Provider, cfg.LLM.Model)
	}
	text := fmt.Sprintf("about %s USD for the prompts", dollars(price.Cost(&auditlog.Usage{PromptTokens: e.tokens()})))
	switch most := cfg.LLM.MaxTokens; {
	case cfg.Embeds(): // vectors cost nothing
	case most != nil:
		replies := &auditlog.Usage{CompletionTokens: e.calls * int64(*most)}
		text += fmt.Sprintf(", at most %s USD for replies of STAGE_LLM_MAX_TOKENS each", dollars(price.Cost(replies)))
	default:
		each := "row"
		if cfg.FansOut() {
			each = "element"
		}
		text += fmt.Sprintf(", and %s USD for every 100 tokens of reply to each %s", dollars(price.Cost(&auditlog.Usage{CompletionTokens: 100 * e.calls})), each)
	}
	if cfg.Cost.MaxUSD > 0 {
		text += fmt.Sprintf("; STAGE_MAX_COST_USD is %g", cfg.Cost.MaxUSD)
	}
	return text
}

// dollars formats an estimate to two digits, and from 10 USD on to whole dollars.
func dollars(usd float64) string {
	if usd >= 10 {
		return strconv.FormatFloat(usd, 'f', 0, 64)
	}
	return strconv.FormatFloat(usd, 'g', 2, 64)
}
