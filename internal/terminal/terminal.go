// Package terminal prints for people: a progress bar, lines, indented JSON, durations.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// PrintLine prints one or more lines, formatted as by [fmt.Printf], as [Lines] shows
// them. Errors are dropped.
func PrintLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, Lines(fmt.Sprintf(format, args...))) //nolint:errcheck // nowhere left to report it
}

// WriteJSON prints a value as indented JSON, for machines and people: characters that a
// terminal would not show are escapes, which mean the same.
func WriteJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(EscapeJSON(text.Bytes()))
	return err
}

// Is reports whether the stream is a terminal, where progress and colour make sense.
func Is(stream any) bool {
	if c, ok := stream.(*Console); ok {
		stream = c.w
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the number of columns of the stream; 0 means that it is not a terminal.
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

// OrDash returns s, or a dash if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Milliseconds returns a duration in milliseconds, as in reports, spans and log lines.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
