//go:build long

package security_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// guarded is a server whose stage loses its right to connect.
type guarded struct {
	opts  *server.Options
	srv   *server.Server
	vars  vars
	admin []nats.Option
	lose  func()
	says  []string // words of the log when it is lost
	fix   func()
}

// reload gives a running server other options.
func (g *guarded) reload(t *testing.T, change func(*server.Options)) {
	t.Helper()
	opts := g.opts.Clone()
	change(opts)
	stagetest.Must(t, g.srv.ReloadOptions(opts))
	g.opts = opts
}

// replaceServer ends the server and starts another one on its port and store.
func (g *guarded) replaceServer(t *testing.T, change func(*server.Options)) {
	t.Helper()
	opts := g.opts.Clone()
	g.srv.Shutdown()
	g.srv.WaitForShutdown()
	change(opts)
	g.opts, g.srv = opts, serve(t, opts)
}

func losses() map[string]func(t *testing.T, g *guarded) {
	far := time.Now().Add(time.Hour)
	return map[string]func(t *testing.T, g *guarded){
		"credentials that expire": func(t *testing.T, g *guarded) {
			t.Helper()
			o := newOperator(t, g.opts)
			creds := stagetest.File(t, "stage.creds", o.credentials(time.Now().Add(10*time.Second)))
			g.vars = vars{"STAGE_NATS_CREDS": creds}
			g.admin = []nats.Option{nats.UserCredentials(stagetest.File(t, "admin.creds", o.credentials(time.Time{})))}
			g.lose = func() {} // it happens by itself
			g.says = []string{"authentication expired", "renew the credentials of the stage, STAGE_NATS_CREDS"}
			g.fix = func() { replaceFile(t, creds, o.credentials(time.Time{})) }
		},
		"a token that is replaced": func(t *testing.T, g *guarded) {
			t.Helper()
			path := stagetest.File(t, "token", "old-token\n")
			var token atomic.Value
			token.Store("old-token")
			g.opts.Authorization = "old-token"
			g.vars = vars{"STAGE_NATS_TOKEN_FILE": path}
			g.admin = []nats.Option{nats.TokenHandler(func() string { return token.Load().(string) }), nats.IgnoreAuthErrorAbort(), nats.MaxReconnects(-1)} //nolint:forcetypeassert // stored above
			g.lose = func() {
				token.Store("new-token")
				g.reload(t, func(o *server.Options) { o.Authorization = "new-token" })
			}
			g.says = []string{"authorization violation", "check STAGE_NATS_TOKEN"}
			g.fix = func() { replaceFile(t, path, []byte("new-token\n")) }
		},
		"a password that is replaced": func(t *testing.T, g *guarded) {
			t.Helper()
			path := stagetest.File(t, "password", "old-password\n")
			users := func(password string) []*server.User {
				return []*server.User{{Username: "admin", Password: "admin"}, {Username: "stage", Password: password}}
			}
			g.opts.Users = users("old-password")
			g.vars = vars{"STAGE_NATS_USER": "stage", "STAGE_NATS_PASSWORD_FILE": path}
			g.admin = []nats.Option{nats.UserInfo("admin", "admin")}
			g.lose = func() { g.reload(t, func(o *server.Options) { o.Users = users("new-password") }) }
			g.says = []string{"authorization violation", "check STAGE_NATS_USER and STAGE_NATS_PASSWORD"}
			g.fix = func() { replaceFile(t, path, []byte("new-password\n")) }
		},
		"a user who is removed and added again": func(t *testing.T, g *guarded) {
			t.Helper()
			users := []*server.User{{Username: "admin", Password: "admin"}, {Username: "stage", Password: "secret-password"}}
			g.opts.Users = users
			g.vars = vars{"STAGE_NATS_USER": "stage", "STAGE_NATS_PASSWORD": "secret-password"}
			g.admin = []nats.Option{nats.UserInfo("admin", "admin")}
			g.lose = func() { g.reload(t, func(o *server.Options) { o.Users = users[:1] }) }
			g.says = []string{"authorization violation", "check STAGE_NATS_USER and STAGE_NATS_PASSWORD"}
			g.fix = func() { g.reload(t, func(o *server.Options) { o.Users = users }) }
		},
		"certificates of another authority": func(t *testing.T, g *guarded) {
			t.Helper()
			first, second := newAuthority(t), newAuthority(t)
			first.guard(g.opts, "127.0.0.1", far, true)
			cert, key := first.issue("stage", far)
			newCert, newKey := second.issue("stage", far)
			both := stagetest.File(t, "both.pem", append(read(t, first.file), read(t, second.file)...))
			g.vars = vars{"STAGE_NATS_TLS_CA": first.file, "STAGE_NATS_TLS_CERT": cert, "STAGE_NATS_TLS_KEY": key}
			// The administrator trusts both authorities and needs no certificate on the new server.
			g.admin = []nats.Option{nats.RootCAs(both), nats.ClientCert(copyOf(t, cert), copyOf(t, key)), nats.MaxReconnects(-1)}
			g.lose = func() {
				g.replaceServer(t, func(o *server.Options) { second.guard(o, "127.0.0.1", far, false) })
			}
			g.says = []string{"not connected to NATS", "certificate signed by unknown authority"}
			g.fix = func() {
				replaceFile(t, cert, read(t, newCert))
				replaceFile(t, key, read(t, newKey))
				replaceFile(t, first.file, read(t, second.file))
			}
		},
	}
}

// A stage that the server no longer admits reports why, in log and /readyz, and which variable to fix. It keeps
// running, rereads its files, and continues as soon as it is admitted: no row is lost or duplicated.
func TestALostLoginIsReportedAndRestored(t *testing.T) {
	for name, prepare := range losses() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &guarded{opts: options(t)}
			prepare(t, g)
			g.srv = serve(t, g.opts)
			nc := admin(t, g.srv, append(g.admin, nats.ReconnectWait(50*time.Millisecond))...)
			in := newRows(t, nc, jetstream.FileStorage)
			s := run(t, with(newLLM(t, llmtest.Config{}), vars{"STAGE_NATS_URL": g.srv.ClientURL(), "STAGE_STREAM_STORAGE": "file"}, g.vars))
			in.through(20)
			g.lose()
			s.says(g.says...)
			s.says("blocked, retrying", "area=connection", "not connected to NATS: ")
			if ok, why := s.ready(); ok || !strings.Contains(why, "not connected to NATS") || strings.Contains(why, "-token") || strings.Contains(why, "-password") {
				t.Errorf("ready %v: %s", ok, why)
			}
			in.load(20)
			g.fix()
			in.await(20)
			s.says("recovered", "area=connection")
			if ok, why := s.ready(); !ok {
				t.Errorf("fixed, but not ready: %s", why)
			}
			in.through(5)
			s.stop()
			in.complete()
		})
	}
}
