package security_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// lock is one way in which a server is guarded.
type lock struct {
	name  string
	guard func(t *testing.T, opts *server.Options) (right vars, wrong []refusal, admin []nats.Option)
}

// refusal is what a stage with other variables ends with.
type refusal struct {
	vars vars
	want []string
}

func locks() []lock {
	far := time.Now().Add(time.Hour)
	return []lock{
		{"credentials file", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			o := newOperator(t, opts)
			creds := stagetest.File(t, "right.creds", o.credentials(time.Time{}))
			stranger := newOperator(t, &server.Options{})
			return vars{"STAGE_NATS_CREDS": creds}, []refusal{
				{vars{}, []string{"Authorization Violation: the server requires a login: set STAGE_NATS_CREDS"}},
				{vars{"STAGE_NATS_CREDS": stagetest.File(t, "stranger.creds", stranger.credentials(time.Time{}))}, []string{"Authorization Violation: check STAGE_NATS_CREDS"}},
				{vars{"STAGE_NATS_CREDS": stagetest.File(t, "expired.creds", o.credentials(time.Now().Add(-time.Hour)))}, []string{"STAGE_NATS_CREDS"}},
				{vars{"STAGE_NATS_CREDS": stagetest.File(t, "empty.creds", "")}, []string{"STAGE_NATS_CREDS: ", "give the path of a file with the user's JWT and its seed"}},
			}, []nats.Option{nats.UserCredentials(creds)}
		}},
		{"nkey", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			key, seed := newSeed(t)
			_, other := newSeed(t)
			opts.Nkeys = []*server.NkeyUser{{Nkey: key}}
			asStage := stagetest.Value(nats.NkeyOptionFromSeed(seed))(t)
			return vars{"STAGE_NATS_NKEY": seed}, []refusal{
				{vars{"STAGE_NATS_NKEY": other}, []string{"Authorization Violation: check STAGE_NATS_NKEY"}},
				{vars{"STAGE_NATS_NKEY": stagetest.File(t, "none.nk", "no seed\n")}, []string{"STAGE_NATS_NKEY: nkeys: "}},
			}, []nats.Option{asStage}
		}},
		{"token", func(_ *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			opts.Authorization = "right-token"
			return vars{"STAGE_NATS_TOKEN": "right-token"}, []refusal{
				{vars{"STAGE_NATS_TOKEN": "wrong-token"}, []string{"Authorization Violation: check STAGE_NATS_TOKEN"}},
			}, []nats.Option{nats.Token("right-token")}
		}},
		{"token in a file", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			opts.Authorization = "right-token"
			return vars{"STAGE_NATS_TOKEN_FILE": stagetest.File(t, "token", "right-token\n")}, []refusal{
				{vars{"STAGE_NATS_TOKEN_FILE": stagetest.File(t, "wrong", "wrong-token\n")}, []string{"Authorization Violation: check STAGE_NATS_TOKEN"}},
			}, []nats.Option{nats.Token("right-token")}
		}},
		{"user and password", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			opts.Username, opts.Password = "user", "right-password"
			return vars{"STAGE_NATS_USER": "user", "STAGE_NATS_PASSWORD_FILE": stagetest.File(t, "password", "right-password\n")}, []refusal{
				{vars{"STAGE_NATS_USER": "user", "STAGE_NATS_PASSWORD": "wrong-password"}, []string{"Authorization Violation: check STAGE_NATS_USER and STAGE_NATS_PASSWORD"}},
				{vars{"STAGE_NATS_USER": "nobody", "STAGE_NATS_PASSWORD": "right-password"}, []string{"check STAGE_NATS_USER and STAGE_NATS_PASSWORD"}},
			}, []nats.Option{nats.UserInfo("user", "right-password")}
		}},
		{"TLS with a private CA", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			ca := newAuthority(t)
			ca.guard(opts, "127.0.0.1", far, false)
			return vars{"STAGE_NATS_TLS_CA": ca.file}, []refusal{
				{vars{}, []string{"certificate signed by unknown authority: name the CA that signed the server's certificate with STAGE_NATS_TLS_CA"}},
				{vars{"STAGE_NATS_TLS_CA": newAuthority(t).file}, []string{"with STAGE_NATS_TLS_CA"}},
				{vars{"STAGE_NATS_TLS_CA": stagetest.File(t, "none.pem", "no certificate")}, []string{"STAGE_NATS_TLS_CA"}},
				{vars{"STAGE_NATS_TLS_CA": ca.file, "STAGE_NATS_TLS_FIRST": "true"}, []string{"unset STAGE_NATS_TLS_FIRST"}},
			}, []nats.Option{nats.RootCAs(ca.file)}
		}},
		{"mutual TLS", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			ca := newAuthority(t)
			ca.guard(opts, "127.0.0.1", far, true)
			cert, key := ca.issue("stage", far)
			strangeCert, strangeKey := newAuthority(t).issue("stage", far)
			return vars{"STAGE_NATS_TLS_CA": ca.file, "STAGE_NATS_TLS_CERT": cert, "STAGE_NATS_TLS_KEY": key}, []refusal{
				{vars{"STAGE_NATS_TLS_CA": ca.file}, []string{"STAGE_NATS_TLS_CERT and STAGE_NATS_TLS_KEY"}},
				{vars{"STAGE_NATS_TLS_CA": ca.file, "STAGE_NATS_TLS_CERT": strangeCert, "STAGE_NATS_TLS_KEY": strangeKey}, []string{"STAGE_NATS_TLS_CERT and STAGE_NATS_TLS_KEY"}},
				{vars{"STAGE_NATS_TLS_CA": ca.file, "STAGE_NATS_TLS_CERT": cert, "STAGE_NATS_TLS_KEY": strangeKey}, []string{"STAGE_NATS_TLS_CERT"}},
			}, []nats.Option{nats.RootCAs(ca.file), nats.ClientCert(cert, key)}
		}},
		{"TLS first", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			ca := newAuthority(t)
			ca.guard(opts, "127.0.0.1", far, false)
			opts.TLSHandshakeFirst = true
			return vars{"STAGE_NATS_TLS_CA": ca.file, "STAGE_NATS_TLS_FIRST": "true"}, []refusal{
				{vars{"STAGE_NATS_TLS_CA": ca.file}, []string{"set STAGE_NATS_TLS_FIRST"}},
			}, []nats.Option{nats.RootCAs(ca.file), nats.TLSHandshakeFirst()}
		}},
		{"own inbox prefix", func(_ *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			opts.Users = []*server.User{
				{Username: "admin", Password: "all"},
				{Username: "stage", Password: "few", Permissions: &server.Permissions{
					Publish: &server.SubjectPermission{Allow: []string{">"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_stage.>"}},
				}},
			}
			login := vars{"STAGE_NATS_USER": "stage", "STAGE_NATS_PASSWORD": "few"}
			return with(login, vars{"STAGE_NATS_INBOX_PREFIX": "_INBOX_stage"}), []refusal{
				{login, []string{`Permissions Violation for Subscription to "_INBOX.`, "set STAGE_NATS_INBOX_PREFIX to a prefix that the user may subscribe to"}},
			}, []nats.Option{nats.UserInfo("admin", "all")}
		}},
		{"nothing", func(t *testing.T, _ *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			_, seed := newSeed(t)
			return vars{}, []refusal{
				{vars{"STAGE_NATS_TLS_CA": newAuthority(t).file}, []string{"the server has no TLS: unset STAGE_NATS_TLS_CA"}},
				{vars{"STAGE_NATS_NKEY": seed}, []string{"the server does not support NKeys: unset STAGE_NATS_NKEY"}},
			}, nil
		}},
		{"a certificate for another host", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			ca := newAuthority(t)
			ca.guard(opts, "nats.test", far, false)
			return nil, []refusal{{vars{"STAGE_NATS_TLS_CA": ca.file}, []string{"change the host in STAGE_NATS_URL, or the certificate"}}}, nil
		}},
		{"an expired certificate", func(t *testing.T, opts *server.Options) (vars, []refusal, []nats.Option) {
			t.Helper()
			ca := newAuthority(t)
			ca.guard(opts, "127.0.0.1", time.Now().Add(-time.Minute), false)
			return nil, []refusal{{vars{"STAGE_NATS_TLS_CA": ca.file}, []string{"renew the server's certificate"}}}, nil
		}},
	}
}

