package preview

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/llm-stage/stage/internal/terminal"
)

// dryRunPrompts is how many prompts a dry run shows.
const dryRunPrompts = 3

// DryRun renders the prompt of each row, prints the first ones on out, those that fail on errs, grouped by their errors,
// and an estimate of tokens and cost. The error says how many rows would fail.
func DryRun(ctx context.Context, cfg *config.Config, in Input, out, errs io.Writer) error {
	source, err := in.open(ctx)
	if err != nil {
		return err
	}
	defer source.File.Close() //nolint:errcheck // read only
	p, err := executor.LoadPrompt(cfg)
	if err != nil {
		return config.Invalid(err)
	}
	prices, err := cfg.Cost.Prices()
	if err != nil {
		return err
	}
	if p.Base.System != "" {
		terminal.PrintLine(out, "--- system prompt\n%s", printable(p.Base.System))
	}
	e := &estimate{each: len(p.Base.System)}
	if p.Base.Schema != nil {
		e.each += len(p.Base.Schema.Source())
	}
	if err := in.each(ctx, source, func(row rowfile.Row) error { e.addRow(out, p, row); return nil }); err != nil {
		return err
	}
	e.failures.write(errs)
	terminal.PrintLine(out, "---\n%s, %d of them would fail before any call, about %d prompt tokens; nothing was called or stored", terminal.Plural(int(e.rows), "row"), e.failures.rows, e.tokens())
	if text := e.cost(cfg, prices); text != "" {
		terminal.PrintLine(out, "%s", text)
	}
	return e.failures.err(e.rows)
}

// estimate is roughly what a job needs.
type estimate struct {
	rows     int64
	bytes    int64 // of all prompts, with what is sent along with each
	each     int   // bytes sent along with each prompt: system prompt and schema
	failures failures
}

// addRow renders the prompt of a row, prints the first ones, and counts it.
func (e *estimate) addRow(out io.Writer, p *executor.Prompt, row rowfile.Row) {
	e.rows++
	prompt, err := renderRow(p, row)
	if err != nil {
		e.failures.add(row.Line, err)
		return
	}
	e.bytes += int64(len(prompt) + e.each)
	if e.sent() <= dryRunPrompts {
		terminal.PrintLine(out, "--- line %d\n%s", row.Line, printable(prompt))
	}
}

// sent is how many rows would be sent.
func (e *estimate) sent() int64 { return e.rows - e.failures.rows }

// tokens estimates the prompt tokens of all rows.
func (e *estimate) tokens() int64 { return e.bytes / call.BytesPerToken }

// cost describes what the job costs, as far as that is known beforehand; "" without a price file.
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
	if most := cfg.LLM.MaxTokens; most != nil {
		replies := &auditlog.Usage{CompletionTokens: e.sent() * int64(*most)}
		text += fmt.Sprintf(", at most %s USD for replies of STAGE_LLM_MAX_TOKENS each", dollars(price.Cost(replies)))
	} else {
		text += fmt.Sprintf(", and %s USD for every 100 tokens of reply to each row", dollars(price.Cost(&auditlog.Usage{CompletionTokens: 100 * e.sent()})))
	}
	if cfg.Cost.MaxUSD > 0 {
		text += fmt.Sprintf("; STAGE_MAX_COST_USD is %g", cfg.Cost.MaxUSD)
	}
	return text
}

// dollars formats an estimate to two digits.
func dollars(usd float64) string {
	if usd >= 10 {
		return strconv.FormatFloat(usd, 'f', 0, 64)
	}
	return strconv.FormatFloat(usd, 'g', 2, 64)
}
