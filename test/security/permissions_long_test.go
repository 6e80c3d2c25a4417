//go:build long

package security_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
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
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	run1 := g[permissions.Run]
	only := func(command string) permissions.Grant {
		return permissions.Grant{Publish: g[command].Publish, Subscribe: run1.Subscribe}
	}
	s := newSite(t, g, map[string]permissions.Grant{
		"stage": run1.And(g[permissions.Batches], g[permissions.Status], g[permissions.Control]), "setup": setupOf(g), "load": only("load"), "results": only("results"),
		"tail": only("tail").And(permissions.Grant{Publish: g["tail --row"].Publish}), "verify": only("verify").And(permissions.Grant{Publish: g[permissions.Readings].Publish}), "redrive": only("redrive"),
		"batch": only("batch"), "usage": only("usage"), "roll-up": only("usage").And(g["usage with a roll-up"], permissions.Grant{Publish: []string{"usage.>", "$JS.API.STREAM.CREATE.USAGE"}}),
		"status": only("status"), "steer": only("pause, resume, probe, drain"),
	})
	s.setUp(nil)
	s.rows = oldRows(t, s.nc)
	kept := stagetest.Value(s.nc.SubscribeSync("journal.stage.0.>"))(t)
	var calls atomic.Int32
	environ := with(newLLM(t, heldRow(&calls)), s.as("stage"), vars{"STAGE_POOL_SIZE": "4", "STAGE_JOURNAL_AFTER": "0", "STAGE_WINDOW": "64", "STAGE_RETRY_MAX_ATTEMPTS": "1", "STAGE_CONTROL": "true"})
	const n = 30
	s.load(n)
	owner := run(t, environ)
	owner.says("claimed the partition")
	standby := run(t, environ)
	for range n - 1 { // all replies but the first
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
	s.allUsed("stage", s.users["stage"].Publish)
	s.allUsed("setup", s.users["setup"].Publish)

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
	usage := s.command("usage", nil, "usage")
	if !strings.Contains(usage, "\ntotal ") {
		t.Errorf("usage: %s", usage)
	}
	s.command("roll-up", nil, "usage", "--roll-up")
	if out := s.command("roll-up", nil, "usage"); out != usage {
		t.Errorf("usage with a roll-up: %s, want as without it: %s", out, usage)
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
	for user, grant := range s.users {
		s.allUsed(user, grant.Publish)
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

// heldRow answers all rows at once except the first, whose first call gets no answer.
func heldRow(calls *atomic.Int32) llmtest.Config {
	var held atomic.Bool
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		calls.Add(1)
		if c.Prompt == "Row 1" && held.CompareAndSwap(false, true) {
			return &llmtest.Step{Trouble: llmtest.Stall}
		}
		return &llmtest.Step{Delay: 10 * time.Millisecond}
	}}
}

// batch sends a stage a batch of two prompts, and pings it. It leaves a deferred batch with the stage, and another one
// until the stage removes it.
func (s *site) batch(environ vars) {
	s.t.Helper()
	stage := run(s.t, environ)
	stage.says("started")
	for subject, want := range map[string]string{"stage.llm_batch": `"status":"success"`, "stage.llm_query_batched": `"results"`, "$SRV.PING.llm-stage": `"name":"llm-stage"`} {
		if reply := s.ask(subject); !strings.Contains(reply, want) {
			s.t.Errorf("%s: %q, want %s in it", subject, reply, want)
		}
	}
	if out := s.command("batch", nil, "batch", stagetest.File(s.t, "batch.json", []byte(`{"prompts":["three"]}`))); !strings.Contains(out, `success`) {
		s.t.Errorf("batch: %s", out)
	}
	deferred := func(id string) string {
		return stagetest.File(s.t, id+".json", []byte(`{"prompts":["four"],"id":"`+id+`"}`))
	}
	s.command("batch", nil, "batch", "--detach", deferred("kept"))
	if out := s.command("batch", nil, "batch", "get", "kept", "--wait", patience.String()); !strings.Contains(out, `"done":1`) {
		s.t.Errorf("batch get: %s", out)
	}
	if out := s.command("batch", nil, "batch", "cancel", "kept"); !strings.Contains(out, "done, 1 of 1") {
		s.t.Errorf("batch cancel: %s", out)
	}
	if out := s.command("batch", nil, "batch", "ls"); !strings.Contains(out, "kept") {
		s.t.Errorf("batch ls: %s", out)
	}
	removals := stagetest.Value(s.nc.SubscribeSync("$JS.API.STREAM.PURGE.BATCHES"))(s.t)
	s.command("batch", nil, "batch", "--detach", "--keep", "1s", deferred("removed"))
	if _, err := removals.NextMsg(patience); err != nil {
		s.t.Errorf("the removal of a batch: %v", err)
	}
	stage.stop()
	noneDenied(s.t, stage)
}

// ask sends a request, and retries while nobody answers: the stage does not report when it starts to.
func (s *site) ask(subject string) string {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < patience/6; {
		if reply, err := s.nc.Request(subject, []byte(`{"prompts":["one","two"]}`), 2*time.Second); err == nil {
			return string(reply.Data)
		}
	}
	return ""
}

// remove deletes a row.
func (r *rows) remove(seq uint64) {
	r.t.Helper()
	stream, err := r.js.Stream(r.t.Context(), "ROWS")
	if err == nil {
		err = stream.DeleteMsg(r.t.Context(), seq)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// says waits until the stage has logged a line that holds all words.
func (s *process) says(words ...string) {
	s.t.Helper()
	timeout := time.After(patience)
	for {
		text, next := s.logs.read()
		for line := range strings.Lines(text) {
			if holdsAll(line, words) {
				return
			}
		}
		select {
		case <-next:
		case <-s.done:
			if after, _ := s.logs.read(); after != text {
				continue
			}
			s.t.Fatalf("the stage has ended (%v) and did not log %q:\n%s", s.err, words, text)
		case <-timeout:
			s.t.Fatalf("the stage does not log %q:\n%s", words, text)
		}
	}
}

// replaceFile replaces the text of a file atomically, as Kubernetes does.
func replaceFile(t *testing.T, path string, text []byte) {
	t.Helper()
	stagetest.Must(t, os.WriteFile(path+".new", text, 0o600))
	stagetest.Must(t, os.Rename(path+".new", path))
}

// complete checks that each row has one result, in the order of the rows.
func (r *rows) complete() {
	r.t.Helper()
	stream := stagetest.Value(r.js.Stream(r.t.Context(), "RESULTS"))(r.t)
	last, n := 0, 0
	for at := stream.CachedInfo().State.FirstSeq; at <= stream.CachedInfo().State.LastSeq; at++ {
		m := stagetest.Value(stream.GetMsg(r.t.Context(), at))(r.t)
		if !strings.HasSuffix(m.Subject, ".rows") {
			continue // a claim
		}
		seq, err := strconv.Atoi(m.Header.Get(streams.HeaderSourceSeq))
		if err != nil || seq != last+1 {
			r.t.Errorf("result of row %d after that of row %d (%v)", seq, last, err)
		}
		last, n = seq, n+1
	}
	if n != r.sent {
		r.t.Errorf("%d results of %d rows", n, r.sent)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text := stagetest.Value(os.ReadFile(path))(t)
	return text
}

func copyOf(t *testing.T, path string) string {
	t.Helper()
	return stagetest.File(t, filepath.Base(path), read(t, path))
}
