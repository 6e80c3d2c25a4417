package security_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/cmd/stage/cli"
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

// setupOf are the entries of a user who creates the streams.
func setupOf(g permissions.Grants) permissions.Grant {
	return g[permissions.Run].And(g[permissions.Batches], g[permissions.Setup])
}

// setUp creates the streams and durables that a stage with some settings needs, as the user "setup".
func (s *site) setUp(settings vars) {
	s.t.Helper()
	if out := s.command("setup", with(vars{"STAGE_CREATE_STREAMS": "true"}, settings), "setup"); !strings.Contains(out, "are ready") {
		s.t.Errorf("setup: %s", out)
	}
}

// command runs a command, which must succeed, and returns its output.
func (s *site) command(user string, environ vars, args ...string) string {
	s.t.Helper()
	code, out, errs := s.attempt(user, environ, args...)
	if code != 0 || strings.Contains(errs, "ermissions") {
		s.t.Errorf("stage %s: exit code %d: %s", strings.Join(args, " "), code, errs)
	}
	return out
}

// attempt runs a command.
func (s *site) attempt(user string, environ vars, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = cli.Main(s.t.Context(), &cli.Env{Args: args, Environ: with(s.as(user), environ), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	return code, stdout.String(), stderr.String()
}

// traffic records the subjects of all messages.
type traffic struct {
	nc       *nats.Conn
	mu       sync.Mutex
	subjects map[string]bool
	more     chan struct{} // closed and replaced at each new subject
}

func watch(t *testing.T, nc *nats.Conn) *traffic {
	t.Helper()
	w := &traffic{nc: nc, subjects: make(map[string]bool), more: make(chan struct{})}
	sub, err := nc.Subscribe(">", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.subjects[m.Subject] {
			w.subjects[m.Subject] = true
			close(w.more)
			w.more = make(chan struct{})
		}
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

// on reports whether anything was published on a subject that an entry matches. more is closed when there is a new
// subject.
func (w *traffic) on(entry string) (found bool, more <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for subject := range w.subjects {
		if permissions.Matches(entry, subject) {
			return true, nil
		}
	}
	return false, w.more
}

// allUsed checks that something was published on a subject of each entry. It waits for that: the last message of a
// command that has ended may still be under way.
func (s *site) allUsed(who string, entries []string) {
	s.t.Helper()
	timeout, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for _, entry := range entries {
		for found, more := s.seen.on(entry); !found; found, more = s.seen.on(entry) {
			select {
			case <-more:
				continue
			case <-timeout.Done():
				s.t.Errorf("%s may publish on %s, but never did", who, entry)
			}
			break
		}
	}
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
