//go:build long

package security_test

import (
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// The list of docs/permissions.md is enough for everything that a stage does: rows go through, waiting replies go to
// the journal, a standby takes over from a stage that was killed and repeats no call whose reply is in the journal, and
// a stop hands over. Each entry is used.
func TestTheDocumentedPermissionsAreEnoughAndAllUsed(t *testing.T) {
	t.Parallel()
	g, err := permissions.Read("../../docs/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	run1 := g[permissions.Run]
	only := func(command string) permissions.Grant {
		return permissions.Grant{Publish: g[command].Publish, Subscribe: run1.Subscribe}
	}
	s := newSite(t, g, map[string]permissions.Grant{
		"stage": run1.And(g[permissions.Batches], g[permissions.Status], g[permissions.Control]), "setup": run1.And(g[permissions.Setup]), "load": only("load"), "results": only("results"),
		"tail": only("tail").And(permissions.Grant{Publish: g["tail --row"].Publish}), "verify": only("verify").And(permissions.Grant{Publish: g[permissions.Readings].Publish}), "redrive": only("redrive"),
		"batch": only("batch"), "usage": only("usage"), "status": only("status"), "steer": only("pause, resume, probe, drain"),
	})
	if out := s.command("setup", vars{"STAGE_CREATE_STREAMS": "true"}, "setup"); !strings.Contains(out, "are ready") {
		t.Errorf("setup: %s", out)
	}
	s.rows = oldRows(t, s.nc)
	kept, err := s.nc.SubscribeSync("journal.stage.0")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int32
	environ := with(newLLM(t, heldRow(&calls)), s.as("stage"), vars{"STAGE_POOL_SIZE": "4", "STAGE_JOURNAL_AFTER": "0", "STAGE_WINDOW": "64", "STAGE_RETRY_MAX_ATTEMPTS": "1", "STAGE_CONTROL": "true"})
	const n = 30
	s.load(n)
	owner := run(t, environ)
	owner.says("claimed the partition")
	standby := run(t, environ)
	for range n { // the marker, and all replies but the first
		if _, err := kept.NextMsg(patience); err != nil {
			t.Fatalf("an entry of the journal: %v", err)
		}
	}
	owner.hard()
	_ = owner.ended() // killed
	standby.says("claimed the partition")
	s.await(n)
	if got := calls.Load(); got != n+1 {
		t.Errorf("%d calls for %d rows and a stage that was killed, want one more than rows", got, n)
	}
	// A row that was deleted: the stage asks whether anything lies between.
	standby.stop()
	s.load(2)
	s.remove(n + 1)
	again := run(t, with(environ, vars{"STAGE_TEMPLATE": "Row {{ row.missing }}"})) // fails, for redrive
	s.await(1)
	s.load(1)
	s.await(1)
	again.stop()
	noneDenied(t, standby, again)
	s.batch(environ)
	s.allUsed("stage")
	s.allUsed("setup")

	rowsFile := stagetest.File(t, "rows.jsonl", []byte("{\"n\":7}\n{\"n\":8}\n"))
	s.command("load", nil, "load", rowsFile)
	s.command("load", nil, "load", rowsFile)
	after := run(t, environ)
	s.await(2)
	if out := s.command("status", nil, "status", "--name", "stage"); !strings.Contains(out, "1 replica,") {
		t.Errorf("status: %s", out)
	}
	for _, order := range []string{"pause", "resume"} {
		if out := s.command("steer", nil, order); !strings.Contains(out, " done ") {
			t.Errorf("%s: %s", order, out)
		}
	}
	if out := s.command("results", nil, "results"); strings.Count(out, "\n") != n+4 {
		t.Errorf("%d results, want %d", strings.Count(out, "\n"), n+4)
	}
	if out := s.command("tail", nil, "tail", "--row", "2"); !strings.Contains(out, "row 2") {
		t.Errorf("tail: %s", out)
	}
	if out := s.command("usage", nil, "usage"); !strings.Contains(out, "\ntotal ") {
		t.Errorf("usage: %s", out)
	}
	// The mark of a redrive that was killed: the next one looks for its row.
	if err := s.nc.PublishMsg(&nats.Msg{Subject: "results.stage.redrive.0.1000000", Header: nats.Header{"Stage-Redrive-From": {"1"}}}); err != nil {
		t.Fatal(err)
	}
	s.command("redrive", nil, "redrive")
	s.await(2)
	after.stop()
	noneDenied(t, after)
	s.command("verify", nil, "verify")
	for user := range maps.Keys(s.users) {
		s.allUsed(user)
	}
}

// A user who may not delete consumers hears nothing of that: the server removes them by itself.
func TestAUserWhoMayNotDeleteConsumersIsNotWarned(t *testing.T) {
	t.Parallel()
	l := newLimited(t, &server.User{Username: "reader", Password: "reader", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{"$JS.API.CONSUMER.DELETE.>"}},
	}})
	for _, args := range readings {
		if errs := l.command("reader", args...); strings.Contains(errs, "WARN") || strings.Contains(errs, "ermission") {
			t.Errorf("stage %s: %s", strings.Join(args, " "), errs)
		}
	}
	if len(l.left()) == 0 {
		t.Error("no consumer is left: the user was allowed to delete them")
	}
}
