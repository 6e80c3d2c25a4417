package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// warmUp is left out of every figure, or a third of the rows if they go faster.
	warmUp = 2 * time.Second
	// look is how often the results are counted.
	look = 50 * time.Millisecond
	// turnMost bounds one turn.
	turnMost = 20 * time.Minute
)

// turn is one contender at work, in its own process, with its LLM in another.
type turn struct {
	s       *site
	sc      *scenario
	who     string
	addr    string // of its metrics
	llm     *exec.Cmd
	cmd     *exec.Cmd
	began   time.Time
	out     bytes.Buffer
	ended   chan struct{} // closed when it has
	err     error         // then: how
	stop    context.CancelFunc
	results jetstream.Stream
}

// begin starts a contender on the streams as they are. The turn must be ended.
func (s *site) begin(ctx context.Context, sc *scenario, who string) (*turn, error) {
	t := &turn{s: s, sc: sc, who: who, ended: make(chan struct{})}
	var err error
	if t.results, err = s.js.Stream(ctx, "RESULTS"); err != nil {
		return nil, err
	}
	if t.addr, err = freeAddr(ctx); err != nil {
		return nil, err
	}
	ctx, t.stop = context.WithTimeout(ctx, turnMost)
	url, err := t.startLLM(ctx)
	if err == nil {
		t.cmd = t.command(ctx, url)
		t.began = time.Now()
		err = t.cmd.Start()
	}
	if err != nil {
		t.stop()
		return nil, err
	}
	go func() {
		t.err = t.cmd.Wait()
		close(t.ended)
	}()
	return t, nil
}

// during is with, on new streams that hold the first rows of a scenario.
func (s *site) during(ctx context.Context, sc *scenario, who string, rows int, do func(*turn) error) error {
	if err := s.lay(ctx, sc, rows); err != nil {
		return err
	}
	return s.with(ctx, sc, who, do)
}

// with has a contender work on the streams as they are, until do returns.
func (s *site) with(ctx context.Context, sc *scenario, who string, do func(*turn) error) error {
	t, err := s.begin(ctx, sc, who)
	if err != nil {
		return err
	}
	err = do(t)
	return errors.Join(err, t.end())
}

// command starts the contender.
func (t *turn) command(ctx context.Context, llm string) *exec.Cmd {
	s, sc := t.s, t.sc
	cmd := exec.CommandContext(ctx, s.self, "-role", t.who, "-url", s.url, "-llm", llm, "-addr", t.addr, "-rows", strconv.Itoa(sc.rows), "-pool", strconv.Itoa(sc.pool), "-groups", s.groupsFile())
	if t.who == s.profiling.who {
		cmd.Args = append(cmd.Args, "-profile", s.profiling.own)
	}
	if isStage(t.who) {
		switch {
		case t.who == before:
			cmd = exec.CommandContext(ctx, s.before, "run")
		case s.profiling.own == "" || t.who != s.profiling.who: // the program as it is built for users
			cmd = exec.CommandContext(ctx, s.stage, "run")
		}
		cmd.Env = append([]string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "STAGE_NATS_URL=" + s.url, "STAGE_LLM_BASE_URL=" + llm, "STAGE_LLM_MODEL=m",
			"STAGE_TEMPLATE={{ row.q }}", "STAGE_POOL_SIZE=" + strconv.Itoa(sc.pool), "STAGE_WINDOW=" + strconv.Itoa(max(4096, 4*sc.pool)),
			"STAGE_HTTP_ADDR=" + t.addr, "STAGE_LOG_LEVEL=warn", "STAGE_STREAM_REPLICAS=" + strconv.Itoa(len(s.servers)),
		}, sc.env...)
	}
	if sc.gogc != "" {
		cmd.Env = append(cmd.Environ(), "GOGC="+sc.gogc)
	}
	cmd.Stdout, cmd.Stderr = &t.out, &t.out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// startLLM starts the LLM in its own process; it ends with ctx.
func (t *turn) startLLM(ctx context.Context) (url string, err error) {
	t.llm = exec.CommandContext(ctx, t.s.self, "-role", "llm", "-latency", t.sc.latency.String(), "-text", t.sc.text.String(), "-dimensions", strconv.Itoa(t.sc.dimensions), "-slow", t.sc.slow.String(), fmt.Sprintf("-refuses=%t", t.sc.refusedRow != nil))
	out, err := t.llm.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := t.llm.Start(); err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = t.llm.Wait() })
	url, err = bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(url), err
}

// end stops the contender, and everything else of the turn.
func (t *turn) end() error {
	_ = t.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-t.ended
	t.stop()
	if t.err != nil {
		return fmt.Errorf("%s: %w\n%s", t.who, t.err, t.out.String())
	}
	return nil
}

