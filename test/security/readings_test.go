package security_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/cmd/stage/cli"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readings are the commands that read streams. Those that follow are interrupted at their first output.
var readings = [][]string{
	{"results"}, {"results", "--follow"}, {"tail"}, {"tail", "--row", "2"}, {"tail", "--follow", "--since", "1h"}, {"usage"}, {"verify"}, {"redrive", "--dry-run"},
}

// limited is a server whose account has a stage's streams with five rows, of which one has failed.
type limited struct {
	t       *testing.T
	srv     *server.Server
	js      jetstream.JetStream
	environ vars
}

func newLimited(t *testing.T, users ...*server.User) *limited {
	t.Helper()
	opts := options(t)
	opts.Users = append(users, &server.User{Username: "admin", Password: "admin"})
	l := &limited{t: t, srv: serve(t, opts)}
	nc := admin(t, l.srv, nats.UserInfo("admin", "admin"))
	l.environ = with(newLLM(t, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step { return &llmtest.Step{} }}), vars{
		"STAGE_NATS_URL": l.srv.ClientURL(), "STAGE_NATS_USER": "admin", "STAGE_NATS_PASSWORD": "admin",
		"STAGE_TEMPLATE": "Row {{ row.n.x if row.n == 3 else row.n }}",
	})
	rows := newRows(t, nc, jetstream.MemoryStorage)
	rows.load(5)
	stage := run(t, l.environ)
	rows.await(5)
	stage.stop()
	l.js = rows.js
	return l
}

// command runs a command, which is interrupted once it has written something if it follows, and returns what it logs.
func (l *limited) command(user string, args ...string) (errs string) {
	l.t.Helper()
	ctx, interrupt := context.WithCancel(l.t.Context())
	defer interrupt()
	out := io.Discard
	follows := strings.Contains(strings.Join(args, " "), "--follow")
	if follows {
		out = onWrite(interrupt)
	}
	var log bytes.Buffer
	code := cli.Main(ctx, &cli.Env{
		Args: args, Environ: with(l.environ, vars{"STAGE_NATS_USER": user, "STAGE_NATS_PASSWORD": user}), Stdin: strings.NewReader(""), Stdout: out, Stderr: &log,
	})
	if code != 0 && !follows {
		l.t.Errorf("stage %s: exit code %d: %s", strings.Join(args, " "), code, log.String())
	}
	return log.String()
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// left waits until the streams have no consumers of readings, and returns those that stay.
func (l *limited) left() (names []string) {
	l.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 200 { // the server takes 30 s without the request
		names = nil
		for _, stream := range []string{"ROWS", "RESULTS", "AUDIT", "JOURNAL"} {
			s := stagetest.Value(l.js.Stream(l.t.Context(), stream))(l.t)
			for name := range s.ConsumerNames(l.t.Context()).Name() {
				if name != "stage-0" {
					names = append(names, stream+" "+name)
				}
			}
		}
		if len(names) == 0 {
			break
		}
		<-tick.C
	}
	return names
}

// Each command removes its consumers when it ends, also when it is interrupted. And none reads the input without the
// bodies: a server panics when it has to leave out the body of a message with a header block of one byte, which strangers
// may send.
func TestAfterACommandTheStreamsHaveNoConsumersButTheStages(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	var ofInput, bare atomic.Int32
	sub, err := l.js.Conn().Subscribe("$JS.API.CONSUMER.CREATE.>", func(m *nats.Msg) {
		var req struct {
			Stream string                   `json:"stream_name"`
			Config jetstream.ConsumerConfig `json:"config"`
		}
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Error(err)
		}
		if req.Stream == "ROWS" {
			ofInput.Add(1)
			if req.Config.HeadersOnly {
				bare.Add(1)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends
	for _, args := range append(slices.Clone(readings), []string{"redrive"}) {
		errs := l.command("admin", args...)
		if names := l.left(); len(names) > 0 {
			t.Errorf("after stage %s there are consumers %q: %s", strings.Join(args, " "), names, errs)
		}
	}
	if ofInput.Load() == 0 || bare.Load() > 0 {
		t.Errorf("of %d consumers of the input %d leave out the bodies; want some, and none", ofInput.Load(), bare.Load())
	}
}

// An account may have room for no more consumers than one command needs at the same time.
func TestAnAccountOfFewConsumersIsEnoughForCommandsInARow(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	const few = 4 // the durable, and what verify reads side by side
	account, err := l.srv.LookupAccount(server.DEFAULT_GLOBAL_ACCOUNT)
	if err == nil {
		err = account.UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": {
			MaxMemory: -1, MaxStore: -1, MaxStreams: -1, MaxConsumers: few, MaxAckPending: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1,
		}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, args := range readings {
			l.command("admin", args...)
		}
	}
}
