package preview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/terminal"
	"github.com/mattn/go-runewidth"
)

// triedRow is what try prints of a row, or of an element of it.
type triedRow struct {
	Line    int64         `json:"line"`
	Item    *int          `json:"item,omitempty"`  // the element, from 0, or nil for a whole row
	Items   int           `json:"items,omitempty"` // how many elements the row has
	Prompts []triedPrompt `json:"prompts"`
}

// triedPrompt is the prompt of one template, or why there is none.
type triedPrompt struct {
	Template string `json:"template"`
	Prompt   string `json:"prompt,omitempty"`
	Error    string `json:"error,omitempty"`
}

const (
	tryWidth     = 120 // the width if standard output is no terminal
	tryColumnMin = 24  // columns that would be narrower are printed one below the other
)

// write prints the prompts of the row in columns. width is the width of the terminal, or
// 0 if there is none.
func (r *triedRow) write(w io.Writer, width int) error {
	n := len(r.Prompts)
	column := (cmp.Or(width, tryWidth) - (n-1)*runewidth.StringWidth(terminal.Separator)) / n
	same := !slices.ContainsFunc(r.Prompts, func(p triedPrompt) bool {
		return p.Prompt != r.Prompts[0].Prompt || p.Error != r.Prompts[0].Error
	})
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n", placeText(r.Line, r.Item, r.Items))
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
			columns[i] = append([]string{runewidth.Truncate(p.Template, column, "…"), strings.Repeat("─", column)}, terminal.Wrap(p.text(), column)...)
		}
		terminal.WriteColumns(&b, columns, column)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text returns the prompt, or the error in its place.
func (p *triedPrompt) text() string {
	text := p.Prompt
	if p.Error != "" {
		text = "error: " + p.Error
	}
	return printable(text)
}

// printable is a text of several lines in a form that does not control a terminal.
func printable(text string) string { return terminal.Lines(strings.TrimRight(text, "\n")) }
