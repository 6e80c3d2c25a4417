package streams

import (
	"errors"
	"testing"
)

func TestServerVersions(t *testing.T) {
	for _, c := range []struct {
		version              string
		pins, resetsConsumer bool
	}{
		{"2.9.25", false, false},
		{"2.10.29", false, false},
		{"2.11.0", true, false},
		{"2.12.3", true, false},
		{"2.13.0-RC.1", true, false},
		{"2.14.0", true, true},
		{"2.15.2", true, true},
		{"3.0.0", true, true},
		{"", true, true},
	} {
		if err := checkServer(c.version); (err == nil) != c.pins || err != nil && !errors.Is(err, ErrServer) {
			t.Errorf("version %q: %v, pins %v", c.version, err, c.pins)
		}
		if got := serverSince(c.version, 14); got != c.resetsConsumer {
			t.Errorf("version %q: since 2.14 %v, want %v", c.version, got, c.resetsConsumer)
		}
	}
}
