package natsconn

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// reloadable starts a server whose settings can be changed while it runs.
func reloadable(t *testing.T, settings string) (srv *server.Server, reload func(settings string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	write := func(settings string) {
		t.Helper()
		stagetest.Must(t, os.WriteFile(file, []byte("listen: \"127.0.0.1:-1\"\n"+settings), 0o600))
	}
	write(settings)
	opts := stagetest.Value(server.ProcessConfigFile(file))(t)
	opts.NoSigs, opts.NoLog = true, true
	srv = stagetest.Value(server.NewServer(opts))(t)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	return srv, func(settings string) {
		t.Helper()
		write(settings)
		stagetest.Must(t, srv.Reload())
	}
}

// connectTo returns a Conn to a server.
func connectTo(t *testing.T, srv *server.Server) *Conn {
	t.Helper()
	dial := func(context.Context) (*nats.Conn, error) {
		return nats.Connect(srv.ClientURL(), nats.UserInfo("u", "p"), nats.MaxReconnects(-1), nats.ReconnectWait(1))
	}
	nc := stagetest.Value(dial(t.Context()))(t)
	t.Cleanup(nc.Close)
	return Over(nc, dial)
}

// again connects again, and waits for it.
func again(t *testing.T, nc *nats.Conn) {
	t.Helper()
	back := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(back)
	stagetest.Must(t, nc.ForceReconnect())
	<-back
}

func TestTheConnectionIsMadeAgainWhenTheServerTakesLargerMessagesAgain(t *testing.T) {
	const user = "authorization { user: u, password: p }\n"
	srv, reload := reloadable(t, user+"max_payload: 65536")
	c := connectTo(t, srv)
	r := renewal{c: c, most: c.NC().MaxPayload()}
	due := func(want bool) {
		t.Helper()
		if why := r.due(t.Context(), c.NC()); (why != "") != want {
			t.Errorf("max_payload %d, most %d: due because %q, want %v", c.NC().MaxPayload(), r.most, why, want)
		}
	}
	due(false)
	reload(user + "max_payload: 300")
	due(false)
	again(t, c.NC()) // as the server closes the connection at the first message
	due(false)
	reload(user + "max_payload: 65536")
	due(true)
	due(false) // it brought nothing, so this is another server than the one that takes more
	again(t, c.NC())
	due(false)
	if got := c.NC().MaxPayload(); got != 65536 {
		t.Errorf("max_payload %d", got)
	}
}

func TestTheConnectionIsMadeAgainWhenAnswersMayComeAgain(t *testing.T) {
	const denied = `authorization { users: [ { user: u, password: p, permissions: { subscribe: { deny: "_INBOX.>" } } } ] }`
	const allowed = `authorization { users: [ { user: u, password: p } ] }`
	srv, reload := reloadable(t, denied)
	c := connectTo(t, srv)
	r := renewal{c: c, most: c.NC().MaxPayload()}
	if why := r.due(t.Context(), c.NC()); why != "" {
		t.Errorf("due because %q", why)
	}
	stagetest.Value(c.NC().SubscribeSync("other.>"))(t)
	stagetest.Value(c.NC().SubscribeSync(nats.NewInbox()))(t)
	stagetest.Must(t, c.NC().Flush())
	if why := r.due(t.Context(), c.NC()); why == "" {
		t.Errorf("not due: %v", c.NC().LastError())
	}
	reload(allowed)
	again(t, c.NC())
	if why := r.due(t.Context(), c.NC()); why != "" {
		t.Errorf("due because %q", why)
	}
}