// slowRefusals are the locks from which a wrong stage learns only after seconds that it is refused. A short run leaves out
// the wrong stages.
var slowRefusals = []string{"TLS first", "own inbox prefix"}

// A guarded server of each kind lets the right stage in. A wrong one reports which variable to fix, without revealing
// the secret.
func TestAGuardedServerLetsTheRightStageIn(t *testing.T) {
	for _, l := range locks() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			opts := options(t)
			right, wrong, asAdmin := l.guard(t, opts)
			if testing.Short() && slices.Contains(slowRefusals, l.name) {
				wrong = nil
			}
			srv := serve(t, opts)
			environ := with(newLLM(t, llmtest.Config{}), vars{"STAGE_NATS_URL": srv.ClientURL()})
			for _, w := range wrong {
				err := run(t, with(environ, w.vars)).ended()
				if err == nil || !holdsAll(err.Error(), w.want) || strings.Contains(err.Error(), "-token") || strings.Contains(err.Error(), "-password") {
					t.Errorf("%v: it ended with: %v\nwant %q and no secret", w.vars, err, w.want)
				}
			}
			if right == nil {
				return
			}
			in := newRows(t, admin(t, srv, asAdmin...), jetstream.MemoryStorage)
			s := run(t, with(environ, right))
			in.through(20)
			if ok, why := s.ready(); !ok {
				t.Errorf("not ready: %s", why)
			}
			s.stop()
		})
	}
}
