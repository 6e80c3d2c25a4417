package excerpt

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestExcerptsAreShortAndUTF8(t *testing.T) {
	for _, text := range []string{"", "x", strings.Repeat("é", 251), strings.Repeat("x", 499) + "😀", strings.Repeat("\xff", 600), "a\xffb"} {
		got := Of([]byte(text))
		if len(got) > BytesMax || !utf8.ValidString(got) || !strings.HasPrefix(strings.ToValidUTF8(text, ""), got) || got != Of(text) {
			t.Errorf("%.20q: excerpt of %d bytes: %q", text, len(got), got)
		}
	}
}

func TestClippedTextsEndInAnEllipsis(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aé", 2, "a…"}, {"", 0, ""}} {
		if got := Clip(tt.text, tt.most); got != tt.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", tt.text, tt.most, got, tt.want)
		}
	}
}
