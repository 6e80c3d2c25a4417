package terminal_test

import (
	"math"
	"testing"

	"github.com/llm-stage/stage/internal/terminal"
)

func TestBytesAreShortForEverySize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 10 << 10: "10 KiB", 1<<20 - 1: "1.0 MiB", 20 << 20: "20 MiB",
		1<<30 - 600: "1.0 GiB", math.MaxInt64: "8.0 EiB",
	} {
		if got := terminal.Bytes(n); got != want {
			t.Errorf("%d bytes: got %q, want %q", n, got, want)
		}
	}
}
