package rowfile

import (
	"fmt"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

const (
	// columnsMax is the most columns that a spreadsheet has.
	columnsMax = 16384
	// columnBytesMax bounds all names together.
	columnBytesMax = 1 << 20
)

// Columns are the names of the members of rows, in the order in which they first appear.
// The zero value has none.
type Columns struct {
	Names []string

	known map[string]bool
	bytes int
}

// Add adds the members of a row, and reports whether it is a JSON object. Any other body
// has no members. The error says that there are more than a table can have.
func (c *Columns) Add(body []byte) (isObject bool, err error) {
	if _, err := jsonbytes.ReadObject(nil, body); err != nil {
		return false, nil
	}
	if c.known == nil {
		c.known = make(map[string]bool)
	}
	for key := range jsonbytes.Members(body) {
		if c.known[string(key)] {
			continue
		}
		name := string(key)
		c.known[name] = true
		c.Names = append(c.Names, name)
		if c.bytes += len(name); len(c.Names) > columnsMax || c.bytes > columnBytesMax {
			return true, fmt.Errorf("rows have more than %d different members, or %d bytes of names, too many for the columns of a table", columnsMax, columnBytesMax)
		}
	}
	return true, nil
}
