//go:build long

package security_test

import (
	"sync/atomic"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
)

// In order by key a replica that takes over also reads the log: row 1 waits while all others have their results, and is
// the only one that is called again.
func TestThePermissionsOfOrderByKeyAreEnoughAndAllUsed(t *testing.T) {
	t.Parallel()
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	order := vars{"STAGE_ORDER": "key", "STAGE_ORDER_KEY": "field.n"}
	s := newSite(t, g, map[string]permissions.Grant{
		"stage": g[permissions.Run].And(g[permissions.Batches], g[permissions.Status], g[permissions.Order]), "setup": setupOf(g),
	})
	s.setUp(order)
	s.rows = oldRows(t, s.nc)
	var calls atomic.Int32
	environ := with(newLLM(t, heldRow(&calls)), s.as("stage"), order, vars{"STAGE_POOL_SIZE": "4", "STAGE_RETRY_MAX_ATTEMPTS": "1"})
	const n = 30
	s.load(n)
	owner := run(t, environ)
	owner.says("claimed the partition")
	standby := run(t, environ)
	s.await(n - 1)
	owner.hard()
	_ = owner.ended() // killed
	standby.says("claimed the partition")
	s.await(1)
	if got := calls.Load(); got != n+1 {
		t.Errorf("%d calls for %d rows and a stage that was killed, want one more than rows", got, n)
	}
	standby.stop()
	noneDenied(t, standby)
	s.allUsed("the stage", g[permissions.Order].Publish)
}
