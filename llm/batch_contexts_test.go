package llm

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

// TestAnEmptyListOfContextsMeansNone: whoever builds a request from lists sends one for no contexts.
func TestAnEmptyListOfContextsMeansNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, contexts := range []string{`[]`, `null`, `[null, null]`} {
			var r BatchRequest
			must.Do(t, json.Unmarshal([]byte(`{"prompts": ["a", "b"], "contexts": `+contexts+`}`), &r))
			s := scripted(nil)
			reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &r)
			if err != nil || !reply.AllSucceeded() || len(s.requests) != 2 {
				t.Errorf("contexts %s: %+v, %v", contexts, reply, err)
				continue
			}
			for i, got := range s.requests {
				if got.Context != "" {
					t.Errorf("contexts %s: prompt %d has the context %q", contexts, i, got.Context)
				}
			}
		}
	})
}
