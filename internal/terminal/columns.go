package terminal

import (
	"strings"

	"github.com/mattn/go-runewidth"
)

// Separator is between the columns of [WriteColumns].
const Separator = " │ "

// WriteColumns prints lines beside each other, those of each column filled up to a width.
func WriteColumns(b *strings.Builder, columns [][]string, width int) {
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
		b.WriteString(strings.TrimRight(strings.Join(cells, Separator), " ") + "\n")
	}
}

// reach is how many characters may share a column: a letter and its marks. More of them
// break the line.
const reach = 4

// firstRunes returns the first n characters of the text.
func firstRunes(text string, n int) string {
	for i := range text {
		if n--; n < 0 {
			return text[:i]
		}
	}
	return text
}

// Wrap breaks a text into lines of at most width columns, between words where it can.
func Wrap(text string, width int) (lines []string) {
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "    "), "\n") {
		for {
			// No further: the width of a row of megabytes, measured for each of its
			// lines, takes hours.
			head := runewidth.Truncate(firstRunes(line, reach*(width+1)), width, "")
			if head == line {
				break
			}
			if space := strings.LastIndexByte(head, ' '); space > 0 && line[len(head)] != ' ' {
				head = head[:space]
			}
			lines, line = append(lines, head), strings.TrimPrefix(line[len(head):], " ")
		}
		lines = append(lines, line)
	}
	return lines
}
