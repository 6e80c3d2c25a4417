// Package show runs a stage through an outage of its LLM and the kill of a replica, in
// real processes, and proves that no row is lost.
//
// One process runs the show: it has the NATS server, the LLM and the rows. Two more are
// the replicas; they are told what to do by [Obey] at the other end.
package show

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// rate is how many calls a second the LLM admits.
	rate = 20
	// outageMost is how long the LLM is away in a show of rowsUsual rows or more; fewer
	// rows have a shorter outage.
	outageMost = 10 * time.Second
	rowsUsual  = 720
	// patience is how long the show waits for a step without any new result.
	patience = 2 * time.Minute
	// lookEvery is the time between two looks at the stage, besides the time that a look
	// takes.
	lookEvery = 100 * time.Millisecond
	// reportEvery is the time between two lines about the progress.
	reportEvery = 5 * time.Second
)

// Config is what a show needs. All but Hold is required.
type Config struct {
	// Stage has the settings of the replicas. Run changes those that the show depends on.
	Stage *config.Config
	// Program is the command line that starts a replica, Environ the environment of this
	// process.
	Program []string
	Environ map[string]string
	// Source has the rows.
	Source load.Rows
	Rows   int
	// Hold keeps the page of the replica that survives when all is done.
	Hold   bool
	Out    io.Writer
	Err    io.Writer // for what replicas and verify have to say
	Logger *slog.Logger
}

// show is a show that runs.
type show struct {
	Config
	cfg              *config.Config
	nc               *nats.Conn
	js               jetstream.JetStream
	llm              *llm
	doomed, survivor *replica
	loaded           int // rows, so far
	costs            costs
}

// view is what the show sees of the stage.
type view struct {
	whole  replicas.Whole
	stored int // results
}

// Run runs the show until all rows have their results and verify has said what it thinks
// of them; with Hold until ctx ends after that. It ends early with ctx. The error is the
// verdict of verify, or why there is none. Nothing that it has started or written is left
// when it returns.
func Run(ctx context.Context, c Config) error {
	dir, err := os.MkdirTemp("", "llm-stage-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	s := &show{Config: c, cfg: c.Stage}
	if s.llm, err = startLLM(rate); err != nil {
		return err
	}
	defer s.llm.close()
	srv, err := natsd.Start(natsd.Config{Dir: dir, SyncAlways: s.cfg.Data.Sync.Always, SyncInterval: s.cfg.Data.Sync.Interval, Logger: c.Logger})
	if err != nil {
		return err
	}
	defer srv.Stop()
	if s.nc, err = srv.Connect(); err != nil {
		return err
	}
	defer s.nc.Close()
	if s.js, err = streams.JetStream(s.nc); err != nil {
		return err
	}
	s.settle()
	defer s.endReplicas()
	report, err := s.play(ctx, srv)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx) // whatever it has interrupted
	case err != nil:
		return err
	case c.Hold:
		s.hold(ctx)
	}
	return report.Err()
}

// play plays the acts, and returns what verify says in the end.
func (s *show) play(ctx context.Context, srv *natsd.Server) (*verify.Report, error) {
	if err := s.start(ctx, srv); err != nil {
		return nil, err
	}
	for _, act := range []func(context.Context) error{s.works, s.outage, s.kill, s.finish} {
		if err := act(ctx); err != nil {
			return nil, err
		}
	}
	return s.prove(ctx)
}

// settle makes the settings those of the show: two partitions, so that both replicas work
// and one can take over from the other; the LLM of this process; and calls that can be
// counted against the rows.
func (s *show) settle() {
	c := s.cfg
	c.Streams.Partitions, c.Input.Subject = 2, "rows.{partition}.>"
	c.LLM.BaseURL = s.llm.url
	c.Rows.Dedupe, c.Rows.OutageHold, c.Lane.Mode = "off", 0, "live"
}

