package security_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/cmd/stage/cli"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/llm-stage/stage/test/permissions"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// site is a server with a user for each list of docs/permissions.md, named like its heading, and an administrator.
type site struct {
	*rows
	t      *testing.T
	grants permissions.Grants
	users  map[string]permissions.Grant
	srv    *server.Server
	nc     *nats.Conn // of the administrator
	seen   *traffic
}

const inbox = "_INBOX_stage"

// newSite serves users with these grants.
func newSite(t *testing.T, g permissions.Grants, users map[string]permissions.Grant) *site {
	t.Helper()
	opts := options(t)
	opts.Users = []*server.User{{Username: "admin", Password: "admin"}}
	for name, grant := range users {
		opts.Users = append(opts.Users, grant.User(name))
	}
	s := &site{t: t, grants: g, users: users, srv: serve(t, opts)}
	s.nc = admin(t, s.srv, nats.UserInfo("admin", "admin"))
	s.seen = watch(t, s.nc)
	return s
}

// as returns the environment of a user.
func (s *site) as(user string) vars {
	return vars{
		"STAGE_NATS_URL": s.srv.ClientURL(), "STAGE_NATS_USER": user, "STAGE_NATS_PASSWORD": user, "STAGE_NATS_INBOX_PREFIX": inbox,
		"STAGE_STREAM_STORAGE": "memory", "STAGE_CREATE_STREAMS": "false",
	}
}

// command runs a command, which must succeed, and returns its output.
func (s *site) command(user string, environ vars, args ...string) string {
	s.t.Helper()
	var out, errs bytes.Buffer
	code := cli.Main(s.t.Context(), &cli.Env{Args: args, Environ: with(s.as(user), environ), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs})
	if code != 0 || strings.Contains(errs.String(), "ermissions") {
		s.t.Errorf("stage %s: exit code %d: %s", strings.Join(args, " "), code, errs.String())
	}
	return out.String()
}

// allUsed checks that each subject that a user may publish on was published on.
func (s *site) allUsed(user string, but ...string) {
	s.t.Helper()
	for _, entry := range s.users[user].Publish {
		if !slices.Contains(but, entry) && !s.seen.on(entry) {
			s.t.Errorf("%s may publish on %s, but never did", user, entry)
		}
	}
}

// traffic records the subjects of all messages.
type traffic struct {
	nc       *nats.Conn
	mu       sync.Mutex
	subjects map[string]bool
}

func watch(t *testing.T, nc *nats.Conn) *traffic {
	t.Helper()
	w := &traffic{nc: nc, subjects: make(map[string]bool)}
	sub, err := nc.Subscribe(">", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.subjects[m.Subject] = true
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = nc.Flush() // what another connection publishes from now on is seen
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// on reports whether anything was published on a subject that an entry matches.
func (w *traffic) on(entry string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for subject := range w.subjects {
		if permissions.Matches(entry, subject) {
			return true
		}
	}
	return false
}

// noneDenied checks that the server has denied a stage nothing.
func noneDenied(t *testing.T, stages ...*process) {
	t.Helper()
	for _, s := range stages {
		text, _ := s.logs.read()
		for line := range strings.Lines(text) {
			if strings.Contains(line, "ermissions") {
				t.Errorf("the stage was denied something: %s", line)
			}
		}
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

// batch sends a stage a batch of two prompts, and pings it.
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

// oldRows listens to a stage whose streams exist.
func oldRows(t *testing.T, nc *nats.Conn) *rows {
	t.Helper()
	r := &rows{t: t}
	var err error
	if r.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if r.results, err = nc.SubscribeSync("results.stage.*.rows"); err != nil {
		t.Fatal(err)
	}
	return r
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
