// Package terminal prints for people: a progress bar, lines, durations, and what a stream is.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// PrintLine prints one line for people.
func PrintLine(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, format+"\n", args...) //nolint:errcheck // nowhere left to say it
}

// WriteJSON prints a value for machines that a person may read too.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Is says whether the stream is a terminal, where progress and colour make sense.
func Is(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is the number of columns of the stream, 0 if it is no terminal.
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

func Plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Duration is a duration to about three digits.
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

func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Milliseconds is a duration as reports, spans and log lines have it.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
