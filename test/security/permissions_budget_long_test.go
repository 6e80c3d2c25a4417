//go:build long

package security_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
)

// Two stages with these permissions share a budget, and a third, whose user has none of them, works alone and says so
// once.
func TestThePermissionsOfABudgetAreEnoughAndAllUsed(t *testing.T) {
	t.Parallel()
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	may := g[permissions.Run].And(g[permissions.Batches], g[permissions.Status], g[permissions.Budget])
	s := newSite(t, g, map[string]permissions.Grant{
		"stage": may, "other": may, "poor": g[permissions.Run].And(g[permissions.Batches], g[permissions.Status]), "setup": setupOf(g),
	})
	s.setUp(nil)
	s.rows = oldRows(t, s.nc)
	environ := with(newLLM(t, llmtest.Config{}), vars{"STAGE_BUDGET": "account", "STAGE_RETRY_MAX_ATTEMPTS": "1"})
	leader := run(t, with(environ, s.as("stage")))
	leader.says("leading the shared budget")
	member := run(t, with(environ, s.as("other")))
	member.says("joined the shared budget")
	poor := run(t, with(environ, s.as("poor")))
	poor.says("alone in the shared budget")
	member.stop()
	leader.stop()
	const n = 5
	s.load(n)
	s.await(n)
	poor.stop()
	noneDenied(t, leader, member)
	s.allUsed("the stage", g[permissions.Budget].Publish)
	text, _ := poor.logs.read()
	if got := strings.Count(text, "its NATS user must be allowed to publish and subscribe"); got != 1 {
		t.Errorf("the log says %d times what to allow, want once:\n%s", got, text)
	}
}
