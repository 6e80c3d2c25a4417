package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

func TestWhatIsNotSeenIsShown(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"right to left", "gpj.\u202eexe", `gpj.\u202eexe`},
		{"isolates", "a\u2066b\u2069", `a\u2066b\u2069`},
		{"marks of direction", "a\u200eb\u200fc\u061cd", `a\u200eb\u200fc\u061cd`},
		{"no width", "a\u200bb\ufeffc\u2060d\u00ade", `a\u200bb\ufeffc\u2060d\u00ade`},
		{"line and paragraph", "a\u2028b\u2029c", `a\u2028b\u2029c`},
		{"tags", "x\U000e0041\U000e007f", `x\U000e0041\U000e007f`},
		{"fillers", "a\u3164b\u115fc", `a\u3164b\u115fc`},
		{"notes", "\ufff9a\ufffbb", `\ufff9a\ufffbb`},
		{"controls", "a\x00\x1b[31mb\x7f\u009bc\r\nd ", "a  [31mb  c  d"},
		{"a joiner within ASCII", "pay\u200dpal \u200c", `pay\u200dpal \u200c`},
		{"Persian", "می\u200cخواهم", "می\u200cخواهم"},
		{"Hindi", "क्\u200dष", "क्\u200dष"},
		{"emoji", "👩\u200d👩\u200d👧 ❤\ufe0f\u200d🔥", "👩\u200d👩\u200d👧 ❤\ufe0f\u200d🔥"},
		{"a number in Arabic", "\u0600\u0661", "\u0600\u0661"},
		{"not UTF-8", "a\x9bb", "a\ufffdb"},
		{"all else", "é 漢字 \u00a0|", "é 漢字 \u00a0|"},
	} {
		if got := OneLine(tt.text); got != tt.want {
			t.Errorf("%s: got %+q, want %+q", tt.name, got, tt.want)
		}
	}
	if got, want := Lines("a\n\tb\r\u202e\x1b\n"), "a\n\tb\ufffd\\u202e\ufffd\n"; got != want {
		t.Errorf("lines: got %+q, want %+q", got, want)
	}
}

// Whatever is written, nobody loses a character: a program reads the same values.
func TestJSONOnATerminalMeansTheSame(t *testing.T) {
	value := "a\u202eb\u009b\x7f\x1b\u2028\ufeffé👩\u200d👧pay\u200dpal\U000e0041 漢"
	var compact bytes.Buffer
	enc := json.NewEncoder(&compact)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{value: value}); err != nil {
		t.Fatal(err)
	}
	raw := strings.ReplaceAll(compact.String(), `\u2028`, "\u2028") // other encoders leave it
	for _, size := range []int{1, 2, 3, 1000} {
		var out bytes.Buffer
		w := &jsonWriter{w: &out}
		for rest := []byte(raw); len(rest) > 0; {
			n := min(size, len(rest))
			if wrote, err := w.Write(rest[:n]); err != nil || wrote != n {
				t.Fatalf("wrote %d of %d bytes, %v", wrote, n, err)
			}
			rest = rest[n:]
		}
		got := make(map[string]string)
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got[value] != value {
			t.Errorf("pieces of %d: got %+q, %v", size, got, err)
		}
		shown := out.String()
		if strings.ContainsFunc(strings.TrimSpace(shown), unicode.IsControl) || strings.ContainsAny(shown, "\u202e\u2028\ufeff\U000e0041") || strings.Contains(shown, "y\u200d") ||
			!strings.Contains(shown, `\udb40\udc41`) || !strings.Contains(shown, "é👩\u200d👧") {
			t.Errorf("pieces of %d: got %+q", size, shown)
		}
	}
}

func TestPrintedLinesHideNothing(t *testing.T) {
	var out strings.Builder
	PrintLine(&out, "VIOLATION %s:\n  %s", "\x1b]0;title\a", "a\u202eb")
	if want := "VIOLATION \ufffd]0;title\ufffd:\n  a\\u202eb\n"; out.String() != want {
		t.Errorf("got %+q, want %+q", out.String(), want)
	}
	out.Reset()
	if err := WriteJSON(&out, "a\u202e\u009b"); err != nil || out.String() != `"a\u202e\u009b"`+"\n" {
		t.Errorf("got %+q, %v", out.String(), err)
	}
}
