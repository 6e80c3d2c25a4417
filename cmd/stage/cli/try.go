package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
)

func newTryCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "try FILE",
		Short:   "show the prompts of the first rows, those of several templates side by side",
		GroupID: groupSetup,
		Args:    cobra.ExactArgs(1),
		Long: "try renders the first rows of a JSONL or CSV file (or - for standard input) with each template and prints the prompts\n" +
			"side by side. It makes no call, needs no key, and touches no job. It exits with 1 if a row would fail.",
		Example: "  stage try reviews.jsonl --template-file prompt.jinja\n" +
			"  stage try --template prompt.jinja --template 'Sentiment of: {{ row.text }}' -n 20 reviews.jsonl",
	}
	var o tryOptions
	cmd.Flags().StringArrayVar(&o.templates, "template", nil, "path of a template, or its `text`; repeated: one column each; default: the configured template")
	cmd.Flags().StringArrayVar(&o.files, "template-file", nil, "`path` of a template; may be repeated and combined with --template")
	cmd.Flags().Int64VarP(&o.rows, "rows", "n", 5, "number of rows")
	addFormatFlags(cmd, &o.format)
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON object for each row")
	flags := newConfigFlags(cmd, env, []string{"Prompt and result"}, nil)
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		if o.rows < 1 {
			return config.Invalid(fmt.Errorf("-n %d: give at least 1", o.rows))
		}
		candidates, err := o.load(cfg)
		if err != nil {
			return config.Invalid(err)
		}
		return try(soft, env, args[0], o, candidates)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		need := config.NeedPrompt
		if len(o.templates)+len(o.files) > 0 {
			need = config.NeedNothing
		}
		return flags.run(need, run)(cmd, args)
	}
	return cmd
}

// tryOptions are the flags of try.
type tryOptions struct {
	templates, files []string
	rows             int64
	format           rowfile.Spec
	json             bool
}

// candidate is a template to try.
type candidate struct {
	name   string
	prompt *executor.Prompt
	bytes  int64 // of its prompts so far
	count  int64
}

// load compiles the templates. The error lists the problems of all.
func (o *tryOptions) load(cfg *config.Config) (all []*candidate, err error) {
	add := func(name, text, file string) {
		own := *cfg
		own.Prompt.Template, own.Prompt.TemplateFile = text, file
		p, problem := executor.LoadPrompt(&own)
		if problem != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, problem))
		}
		all = append(all, &candidate{name: name, prompt: p})
	}
	for _, text := range o.templates {
		_, missing := os.Stat(text)
		switch {
		case missing == nil:
			add(text, "", text)
		case strings.ContainsAny(text, "{ \n"):
			add(oneLine(text), text, "")
		default:
			err = errors.Join(err, fmt.Errorf("--template %s: no such file, and no template: one has {{ row.… }} in it", text))
		}
	}
	for _, file := range o.files {
		add(file, "", file)
	}
	if len(all) == 0 && err == nil {
		add(cmp.Or(cfg.Prompt.TemplateFile, oneLine(cfg.Prompt.Template)), cfg.Prompt.Template, cfg.Prompt.TemplateFile)
	}
	return all, err
}

// oneLine shows a text in one line.
func oneLine(text string) string {
	return runewidth.Truncate(strings.Join(strings.Fields(text), " "), 40, "…")
}

// triedRow is what try prints of a row.
type triedRow struct {
	Line    int64         `json:"line"`
	Prompts []triedPrompt `json:"prompts"`
}

// triedPrompt is the prompt of one template, or why there is none.
type triedPrompt struct {
	Template string `json:"template"`
	Prompt   string `json:"prompt,omitempty"`
	Error    string `json:"error,omitempty"`
}

// try renders the first rows with each candidate and prints the prompts.
func try(ctx context.Context, env *Env, input string, o tryOptions, candidates []*candidate) error {
	in, err := load.OpenSource(ctx, env.Stdin, input, o.format)
	if err != nil {
		return err
	}
	defer in.File.Close() //nolint:errcheck // read only
	rows := rowfile.NewReader(in.File, in.Layout, load.RowBytesMax-load.MessageOverhead)
	var seen int64
	var failed failures
	for seen < o.rows {
		row, err := rows.Next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return config.Invalid(fmt.Errorf("%s: %w", input, err))
		}
		seen++
		tried, err := tryRow(candidates, row)
		if err != nil {
			failed.add(row.Line, err)
		}
		if o.json {
			err = json.NewEncoder(env.Stdout).Encode(tried)
		} else {
			err = tried.write(env.Stdout, terminal.Width(env.Stdout))
		}
		if err != nil {
			return err
		}
	}
	if !o.json {
		writeTried(env.Stdout, seen, candidates)
	}
	return failed.err(seen)
}

