// Package terminal prints for people: a progress bar, lines, indented JSON, durations.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
)

// PrintLine prints a line, formatted as by [fmt.Printf]. Errors are dropped.
func PrintLine(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, format+"\n", args...) //nolint:errcheck // nowhere left to report it
}

// WriteJSON prints a value as indented JSON, for machines and people.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Is reports whether the stream is a terminal, where progress and colour make sense.
func Is(stream any) bool {
	if c, ok := stream.(*Console); ok {
		stream = c.w
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the number of columns of the stream; 0: it is not a terminal.
func Width(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Plural returns n and the word, with an s unless n is 1.
func Plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Duration formats a duration to about three digits; 0 and below as "0".
func Duration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", Milliseconds(d))
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", Milliseconds(d))
	case d < 100*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// OneLine returns text without control characters, so that foreign text neither breaks a line nor controls the terminal.
func OneLine(text string) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text), " ")
}

// OrDash returns s, or a dash if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Milliseconds returns a duration in milliseconds, as in reports, spans and log lines.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
