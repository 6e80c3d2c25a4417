package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// site is what the runs share: servers in their own processes, and the programs.
type site struct {
	dir, self   string
	stage, nats string // programs
	before      string // an earlier program of stage, or empty
	profiling   profiling
	servers     []*server
	url         string // of all servers
	nc          *nats.Conn
	js          jetstream.JetStream
}

// open builds the programs and starts a server. What it returns with an error must be
// closed, too.
func open(ctx context.Context, dir string, p profiling) (s *site, err error) {
	s = &site{dir: dir, stage: filepath.Join(dir, "stage"), nats: filepath.Join(dir, "nats-server"), profiling: p}
	if s.self, err = os.Executable(); err != nil {
		return s, err
	}
	for path, pack := range map[string]string{s.nats: "github.com/nats-io/nats-server/v2", s.stage: stagePackage} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, pack)
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as released
		if out, err := build.CombinedOutput(); err != nil {
			return s, fmt.Errorf("go build %s: %w\n%s", pack, err, out)
		}
	}
	return s, s.start(ctx, 1)
}

// start starts n servers and connects to them.
func (s *site) start(ctx context.Context, n int) (err error) {
	if s.servers, err = startServers(ctx, s.nats, s.dir, n, s.profiling.server != ""); err != nil {
		return err
	}
	var urls []string
	for _, srv := range s.servers {
		urls = append(urls, srv.url)
	}
	s.url = strings.Join(urls, ",")
	if s.nc, err = nats.Connect(s.url); err != nil {
		return fmt.Errorf("connect to the server at %q: %w", s.url, err)
	}
	if s.js, err = jetstream.New(s.nc); err != nil {
		return err
	}
	for range 20 { // a cluster that has just begun has no leader yet
		if _, err = s.js.AccountInfo(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// stagePackage is the program that is measured.
const stagePackage = "github.com/llm-stage/stage/cmd/stage"

func (s *site) close() {
	if s.nc != nil {
		s.nc.Close()
	}
	for _, srv := range s.servers {
		srv.stop()
	}
}

// resultSubject is where results come.
const resultSubject = "results.stage.0.rows"

// lay re-creates the streams, replicated over all servers, and loads rows.
func (s *site) lay(ctx context.Context, sc *scenario, rows int) error {
	for range layTries {
		clean, err := s.recreate(ctx)
		if err != nil {
			return err
		}
		if clean {
			return s.load(ctx, sc, rows)
		}
		time.Sleep(time.Second)
	}
	return errors.New("streams that were deleted and created again have messages")
}

// layTries bounds how often streams are re-created. The server (2.15.2) moves the
// directory of a deleted stream aside, always to the same name, and removes it there
// later; while an earlier one of that name is being removed, the move fails silently, and
// a new stream finds the old blocks.
const layTries = 20

// recreate deletes the streams and creates them again, and reports whether they are empty.
func (s *site) recreate(ctx context.Context) (clean bool, err error) {
	names := []string{"ROWS", "RESULTS", "AUDIT", "JOURNAL"}
	for _, name := range names {
		if err := s.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, err
		}
	}
	if err := streams.Ensure(ctx, s.nc, streams.Config{
		Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Replicas: len(s.servers),
		Journal: true, JournalStream: "JOURNAL", JournalMaxBytes: 1 << 30,
	}); err != nil {
		return false, err
	}
	for _, name := range names {
		stream, err := s.js.Stream(ctx, name)
		if err != nil || stream.CachedInfo().State.LastSeq > 0 {
			return false, err
		}
	}
	return true, nil
}

// stored is how many messages there are a row in all streams but the input.
func (s *site) stored(ctx context.Context, rows int) (float64, error) {
	sum := uint64(0)
	for _, name := range []string{"RESULTS", "AUDIT", "JOURNAL"} {
		stream, err := s.js.Stream(ctx, name)
		if err != nil {
			return 0, err
		}
		sum += stream.CachedInfo().State.LastSeq
	}
	return float64(sum) / float64(rows), nil
}

// load stores rows in the input.
func (s *site) load(ctx context.Context, sc *scenario, rows int) error {
	group := min(500, max(1, 8<<20/sc.rowBytes))
	for n := 0; n < rows; n += group {
		msgs := make([]*nats.Msg, min(group, rows-n))
		for i := range msgs {
			msgs[i] = &nats.Msg{Subject: sc.subject(n + i), Data: sc.row(n + i)}
		}
		if _, err := streams.Append(ctx, s.nc, msgs); err != nil {
			return err
		}
	}
	return nil
}

// messages are those of a stream, from the first on.
func (s *site) messages(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig) (jetstream.MessagesContext, error) {
	consumer, err := s.js.OrderedConsumer(ctx, stream, cfg)
	if err != nil {
		return nil, err
	}
	return consumer.Messages()
}

// read calls each with the first n messages of a stream.
func (s *site) read(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig, n int, each func(jetstream.Msg) error) error {
	messages, err := s.messages(ctx, stream, cfg)
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range n {
		m, err := messages.Next(jetstream.NextMaxWait(time.Minute))
		if err == nil {
			err = each(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// oneByOne turns off what groups need in the streams.
func (s *site) oneByOne(ctx context.Context) error {
	for _, name := range []string{"RESULTS", "AUDIT", "JOURNAL"} {
		stream, err := s.js.Stream(ctx, name)
		if err != nil {
			return err
		}
		cfg := stream.CachedInfo().Config
		cfg.AllowAtomicPublish, cfg.AllowBatchPublish = false, false
		if _, err := s.js.UpdateStream(ctx, cfg); err != nil {
			return err
		}
	}
	return nil
}