// tryRow renders a row with each candidate. The error is the first failure.
func tryRow(candidates []*candidate, row rowfile.Row) (tried triedRow, failure error) {
	tried.Line = row.Line
	for _, c := range candidates {
		prompt, err := renderRow(c.prompt, row)
		p := triedPrompt{Template: c.name, Prompt: prompt}
		if err != nil {
			p.Prompt, p.Error = "", err.Error()
			failure = cmp.Or(failure, err)
		} else {
			c.count++
			c.bytes += int64(len(prompt))
		}
		tried.Prompts = append(tried.Prompts, p)
	}
	return tried, failure
}

// writeTried prints how long the prompts of each template are.
func writeTried(w io.Writer, rows int64, candidates []*candidate) {
	terminal.PrintLine(w, "---\n%s; nothing was called or stored", terminal.Plural(int(rows), "row"))
	for _, c := range candidates {
		if c.count > 0 {
			terminal.PrintLine(w, "about %d prompt tokens a row: %s", (c.bytes/c.count+call.BytesPerToken-1)/call.BytesPerToken, c.name)
		}
	}
}

const (
	tryWidth     = 120 // where standard output is no terminal
	tryColumnMin = 24  // narrower columns go one below the other
	trySeparator = " │ "
)

// write prints the prompts of the row in columns. width is that of the terminal, 0: there is none.
func (r *triedRow) write(w io.Writer, width int) error {
	n := len(r.Prompts)
	column := (cmp.Or(width, tryWidth) - (n-1)*runewidth.StringWidth(trySeparator)) / n
	same := !slices.ContainsFunc(r.Prompts, func(p triedPrompt) bool {
		return p.Prompt != r.Prompts[0].Prompt || p.Error != r.Prompts[0].Error
	})
	var b strings.Builder
	fmt.Fprintf(&b, "--- line %d\n", r.Line)
	switch {
	case same:
		if n > 1 {
			b.WriteString("(the same from all templates)\n")
		}
		b.WriteString(r.Prompts[0].text() + "\n")
	case column < tryColumnMin:
		for _, p := range r.Prompts {
			fmt.Fprintf(&b, "[%s]\n%s\n", p.Template, p.text())
		}
	default:
		columns := make([][]string, n)
		for i, p := range r.Prompts {
			columns[i] = append([]string{runewidth.Truncate(p.Template, column, "…"), strings.Repeat("─", column)}, wrap(p.text(), column)...)
		}
		writeColumns(&b, columns, column)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text returns the prompt, or the error in its place. What would control a terminal is replaced.
func (p *triedPrompt) text() string {
	text := p.Prompt
	if p.Error != "" {
		text = "error: " + p.Error
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return unicode.ReplacementChar
		}
		return c
	}, strings.TrimRight(text, "\n"))
}

// writeColumns prints lines beside each other.
func writeColumns(b *strings.Builder, columns [][]string, width int) {
	for i, more := 0, true; more; i++ {
		more = false
		var cells []string
		for _, lines := range columns {
			cell := ""
			if i < len(lines) {
				cell = lines[i]
			}
			more = more || i+1 < len(lines)
			cells = append(cells, runewidth.FillRight(cell, width))
		}
		b.WriteString(strings.TrimRight(strings.Join(cells, trySeparator), " ") + "\n")
	}
}

// wrap breaks a text into lines of at most width columns, between words where it can.
func wrap(text string, width int) (lines []string) {
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "    "), "\n") {
		for runewidth.StringWidth(line) > width {
			head := runewidth.Truncate(line, width, "")
			if space := strings.LastIndexByte(head, ' '); space > 0 && line[len(head)] != ' ' {
				head = head[:space]
			}
			lines, line = append(lines, head), strings.TrimPrefix(line[len(head):], " ")
		}
		lines = append(lines, line)
	}
	return lines
}
