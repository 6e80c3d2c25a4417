package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
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
	rows := rowfile.NewReader(in.File, in.Layout, load.RowBytesMax-load.MessageOverhead)
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
	e.failures.write(env.Stderr)
	terminal.PrintLine(env.Stdout, "---\n%d rows, %d of them would fail before any call, about %d prompt tokens; nothing was called or stored", e.rows, e.bad, e.tokens())
	if text := e.cost(cfg, prices); text != "" {
		terminal.PrintLine(env.Stdout, "%s", text)
	}
	return e.failures.err(e.rows)
}

// estimate is roughly what a job needs.
type estimate struct {
	rows, bad int64
	bytes     int64 // of all prompts, with what is sent along with each
	each      int   // bytes sent along with each prompt: system prompt and schema
	failures  failures
}

// addRow renders the prompt of a row, prints the first ones, and counts it.
func (e *estimate) addRow(env *Env, p *executor.Prompt, row rowfile.Row) {
	e.rows++
	prompt, err := renderRow(p, row)
	if err != nil {
		e.bad++
		e.failures.add(row.Line, err)
		return
	}
	e.bytes += int64(len(prompt) + e.each)
	if e.rows-e.bad <= dryRunPrompts {
		terminal.PrintLine(env.Stdout, "--- line %d\n%s", row.Line, strings.TrimRight(prompt, "\n"))
	}
}

// failures are rows that would fail, grouped by the text of their error without its numbers.
type failures struct {
	rows   int64
	groups []*failure // in the order of their first rows
	others int64      // rows of further groups
}

// failure is a group of rows.
type failure struct {
	key, text string // text is that of the first row
	rows      int64
	lines     []string // of the first rows
}

const (
	failureGroups = 50 // most that are told apart
	failureLines  = 5  // most that are listed of a group
)

// add counts a row.
func (f *failures) add(line int64, err error) {
	f.rows++
	key := numbers.ReplaceAllString(err.Error(), "0")
	i := slices.IndexFunc(f.groups, func(g *failure) bool { return g.key == key })
	switch {
	case i < 0 && len(f.groups) == failureGroups:
		f.others++
		return
	case i < 0:
		i = len(f.groups)
		f.groups = append(f.groups, &failure{key: key, text: err.Error()})
	}
	g := f.groups[i]
	g.rows++
	if len(g.lines) < failureLines {
		g.lines = append(g.lines, strconv.FormatInt(line, 10))
	}
}

// numbers are what differs between the errors of rows that fail for one reason.
var numbers = regexp.MustCompile(`[0-9]+`)

// write prints a line for each group.
func (f *failures) write(w io.Writer) {
	for _, g := range f.groups {
		lines, more := "line "+g.lines[0], g.rows-int64(len(g.lines))
		if g.rows > 1 {
			lines = fmt.Sprintf("%d rows, lines %s", g.rows, strings.Join(g.lines, ", "))
		}
		if more > 0 {
			lines += ", …"
		}
		terminal.PrintLine(w, "%s: %s", lines, g.text)
	}
	if f.others > 0 {
		terminal.PrintLine(w, "%d more rows would fail for other reasons", f.others)
	}
}

// err is the error of a command that found these failures among the rows; nil: none failed.
func (f *failures) err(rows int64) error {
	if f.rows == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s would fail: fix the template or these rows", f.rows, terminal.Plural(int(rows), "row"))
}

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
