package answers

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
	"github.com/mattn/go-runewidth"
)

const (
	plainWidth  = 120 // the width if standard output is no terminal
	columnMin   = 24  // columns that would be narrower are printed one below the other
	answerLines = 12  // the most lines that are shown of an answer
	rowWidth    = 200 // the most columns of the line that shows the row
)

// WriteTable prints the answers to each row side by side, and then the sums of each column.
// width is the width of the terminal, or 0 if there is none.
func (r *Report) WriteTable(w io.Writer, width int) error {
	var b strings.Builder
	width = cmp.Or(width, plainWidth)
	for i := range r.Rows {
		r.writeRow(&b, &r.Rows[i], width)
	}
	b.WriteString("---\n")
	r.writeColumns(&b)
	if text := r.agreementText(); text != "" {
		b.WriteString("\n" + text)
	}
	if r.Stopped != nil {
		fmt.Fprintf(&b, "\nsome answers are missing: %s\n", *r.Stopped)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeRow(b *strings.Builder, row *RowReport, width int) {
	fmt.Fprintf(b, "--- line %d: %s\n", row.Line, oneLine(string(row.Row), min(rowWidth, width-12)))
	if row.Expected != nil {
		fmt.Fprintf(b, "expected: %s\n", oneLine(textOf(row.Expected), width-10))
	}
	n := len(row.Answers)
	column := (width - (n-1)*runewidth.StringWidth(terminal.Separator)) / n
	if n == 1 || column < columnMin {
		for i := range row.Answers {
			fmt.Fprintf(b, "[%s] %s\n", terminal.OneLine(r.Columns[i].Name), row.Answers[i].note())
			for _, line := range row.Answers[i].lines(width) {
				b.WriteString(line + "\n")
			}
		}
		return
	}
	columns := make([][]string, n)
	for i := range row.Answers {
		a := &row.Answers[i]
		columns[i] = append([]string{runewidth.Truncate(terminal.OneLine(r.Columns[i].Name), column, "…"), strings.Repeat("─", column)}, a.lines(column)...)
		if a.Status != StatusNotCalled {
			columns[i] = append(columns[i], terminal.Wrap("("+a.note()+")", column)...)
		}
	}
	terminal.WriteColumns(b, columns, column)
}

// oneLine returns a text in one line of at most so many columns.
func oneLine(text string, width int) string {
	return runewidth.Truncate(terminal.OneLine(strings.Join(strings.Fields(text), " ")), max(width, columnMin), "…")
}

// lines returns the answer, or why there is none, in lines of a width.
func (a *Answer) lines(width int) []string {
	lines := terminal.Wrap(terminal.Lines(a.text()), width)
	if more := len(lines) - answerLines; more > 1 {
		lines = append(lines[:answerLines], fmt.Sprintf("… %d more lines", more))
	}
	return lines
}

// text returns the answer as a person reads it, or why there is none.
func (a *Answer) text() string {
	switch a.Status {
	case StatusAnswered:
		return strings.TrimSpace(a.value.text)
	case StatusFailed:
		return fmt.Sprintf("failed: %s: %s", *a.Reason, *a.Error)
	case StatusNotCalled:
		return "not called: " + *a.Error
	}
	return "no answer: " + *a.Error
}

// note returns what the answer took.
func (a *Answer) note() string {
	var parts []string
	if a.Expected != nil {
		parts = append(parts, map[bool]string{true: "as expected", false: "not as expected"}[*a.Expected])
	}
	if a.Stored {
		parts = append(parts, "stored")
	}
	if a.LatencyMS != nil {
		parts = append(parts, milliseconds(*a.LatencyMS))
	}
	if a.Calls > 1 {
		parts = append(parts, terminal.Plural(a.Calls, "call"))
	}
	if a.SchemaFailures > 0 {
		parts = append(parts, terminal.Plural(a.SchemaFailures, "reply")+" against the schema")
	}
	if a.TotalTokens > 0 {
		parts = append(parts, fmt.Sprintf("%d+%d tokens", a.PromptTokens, a.CompletionTokens))
	}
	if a.TotalTokens > 0 && a.CostUSD != nil {
		parts = append(parts, dollars(a.CostUSD)+" USD")
	}
	if len(parts) == 0 {
		return "no call"
	}
	return strings.Join(parts, ", ")
}

func milliseconds(ms float64) string {
	return terminal.Duration(time.Duration(ms * float64(time.Millisecond)))
}

func dollars(usd *float64) string {
	if usd == nil {
		return "unknown"
	}
	return strconv.FormatFloat(*usd, 'f', 6, 64)
}

// writeColumns prints a line for each column. Failures and the like are left out if no
// column has any.
func (r *Report) writeColumns(b *strings.Builder) {
	count := func(shown bool, of func(*ColumnReport) int) func(*ColumnReport) string {
		if !shown {
			return nil
		}
		return func(c *ColumnReport) string { return strconv.Itoa(of(c)) }
	}
	shown := []struct {
		head string
		cell func(c *ColumnReport) string // nil if the column is not shown
	}{
		{"COLUMN", func(c *ColumnReport) string { return oneLine(c.Name, 40) }},
		{"ANSWERED", func(c *ColumnReport) string { return strconv.Itoa(c.Answered) }},
		{"FAILED", count(r.HasFailed(), func(c *ColumnReport) int { return c.Failed })},
		{"MISSING", count(r.HasMissing(), func(c *ColumnReport) int { return c.Missing })},
		{"AS EXPECTED", func(c *ColumnReport) string { return c.Expected.String() }},
		{"CALLS", func(c *ColumnReport) string { return strconv.Itoa(c.Calls) }},
		{"STORED", count(r.HasStored(), func(c *ColumnReport) int { return c.Stored })},
		{"SCHEMA FAILURES", count(r.HasSchemaFailures(), func(c *ColumnReport) int { return c.SchemaFailures })},
		{"TOKENS", func(c *ColumnReport) string { return fmt.Sprintf("%d+%d", c.PromptTokens, c.CompletionTokens) }},
		{"USD", func(c *ColumnReport) string { return dollars(c.CostUSD) }},
		{"PAID NOW", func(c *ColumnReport) string { return dollars(c.PaidUSD) }},
		{"LATENCY", func(c *ColumnReport) string { return c.latency(func(l *Latency) float64 { return l.Median }) }},
		{"SLOWEST", func(c *ColumnReport) string { return c.latency(func(l *Latency) float64 { return l.Max }) }},
	}
	table := terminal.NewTable(b)
	var head []string
	lines := make([][]string, len(r.Columns))
	for _, one := range shown {
		if one.cell == nil || one.head == "PAID NOW" && !r.HasStored() || one.head == "AS EXPECTED" && r.Expect == nil {
			continue
		}
		head = append(head, one.head)
		for i := range r.Columns {
			lines[i] = append(lines[i], one.cell(&r.Columns[i]))
		}
	}
	table.Line(head...)
	for _, line := range lines {
		table.Line(line...)
	}
	_ = table.Flush() // b takes everything
}

// any reports whether a number is above 0 in a column.
func (r *Report) any(of func(*ColumnReport) int) bool {
	return slices.ContainsFunc(r.Columns, func(c ColumnReport) bool { return of(&c) > 0 })
}

// HasFailed reports whether a row has failed.
func (r *Report) HasFailed() bool { return r.any(func(c *ColumnReport) int { return c.Failed }) }

// HasMissing reports whether an answer is missing.
func (r *Report) HasMissing() bool { return r.any(func(c *ColumnReport) int { return c.Missing }) }

// HasStored reports whether an answer was stored.
func (r *Report) HasStored() bool { return r.any(func(c *ColumnReport) int { return c.Stored }) }

// HasSchemaFailures reports whether a reply did not satisfy the schema.
func (r *Report) HasSchemaFailures() bool {
	return r.any(func(c *ColumnReport) int { return c.SchemaFailures })
}

func (c *ColumnReport) latency(of func(*Latency) float64) string {
	if c.Latency == nil {
		return "-"
	}
	return milliseconds(of(c.Latency))
}

// String shows a share, as in "4 of 5".
func (s Share) String() string { return fmt.Sprintf("%d of %d", s.Equal, s.Rows) }

// agreementText says how many rows have equal answers.
func (r *Report) agreementText() string {
	if r.Agreement == nil {
		return ""
	}
	var b strings.Builder
	if r.Agreement.All.Rows == 0 && len(r.Columns) == 2 {
		return "" // no row has an answer in both
	}
	fmt.Fprintf(&b, "the same answer in all columns: %s\n", rowsText(r.Agreement.All))
	if len(r.Columns) > 2 {
		for _, p := range r.Agreement.Pairs {
			fmt.Fprintf(&b, "%s = %s: %s\n", oneLine(r.Columns[p.Columns[0]].Name, 40), oneLine(r.Columns[p.Columns[1]].Name, 40), rowsText(p.Share))
		}
	}
	for _, m := range r.Agreement.Members {
		fmt.Fprintf(&b, "member %s: %s\n", oneLine(m.Name, 40), rowsText(m.Share))
	}
	return b.String()
}

func rowsText(s Share) string {
	return fmt.Sprintf("%d of %s", s.Equal, terminal.Plural(s.Rows, "row"))
}
