package terminal

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table prints lines of cells below each other. Cells may be texts of others: each is
// printed as [OneLine] shows it. Create it with [NewTable], and call Flush at the end.
type Table struct{ out *tabwriter.Writer }

// NewTable returns a table that prints to w.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Line adds a line. One without cells ends the columns: those below have widths of their
// own.
func (t *Table) Line(cells ...string) {
	for i := range cells {
		cells[i] = OneLine(cells[i])
	}
	fmt.Fprintln(t.out, strings.Join(cells, "\t")) //nolint:errcheck // Flush reports it
}

// Flush prints the table, and returns the error of the writer.
func (t *Table) Flush() error { return t.out.Flush() }
