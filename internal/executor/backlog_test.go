package executor

import (
	"testing"

	"github.com/llm-stage/stage/consumer"
)

// Without the token the goroutine that renders rows would sleep on beside them.
func TestWhateverGoesIntoTheBacklogLeavesAToken(t *testing.T) {
	for name, change := range map[string]func(*backlog){
		"a row":                     func(b *backlog) { b.add(entry{row: &consumer.Row{Seq: 1}}) },
		"a prompt":                  func(b *backlog) { b.addPrompt(&prompt{}) },
		"a job with known media":    func(b *backlog) { b.addDescribed(&job{}) },
		"rows that may begin again": (*backlog).resume,
	} {
		b := newBacklog()
		change(b)
		change(b) // a second one finds the token there, and does not block
		if tokens := len(b.ready); tokens != 1 {
			t.Errorf("%s: %d tokens, want 1", name, tokens)
		}
	}
}
