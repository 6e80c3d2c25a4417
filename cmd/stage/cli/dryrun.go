package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/job"
	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm/row"
)

// dryRunPrompts is how many prompts a dry run shows.
const dryRunPrompts = 3

// dryRun renders the prompt of each row, prints the first ones, and estimates tokens and cost. It makes no call and
// stores nothing.
func dryRun(ctx context.Context, env *Env, cfg *config.Config, input string, o job.Options) error {
	in, err := load.OpenSource(ctx, env.Stdin, input, o.Format)
	if err != nil {
		return err
	}
	defer in.File.Close() //nolint:errcheck // read only
	p, err := executor.LoadPrompt(cfg)
	if err != nil {
		return config.Invalid(err)
	}
	prices, err := cfg.Cost.Prices()
	if err != nil {
		return err
	}
	if p.Base.System != "" {
		terminal.PrintLine(env.Stdout, "--- system prompt\n%s", strings.TrimRight(p.Base.System, "\n"))
	}
	e := &estimate{each: len(p.Base.System)}
	if p.Base.Schema != nil {
		e.each += len(p.Base.Schema.Source())
	}
	rows := rowfile.NewReader(in.File, in.Format, load.RowBytesMax-load.MessageOverhead)
	for ctx.Err() == nil && (o.Limit == 0 || e.rows < o.Limit) {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && ctx.Err() == nil {
			return config.Invalid(fmt.Errorf("%s: %w", input, err))
		}
		if err == nil {
			e.addRow(env, p, row)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	terminal.PrintLine(env.Stdout, "---\n%d rows, %d of them would fail before any call, about %d prompt tokens; nothing was called or stored", e.rows, e.bad, e.tokens())
	if text := e.cost(cfg, prices); text != "" {
		terminal.PrintLine(env.Stdout, "%s", text)
	}
	return nil
}

// estimate is roughly what a job needs.
type estimate struct {
	rows, bad int64
	bytes     int64 // of all prompts, with what is sent along with each
	each      int   // bytes sent along with each prompt: system prompt and schema
}

// addRow renders the prompt of a row, prints the first ones, and counts it.
func (e *estimate) addRow(env *Env, p *executor.Prompt, row rowfile.Row) {
	e.rows++
	prompt, err := renderRow(p, row)
	if err != nil {
		e.bad++
		terminal.PrintLine(env.Stderr, "line %d: %v", row.Line, err)
		return
	}
	e.bytes += int64(len(prompt) + e.each)
	if e.rows-e.bad <= dryRunPrompts {
		terminal.PrintLine(env.Stdout, "--- line %d\n%s", row.Line, strings.TrimRight(prompt, "\n"))
	}
}

// tokens estimates the prompt tokens of all rows.
func (e *estimate) tokens() int64 { return e.bytes / call.BytesPerToken }

// cost describes what the job costs, as far as that is known beforehand; "" without a price file.
func (e *estimate) cost(cfg *config.Config, all cost.Prices) string {
	if all == nil {
		return ""
	}
	price, ok := all.Lookup(cfg.LLM.Provider, cfg.LLM.Model)
	if !ok {
		return fmt.Sprintf("the cost is unknown: STAGE_PRICES_FILE has no price for %s/%s", cfg.LLM.Provider, cfg.LLM.Model)
	}
	text := fmt.Sprintf("about %s USD for the prompts", dollars(price.Cost(&auditlog.Usage{PromptTokens: e.tokens()})))
	if most := cfg.LLM.MaxTokens; most != nil {
		replies := &auditlog.Usage{CompletionTokens: (e.rows - e.bad) * int64(*most)}
		text += fmt.Sprintf(", at most %s USD for replies of STAGE_LLM_MAX_TOKENS each", dollars(price.Cost(replies)))
	} else {
		text += fmt.Sprintf(", and %s USD for every 100 tokens of reply to each row", dollars(price.Cost(&auditlog.Usage{CompletionTokens: 100 * (e.rows - e.bad)})))
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

// renderRow renders one row of a file.
func renderRow(p *executor.Prompt, in rowfile.Row) (string, error) {
	if in.Fault != nil {
		return "", errors.New(in.Fault.Problem)
	}
	parsed, err := row.Parse(in.Body)
	if err != nil {
		return "", err
	}
	r, _, err := p.Request(parsed)
	return r.Prompt, err
}
