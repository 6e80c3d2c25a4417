package batches

import (
	"testing"
	"testing/synctest"
	"time"
)

// A server that starts again must not know the batches and files of the one before it by another's contents.
func TestIDsOfARestartedServerAreNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]bool{}
		for range 2 {
			s := New(Config{}, 1, nil)
			for _, p := range []Provider{OpenAI, Azure, Anthropic, Gemini} {
				ids := []string{s.add(&job{provider: p}).id}
				if p != Anthropic {
					ids = append(ids, s.store(p, "a.jsonl", nil).id)
				}
				for _, id := range ids {
					if seen[id] {
						t.Errorf("%s: %s twice", p, id)
					}
					seen[id] = true
				}
			}
			time.Sleep(time.Second)
		}
	})
}