// kill ends the contender at once; end finds it ended.
func (t *turn) kill() {
	_ = t.cmd.Process.Kill() // it may have ended
	<-t.ended
	t.err = nil
}

// count is how many rows are done.
func (t *turn) count(ctx context.Context) (int, error) {
	if t.who == "h" {
		m, err := scrape(ctx, t.addr)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return 0, nil // it has hardly begun
		}
		return int(m[metricDone]), err
	}
	info, err := t.results.Info(ctx, jetstream.WithSubjectFilter(resultSubject))
	if err != nil {
		return 0, err
	}
	return int(info.State.Subjects[resultSubject]), nil
}

func (t *turn) sample(ctx context.Context) (sample, error) {
	select {
	case <-t.ended:
		return sample{}, fmt.Errorf("%s ended early: %w\n%s", t.who, t.err, t.out.String())
	default:
	}
	rows, err := t.count(ctx)
	now := sample{at: time.Now(), rows: rows, cpu: cpuOf(t.cmd.Process.Pid), llm: cpuOf(t.llm.Process.Pid), io: ioOf(t.cmd.Process.Pid)}
	for _, srv := range t.s.servers {
		now.server += cpuOf(srv.cmd.Process.Pid)
		now.serverIO += ioOf(srv.cmd.Process.Pid)
	}
	return now, err
}

// until waits until a sample is enough.
func (t *turn) until(ctx context.Context, enough func(sample) bool) (sample, error) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		now, err := t.sample(ctx)
		if err != nil || enough(now) {
			return now, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return now, context.Cause(ctx)
		}
	}
}

// rowsDone reports whether n rows are done.
func rowsDone(n int) func(sample) bool { return func(now sample) bool { return now.rows >= n } }

// contend lets one contender do the job and measures it after the warm-up.
func (s *site) contend(ctx context.Context, sc *scenario, who string) (f figures, err error) {
	if err := s.lay(ctx, sc, sc.rows+sc.spare); err != nil {
		return f, err
	}
	role, alone := strings.CutSuffix(who, oneByOne)
	if alone {
		if err := s.oneByOne(ctx); err != nil {
			return f, err
		}
	}
	err = s.with(ctx, sc, role, func(t *turn) (err error) {
		if f, err = t.measure(ctx); err != nil {
			return err
		}
		if f.Stored, err = s.stored(ctx, sc.rows); err == nil && (who == "noop" || isStage(role)) {
			f.Group, err = s.noteGroups(ctx, sc.rows)
		}
		if sc.kill {
			t.kill()
		}
		return err
	})
	return f, err
}

// measure makes the figures of a turn, from the end of the warm-up on. Its last moment,
// when there is less and less to do, counts only for what was allocated.
func (t *turn) measure(ctx context.Context) (f figures, err error) {
	begun, err := t.until(ctx, rowsDone(1))
	if err != nil {
		return f, err
	}
	warm, err := t.until(ctx, func(now sample) bool {
		return now.at.Sub(begun.at) > cmp.Or(t.sc.warmUp, warmUp) || now.rows > t.sc.rows/3
	})
	if err != nil {
		return f, err
	}
	before, err := scrape(ctx, t.addr)
	if err != nil {
		return f, err
	}
	profiled := make(chan error, 1)
	if p := t.s.profiling; t.who == p.who && p.server != "" {
		left := time.Duration(float64(t.sc.rows-warm.rows) / float64(warm.rows) * float64(warm.at.Sub(begun.at)))
		go func() { profiled <- t.s.servers[0].profile(ctx, p.server, left) }()
	} else {
		profiled <- nil
	}
	last := warm
	upTo := func(rows int) func(sample) bool {
		return func(now sample) bool {
			if now.rows >= rows {
				return true
			}
			last = now
			return false
		}
	}
	if _, err := t.until(ctx, upTo(t.sc.rows*9/10)); err != nil {
		return f, err
	}
	busy, err := scrape(ctx, t.addr)
	if err != nil {
		return f, err
	}
	if _, err := t.until(ctx, upTo(t.sc.rows)); err != nil {
		return f, err
	}
	after, err := scrape(ctx, t.addr)
	if err != nil {
		return f, err
	}
	if last.rows <= warm.rows {
		return f, fmt.Errorf("%d rows were done before the warm-up was over: give more", t.sc.rows)
	}
	f = between(warm, last)
	rest := float64(t.sc.rows - warm.rows)
	f.Allocs, f.Bytes = (after[metricMallocs]-before[metricMallocs])/rest, (after[metricBytes]-before[metricBytes])/rest
	f.PeakMiB, f.LiveMiB = t.peak(), liveMiB(busy)
	return f, <-profiled
}