// start starts the replicas, and loads the first rows once they have created the streams.
// Each stands by before there are rows, so that they have agreed on who serves what.
func (s *show) start(ctx context.Context, srv *natsd.Server) (err error) {
	environ := s.environ(srv)
	if s.doomed, err = startReplica(s.Program, append(environ, "STAGE_HTTP_ADDR=127.0.0.1:0"), s.Err); err != nil {
		return err
	}
	if s.survivor, err = startReplica(s.Program, append(environ, "STAGE_HTTP_ADDR="+s.cfg.HTTP.Addr), s.Err); err != nil {
		return err
	}
	page, err := s.survivor.page(ctx)
	if err != nil {
		return err
	}
	s.say("%d rows, two replicas of a stage, processes %d and %d, on two partitions; the LLM admits %d calls/s", s.Rows, s.doomed.pid(), s.survivor.pid(), rate)
	s.say("dashboard: %s, of process %d, which survives", page, s.survivor.pid())
	err = s.await(ctx, "both replicas to be ready", func(v *view) bool {
		ready := func(r *replica) bool { f := r.facts(&v.whole); return f != nil && f.Ready }
		return ready(s.doomed) && ready(s.survivor)
	})
	if err != nil {
		return err
	}
	return s.load(ctx, s.Rows/3)
}

// load loads the rows up to number n.
func (s *show) load(ctx context.Context, n int) error {
	l, loaded, err := load.New(ctx, s.nc, s.cfg, "demo", "")
	if err != nil {
		return err
	}
	return l.Run(ctx, loaded, func() (*nats.Msg, error) {
		if s.loaded >= n {
			return nil, io.EOF
		}
		s.loaded++
		return s.Source.Read()
	}, func(int64) {})
}

// works waits until both replicas have answered rows, and a quarter of all is done.
func (s *show) works(ctx context.Context) error {
	err := s.await(ctx, "both replicas to own a partition", func(v *view) bool {
		return v.stored >= s.loaded || len(s.doomed.owns(&v.whole)) > 0 && len(s.survivor.owns(&v.whole)) > 0
	})
	if err != nil {
		return err
	}
	s.say("both work, each on a partition of its own. On the page: calls per second, and who owns what")
	return s.await(ctx, "results", func(v *view) bool { return v.stored >= s.Rows/4 })
}

// outage cuts every call for a while. More rows come during it: else those that are left
// might all be in flight already, and nobody would notice anything. It ends only when the
// stage has noticed.
func (s *show) outage(ctx context.Context) error {
	s.say("the LLM goes down: it cuts every connection")
	s.costs.down = time.Now()
	s.llm.down.Store(true)
	if err := s.load(ctx, s.Rows*2/3); err != nil {
		return err
	}
	err := s.await(ctx, "a pause", func(v *view) bool {
		return slices.ContainsFunc(v.whole.Pauses, func(p replicas.Pauses) bool { return p.Reason == hold.Outage })
	})
	if err != nil {
		return err
	}
	s.say("the stage has noticed, and holds its rows: only single probes go out. On the page: Paused, outage, the next probe")
	over := s.costs.down.Add(min(outageMost, outageMost*time.Duration(s.Rows)/rowsUsual))
	if err := s.await(ctx, "the end of the outage", func(*view) bool { return !time.Now().Before(over) }); err != nil {
		return err
	}
	s.costs.up = time.Now()
	s.llm.down.Store(false)
	s.say("the LLM is back; the next probe will find out")
	failed := uint64(0)
	err = s.await(ctx, "the end of the pause", func(v *view) bool {
		failed = v.whole.Rows.Failed
		return len(v.whole.Pauses) == 0 && s.doomed.facts(&v.whole) != nil && s.survivor.facts(&v.whole) != nil
	})
	if err != nil {
		return err
	}
	s.say("calls have resumed, slowly at first; %d rows have failed", failed)
	return s.await(ctx, "results", func(v *view) bool { return v.stored >= s.Rows*3/5 })
}

// kill kills a replica at its work, and waits until the other has taken over. The last
// rows come just before that: the replicas do not work at the same rate, and one that had
// done all of its rows would leave none to take over.
func (s *show) kill(ctx context.Context) error {
	if err := s.load(ctx, s.Rows); err != nil {
		return err
	}
	inFlight := 0
	err := s.await(ctx, "calls", func(v *view) bool {
		if s.costs.orphans = s.doomed.owns(&v.whole); len(s.costs.orphans) > 0 {
			inFlight = s.doomed.facts(&v.whole).Pool.InFlight
		}
		return inFlight > 0 || v.stored >= s.Rows
	})
	if err != nil {
		return err
	}
	s.say("kill -9 of process %d, which owns %s and has %s in flight. On the page: it is missing", s.doomed.pid(), partitions(s.costs.orphans), terminal.Plural(inFlight, "call"))
	s.costs.killed = time.Now()
	s.doomed.kill()
	tookOver := false
	err = s.await(ctx, "the take-over", func(v *view) bool {
		owned := s.survivor.owns(&v.whole)
		tookOver = !slices.ContainsFunc(s.costs.orphans, func(p int) bool { return !slices.Contains(owned, p) })
		return tookOver || v.stored >= s.Rows
	})
	if err == nil && tookOver {
		s.say("process %d has taken over %s, and works alone", s.survivor.pid(), partitions(s.costs.orphans))
	}
	return err
}

