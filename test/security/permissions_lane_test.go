package security_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
)

func TestThePermissionsOfTheLaneCommandsAreEnough(t *testing.T) {
	t.Parallel()
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	create := permissions.Grant{Publish: []string{"$JS.API.STREAM.CREATE.LANE"}}
	s := newSite(t, g, map[string]permissions.Grant{
		"setup": setupOf(g).And(g[permissions.Lane], create), "lane": {Publish: g["lane"].Publish, Subscribe: g[permissions.Run].Subscribe},
	})
	lane := vars{"STAGE_LANE": "batch"}
	s.setUp(lane)
	s.command("setup", lane, "setup") // only checks
	const intent = `{"kind":"intent","token":"b7c1e2","time":"2026-01-02T03:04:05Z","provider":"openai","rows":{"n":1,"seqs":"AQ==","hashes":"AAAAAAAAAAA="}}`
	stagetest.Value(s.nc.Request("lane.stage.0.b7c1e2", []byte(intent), s.nc.Opts.Timeout))(t)
	if out := s.command("lane", nil, "lane", "ls"); !strings.Contains(out, "b7c1e2") {
		t.Errorf("lane ls: %s", out)
	}
}

// An owner reads the records of batches and what the journal holds, and removes both when they are done.
func TestThePermissionsOfTheLaneAreEnoughAndAllUsed(t *testing.T) {
	t.Parallel()
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	create := permissions.Grant{Publish: []string{"$JS.API.STREAM.CREATE.LANE"}}
	s := newSite(t, g, map[string]permissions.Grant{
		"setup": setupOf(g).And(g[permissions.Lane], create),
		"stage": g[permissions.Run].And(g[permissions.Batches], g[permissions.Status], g[permissions.Lane]),
	})
	lane := vars{
		"STAGE_LANE": "batch", "STAGE_LANE_WAIT": "300ms", "STAGE_LANE_POLL": "300ms", "STAGE_LLM_PROVIDER": "mock",
		"STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_JOURNAL_AFTER": "0",
	}
	s.setUp(lane)
	s.rows = oldRows(t, s.nc)
	environ := with(s.as("stage"), lane)
	s.load(30)
	owner := run(t, environ)
	s.await(30)
	owner.stop()
	noneDenied(t, owner)
	s.allUsed("the stage", g[permissions.Lane].Publish)
}
