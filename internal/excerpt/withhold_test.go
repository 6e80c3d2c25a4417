package excerpt

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestMessagesAreShownWithoutTheRow(t *testing.T) {
	for _, tt := range []struct{ name, message, row, want string }{
		{"nothing of it", "model large does not exist", `{"q":"what is it?"}`, "model large does not exist"},
		{"all of it", "bad prompt: also secret", `{"q":"also secret"}`, "bad prompt: […]"},
		{"twice", "also secret, also secret!", `{"q":"also secret"}`, "[…], […]!"},
		{"a part", `the input "rise and fall of" is refused`, `{"q":"On the rise and fall of Rome"}`, `the input "[…]" is refused`},
		{"an escaped value", "got 'ein Schlüsselbund'", `{"q":"ein Schl\u00fcsselbund"}`, "got '[…]'"},
		{"as JSON", `bad input: {"content":"say \"hi\" to Zoë"}`, `{"q":"say \"hi\" to Zoë"}`, `bad input: {"content":"[…]"}`},
		{"as JSON in ASCII", `bad input: {"content":"say \"hi\" to Zo\u00eb \ud83d\ude00"}`, `{"q":"say \"hi\" to Zoë 😀"}`, `bad input: {"content":"[…]"}`},
		{"a short value", "mode is no number", `{"q":"mode","n":12}`, "mode is no number"},
		{"a number", "4111111111111111 is not a date", `{"card":4111111111111111}`, "[…] is not a date"},
		{"a nested value", "user jane@example.org is unknown", `{"user":{"mail":["jane@example.org"]}}`, "user […] is unknown"},
		{"names of members stay", "undefined: row.description; the row has: descriptions", `{"descriptions":1}`, "undefined: row.description; the row has: descriptions"},
		{"no JSON", "cannot read: an email to Jane", `an email to Jane`, "cannot read: […]"},
		{"no row", "why", "", "why"},
		{"no message", "", `{"q":"x"}`, ""},
	} {
		if got := Without(tt.message, []byte(tt.row)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestNoRunOfARowIsShown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.StringOfN(rapid.RuneFrom([]rune("ab é")), 0, 60, -1)
		value := words.Draw(t, "value")
		row, err := json.Marshal(map[string]any{"q": value})
		if err != nil {
			t.Fatal(err)
		}
		message := words.Draw(t, "before") + value + words.Draw(t, "after")
		got := Without(message, row)
		if !utf8.ValidString(got) || len(got) > len(message)+3*len(withheld) {
			t.Fatalf("got %q of %q", got, message)
		}
		trimmed := strings.TrimSpace(value)
		for i := 0; i+runBytesMin <= len(trimmed); i++ {
			if run := trimmed[i : i+runBytesMin]; strings.Contains(got, run) {
				t.Fatalf("%q shows %q of %q", got, run, value)
			}
		}
	})
}

func TestARowThatRepeatsItselfCostsLittle(t *testing.T) {
	row := []byte(`{"q":"` + strings.Repeat("a", 8<<20) + `"}`)
	if got := Without(strings.Repeat("a", BytesMax), row); got != withheld {
		t.Errorf("got %q", got)
	}
}

// Two texts have a part in common, which is withheld for the first: what is left of the second's quote is short.
func TestTextsAreWithheldTogether(t *testing.T) {
	got := WithoutAll("bad: ann has a secret; bob has a secret", "ann has a secret", "bob has a secret")
	if want := "bad: […]; […]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
