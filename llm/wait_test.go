package llm

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestWaits runs the headers of testdata/wait.txt.
func TestWaits(t *testing.T) {
	datadriven.RunTest(t, "testdata/wait.txt", func(t *testing.T, d *datadriven.TestData) string {
		w := ParseWait(headersOf(t, d.Input), now)
		return fmt.Sprintf("retry-after=%v remaining=0 is %t, reset=%v\n", w.RetryAfter, w.Remaining0, w.Reset)
	})
	if w := ParseWait(http.Header{"Retry-After": {strings.Repeat("1,", 10_000) + "9"}}, now); w.RetryAfter != 9*time.Second {
		t.Errorf("of very many waits: %+v", w)
	}
}

func FuzzParseWait(f *testing.F) {
	f.Add("Retry-After", "20", "X-Ratelimit-Remaining", "0", "Sun, 01 Mar 2026 12:00:00 GMT")
	f.Add("Retry-After-Ms", "1.5", "Anthropic-Ratelimit-Requests-Remaining", "0", "")
	f.Add("X-Ratelimit-Reset-Tokens", "6m0s", "X-Ratelimit-Remaining-Tokens", "0", "now")
	f.Add("Ratelimit", "limit=100, remaining=0, reset=30", "Ratelimit", `"a";r=0;t=30, "b";r=1`, "")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, date string) {
		h := http.Header{}
		h.Set("Date", date)
		h.Set(name1, value1)
		h.Set(name2, value2)
		w := ParseWait(h, now)
		for _, d := range []time.Duration{w.RetryAfter, w.Reset} {
			if d < 0 || d > maxWait {
				t.Errorf("ParseWait(%v) = %+v: %v is out of bounds", h, w, d)
			}
		}
		if w.Reset != 0 && !w.Remaining0 {
			t.Errorf("ParseWait(%v) = %+v: a reset of nothing", h, w)
		}
	})
}
