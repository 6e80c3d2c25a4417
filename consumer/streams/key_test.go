package streams

import (
	"encoding/json"
	"strings"
	"testing"
)

// A key is spelled in a header as it comes out of an audit event, which is JSON, and is
// spelled there as in the header.
func TestAKeyIsSpelledInOneWay(t *testing.T) {
	for _, tt := range []struct{ key, want string }{
		{"", ""},
		{"acme", "acme"},
		{"größe", "größe"},
		{"rows.\ufffd", "rows.\ufffd"},
		{"rows.\xff", "rows.\ufffd"},
		{"rows.\xff\xfe", "rows.\ufffd\ufffd"},
		{"rows.a\xc3", "rows.a\ufffd"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"}, // a surrogate
		{"a b", "a b"},
	} {
		got := KeyHeader(tt.key)
		text, err := json.Marshal(tt.key)
		if err != nil {
			t.Fatal(err)
		}
		var event string
		if err := json.Unmarshal(text, &event); err != nil {
			t.Fatal(err)
		}
		if got != tt.want || KeyHeader(event) != got || KeyHeader(got) != got {
			t.Errorf("%q: got %q, by its event %q, want %q", tt.key, got, KeyHeader(event), tt.want)
		}
	}
	for _, key := range []string{" a", "a ", "a\tb", "a\rb", "\x7f", strings.Repeat("a", 257), strings.Repeat("\xff", 86)} {
		if got := KeyHeader(key); len(got) != 64 || got != KeyHeader(got) {
			t.Errorf("%q: got %q, want a hash", key, got)
		}
	}
}