// finish waits for the last result. Without Hold it ends the replica, so that verify has
// the summary of its run.
func (s *show) finish(ctx context.Context) error {
	if err := s.await(ctx, "the last results", func(v *view) bool { return v.stored >= s.Rows }); err != nil {
		return err
	}
	s.say("all %d rows have their results", s.Rows)
	if s.Hold {
		return s.await(ctx, "the end of all work", func(v *view) bool { return v.whole.State == status.StateIdle })
	}
	return s.survivor.stop(ctx)
}

// prove prints what the faults have cost and what verify says.
func (s *show) prove(ctx context.Context) (*verify.Report, error) {
	report, err := verify.Run(ctx, s.js, s.cfg, s.Err)
	if err != nil {
		return nil, err
	}
	if err := s.costs.read(ctx, s.js, s.cfg); err != nil {
		return nil, err
	}
	rows := 0
	for _, p := range report.Partitions {
		s.costs.failed += p.Failed
		rows += p.Succeeded
	}
	terminal.PrintLine(s.Out, "")
	s.costs.print(s.Out, s.llm.Stats(), rows)
	terminal.PrintLine(s.Out, "\nstage verify:")
	report.WriteText(s.Out)
	return report, nil
}

// hold keeps the page until ctx ends.
func (s *show) hold(ctx context.Context) {
	terminal.PrintLine(s.Out, "\nthe dashboard stays at %s until Ctrl-C", s.survivor.address)
	select {
	case <-ctx.Done():
	case <-s.survivor.ended:
		terminal.PrintLine(s.Out, "process %d has ended, and the dashboard with it", s.survivor.pid())
	}
}

// endReplicas kills what runs.
func (s *show) endReplicas() {
	for _, r := range []*replica{s.doomed, s.survivor} {
		if r != nil {
			r.kill()
		}
	}
}

// say prints a line with the time.
func (s *show) say(format string, args ...any) {
	terminal.PrintLine(s.Out, "%s  %s", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// await looks at the stage again and again until it is as wanted, and reports the
// progress meanwhile. It returns an error if a replica ends that nobody has ended, or if
// nothing happens for a long time.
func (s *show) await(ctx context.Context, what string, is func(*view) bool) error {
	began, seen, reported := time.Now(), 0, time.Now()
	for {
		v, err := s.look(ctx)
		if err != nil {
			return err
		}
		if is(v) {
			return nil
		}
		if err := s.anyEnded(ctx); err != nil {
			return err
		}
		now := time.Now()
		if v.stored > seen {
			began, seen = now, v.stored
		}
		if now.Sub(began) > patience {
			return fmt.Errorf("waited %v for %s, with %d of %d results: the state of the stage is %s %s", patience, what, v.stored, s.Rows, v.whole.State, v.whole.Why)
		}
		if now.Sub(reported) >= reportEvery {
			reported = now
			s.say("  %d of %d results, %.0f rows/s, %s in flight", v.stored, s.Rows, v.whole.Rows.PerSecond, terminal.Plural(v.whole.Pool.InFlight, "call"))
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
}

// anyEnded returns an error if a replica has ended by itself.
func (s *show) anyEnded(ctx context.Context) error {
	for _, r := range []*replica{s.doomed, s.survivor} {
		if r == nil || r.killed || !r.over() {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("process %d, a replica, has ended by itself: %v", r.pid(), r.cmd.ProcessState)
	}
	return nil
}

// look asks the replicas, which takes a moment, and counts the results.
func (s *show) look(ctx context.Context) (*view, error) {
	v := &view{whole: replicas.Merge(replicas.Ask(ctx, s.nc, s.cfg.Name, nil), nil, time.Now())}
	err := s.count(ctx, v)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return v, err
}

// count counts the results that are stored.
func (s *show) count(ctx context.Context, v *view) error {
	stream, err := s.js.Stream(ctx, s.cfg.Result.Stream)
	if err != nil {
		return nil //nolint:nilerr // no replica has created it yet
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(s.cfg.Result.Subject+"."+s.cfg.Name+".*.rows"))
	if err != nil {
		return err
	}
	for _, messages := range info.State.Subjects {
		v.stored += int(messages) //nolint:gosec // few
	}
	return nil
}
