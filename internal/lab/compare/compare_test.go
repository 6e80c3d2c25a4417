package compare

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
)

// A comparison in virtual time finds what docs/throttle.md says of the ways.
func TestTheWaysCompareAsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		llm := llmtest.Config{
			Schedule: []llmtest.Phase{{Rate: 20, For: 15 * time.Second}, {Rate: 5, For: 8 * time.Second}},
			Burst:    5, Latency: time.Second, LatencySigma: .3, Seed: 1,
		}
		r := must.Value(Run(t.Context(), Config{LLM: llm, Slots: 32, For: time.Minute, Out: &out}))(t)
		best := float64(r.Lanes[optimum].Answered)
		if offered := 20.*(15+15+14) + 5*16; best < .95*offered || best > offered+5 {
			t.Errorf("the optimum has %.0f rows of %.0f", best, offered)
		}
		if got := float64(r.Lanes[adaptive].Answered) / best; got < .85 { // .90 to .94: which goroutine is first at an instant is not fixed
			t.Errorf("adaptive has %.2f of the optimum", got)
		}
		if n := r.Lanes[one].Answered; n < 45 || n > 65 || r.Lanes[one].Refused > 0 {
			t.Errorf("one call at a time: %+v", r.Lanes[one])
		}
		if got := strings.Count(out.String(), "\n"); got != 12 { // a line each 5 s
			t.Errorf("%d lines of progress:\n%s", got, out.String())
		}
		if err := xml.NewDecoder(strings.NewReader(r.SVG())).Decode(new(struct{})); err != nil {
			t.Errorf("the picture: %v", err)
		}
	})
}

// On a terminal the bars are drawn over each other.
func TestBarsOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		llm := llmtest.Config{Schedule: []llmtest.Phase{{Rate: 20, For: time.Minute}}, Burst: 5, Latency: 100 * time.Millisecond}
		r := must.Value(Run(t.Context(), Config{LLM: llm, Slots: 4, For: 5 * time.Second, Out: &out, Screen: true}))(t)
		if got := strings.Count(out.String(), "\x1b[5A"); got != len(r.Samples)-1 {
			t.Errorf("%d of %d pictures are drawn over another", got, len(r.Samples))
		}
		if err := r.WriteTable(io.Discard); err != nil {
			t.Error(err)
		}
	})
}
