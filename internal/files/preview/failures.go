package preview

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/terminal"
)

// failures are rows that would fail, grouped by the text of their error without its
// numbers: "element 2: no id" and "element 5: no id" are one group.
type failures struct {
	rows   int64
	groups []*failure // in the order of their first rows
	others int64      // rows of further groups
}

// failure is a group of rows.
type failure struct {
	key, text string // the error of the first row, without its numbers and with them
	rows      int64
	lines     []string // of the first rows
}

const (
	failureGroups = 50 // the most groups
	failureLines  = 5  // the most lines that are listed of a group
)

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

// err is the error of a command that found these failures among so many rows. gaps is how
// many of the failed rows only have an error in the place of an element. The error is nil
// if no row would fail.
func (f *failures) err(rows, gaps int64) error {
	switch {
	case f.rows == 0:
		return nil
	case gaps > 0:
		return fmt.Errorf("%d of %s would fail or have elements that do: fix the template or these rows", f.rows, terminal.Plural(int(rows), "row"))
	}
	return fmt.Errorf("%d of %s would fail: fix the template or these rows", f.rows, terminal.Plural(int(rows), "row"))
}
