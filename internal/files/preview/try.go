package preview

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/mattn/go-runewidth"
)

// Template is a template to try.
type Template struct {
	name    string
	prompt  *executor.Prompt
	foreach *config.ForeachConfig
	sizes   // of the calls that the rows so far would take
}

// LoadTemplates compiles templates: each of texts is a path, or the text itself, and
// files are paths. Without any it compiles the configured one. The other parts of a
// prompt are taken from cfg. The error lists the problems of all.
func LoadTemplates(cfg *config.Config, texts, files []string) (all []*Template, err error) {
	add := func(name, text, file string) {
		own := *cfg
		own.Prompt.Template, own.Prompt.TemplateFile = text, file
		if text+file != "" { // in place of what is configured
			own.Prompt.MessagesFile, own.Prompt.MessagesField, own.Prompt.RequestField = "", "", ""
		}
		p, problem := executor.LoadPrompt(&own)
		if problem != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, problem))
		}
		t := &Template{name: name, prompt: p, foreach: &cfg.Foreach}
		if problem == nil {
			t.sizes = newSizes(p)
		}
		all = append(all, t)
	}
	for _, text := range texts {
		name, file, problem := NameTemplate(text)
		switch {
		case problem != nil:
			err = errors.Join(err, problem)
		case file:
			add(name, "", text)
		default:
			add(name, text, "")
		}
	}
	for _, file := range files {
		add(file, "", file)
	}
	if len(all) == 0 && err == nil {
		add(cmp.Or(cfg.Prompt.TemplateFile, oneLine(cfg.Prompt.Template), cfg.Prompt.MessagesFile, cfg.Prompt.MessagesField, cfg.Prompt.RequestField), cfg.Prompt.Template, cfg.Prompt.TemplateFile)
	}
	return all, err
}

// NameTemplate returns what a value of --template is called, and whether it is the path of
// a file or the template itself.
func NameTemplate(text string) (name string, file bool, err error) {
	_, missing := os.Stat(text)
	switch {
	case missing == nil:
		return text, true, nil
	case strings.ContainsAny(text, "{ \n"):
		return oneLine(text), false, nil
	}
	return "", false, fmt.Errorf("--template %s: no such file, and no template: one has {{ row.… }} in it", text)
}

func oneLine(text string) string {
	return runewidth.Truncate(strings.Join(strings.Fields(text), " "), 40, "…")
}

// Try renders each row with each template and prints the prompts. With asJSON it prints an
// object for each row, or for each element of a row that fans out. The error says how many
// rows would fail.
func Try(ctx context.Context, in Input, templates []*Template, out io.Writer, asJSON bool) error {
	source, err := in.open(ctx)
	if err != nil {
		return err
	}
	defer source.File.Close() //nolint:errcheck // read only
	files := source.Beside()
	defer files.Close() //nolint:errcheck // read only
	for _, t := range templates {
		t.prompt.Media.Files = files
	}
	var seen int64
	var failed failures
	gaps := int64(0)
	err = in.each(ctx, source, func(row rowfile.Row) error {
		seen++
		failure, kept, err := tryRow(ctx, templates, row, asJSON, out)
		if failure != nil {
			failed.add(row.Line, failure)
			if kept {
				gaps++
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if !asJSON {
		writeTried(out, seen, templates)
	}
	return failed.err(seen, gaps)
}

// tryRow renders a row with each template and prints the prompts. Of a row that fans out it
// prints the first elements, or all of them as JSON. failure is the first failure of the
// row, or nil. kept says that a failure would take the place of its element, and the other
// elements would be called.
func tryRow(ctx context.Context, templates []*Template, row rowfile.Row, asJSON bool, out io.Writer) (failure error, kept bool, err error) {
	show := func(tried *triedRow) error {
		if asJSON {
			return json.NewEncoder(terminal.JSON(out)).Encode(tried)
		}
		return tried.write(out, terminal.Width(out))
	}
	calls, failure := callsOf(templates[0].foreach, row)
	if failure != nil {
		tried := triedRow{Line: row.Line}
		for _, t := range templates {
			tried.Prompts = append(tried.Prompts, triedPrompt{Template: t.name, Error: failure.Error()})
		}
		return failure, false, show(&tried)
	}
	if calls.count() == 0 && asJSON {
		return nil, false, show(&triedRow{Line: row.Line, Prompts: []triedPrompt{}})
	}
	keeps := calls.items != nil && templates[0].foreach.Errors == config.ForeachKeep
	before, fails := make([]sizes, len(templates)), make([]bool, len(templates))
	for i, t := range templates {
		before[i] = t.sizes
	}
	defer func() {
		for i, t := range templates {
			if fails[i] && !keeps { // none of its elements is called
				t.sizes = before[i]
			}
		}
	}()
	for i := 0; i < calls.count() && err == nil; i++ {
		tried, problem := calls.try(ctx, templates, i, fails)
		if failure = cmp.Or(failure, problem); asJSON || i < shownItems {
			err = show(tried)
		}
	}
	if rest := calls.rest(); rest != "" && !asJSON && err == nil {
		terminal.PrintLine(out, "%s", rest)
	}
	return failure, keeps, err
}

// try renders one of the calls with each template. failure is the first one, and fails
// notes which templates have one.
func (c *calls) try(ctx context.Context, templates []*Template, i int, fails []bool) (tried *triedRow, failure error) {
	tried = &triedRow{Line: c.line}
	if c.items != nil {
		tried.Item, tried.Items = &i, c.count()
	}
	for n, t := range templates {
		prompt, err := c.render(ctx, t.prompt, i)
		p := triedPrompt{Template: t.name, Prompt: prompt.text}
		if err != nil {
			p.Prompt, p.Error = "", err.Error()
			failure, fails[n] = cmp.Or(failure, err), true
		} else {
			t.add(prompt)
		}
		tried.Prompts = append(tried.Prompts, p)
	}
	return tried, failure
}

// writeTried prints how long the prompts of each template are.
func writeTried(w io.Writer, rows int64, templates []*Template) {
	terminal.PrintLine(w, "---\n%s; nothing was called or stored", terminal.Plural(int(rows), "row"))
	for _, t := range templates {
		if t.calls == 0 {
			continue
		}
		each := "a row"
		if t.foreach.Field != "" {
			each = "an element"
		}
		text := t.text()
		if t.calls > 1 {
			text += fmt.Sprintf(", %d %s", t.tokens()/t.calls, each)
		}
		terminal.PrintLine(w, "%s: %s", text, t.name)
	}
}
