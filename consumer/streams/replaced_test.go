package streams

import (
	"testing"

	"github.com/nats-io/nats.go"
)

func TestARedrivenRowReplacesTheFirstOfItsChain(t *testing.T) {
	for name, tt := range map[string]struct {
		of, replaces string
		want         uint64
	}{
		"a row of its own":                  {"", "", 0},
		"redriven":                          {"stage/ROWS/0/3", "3", 3},
		"redriven twice":                    {"stage/ROWS/0/11", "3", 3},
		"redriven by an older version":      {"stage/ROWS/2/3", "", 3},
		"redriven, with a damaged header":   {"stage/ROWS/0/3", "three", 3},
		"redriven by a stage beside it":     {"other/ROWS/0/3", "3", 0},
		"redriven by a stage before it":     {"stage/EARLIER/0/3", "3", 0},
		"a result of a stage before it":     {"", "3", 0},
		"of a name that begins like ours":   {"stage/ROWS2/0/3", "3", 0},
		"a header that names no row at all": {"stage/ROWS/0", "3", 0},
	} {
		header := nats.Header{}
		if tt.of != "" {
			header.Set(HeaderRedriveOf, tt.of)
		}
		if tt.replaces != "" {
			header.Set(HeaderReplaces, tt.replaces)
		}
		if got := Replaced(header, "stage", "ROWS"); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}
