//go:build long

package stage_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

func TestAReceiverInTroubleCostsSpansAndNothingElse(t *testing.T) {
	for _, tt := range []struct {
		name string
		rec  *receiver
		rows int
		says string
		all  bool // the spans arrive in the end
	}{
		{"refuses", &receiver{answer: func(int) int { return http.StatusForbidden }}, 50, "spans were not exported", false},
		{"is down for a moment", &receiver{answer: func(n int) int { return map[bool]int{true: http.StatusServiceUnavailable}[n < 1] }}, 50, "", true},
		{"is down", &receiver{answer: func(int) int { return http.StatusServiceUnavailable }}, 50, "not all spans were exported", false},
		{"hangs", &receiver{delay: time.Hour}, 50, "not all spans were exported", false},
		{"is slower than the spans come", &receiver{delay: 8 * time.Second}, 6000, "spans were dropped", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := loaded(t, tt.rows, llmtest.Config{Latency: 10 * time.Millisecond})
				r := s.startWith(vars{"STAGE_POOL_SIZE": "16"}, s.trace(tt.rec))
				began := time.Now()
				s.await(tt.rows)
				if took := time.Since(began); took > time.Minute {
					t.Errorf("%d rows took %v: the receiver slows the stage down", tt.rows, took)
				}
				if tt.all {
					time.Sleep(20 * time.Second) // longer than the exporter waits before it retries
				}
				if took := r.stop(); took > 7*time.Second {
					t.Errorf("the stop took %v", took)
				}
				log := s.logs.String()
				if !strings.Contains(log, tt.says) {
					t.Errorf("the log does not say %q:\n%s", tt.says, log)
				}
				if got := len(tt.rec.received(t)); tt.all && got != 2*tt.rows {
					t.Errorf("%d spans arrived, want %d", got, 2*tt.rows)
				}
			})
		})
	}
}
