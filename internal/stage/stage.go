// Package stage is one running process of a stage: it wires the parts together, starts, drains and stops them.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/metrics"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/status"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/pool"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"
)

// flushTimeout bounds the wait for the last audit events of a process that ends. Once it must end at once, those that find
// no room wait for hardRoomTimeout, and all of them for hardFlushTimeout.
const (
	flushTimeout     = 10 * time.Second
	hardRoomTimeout  = time.Second
	hardFlushTimeout = 2 * time.Second
)

// errStopTimeout is the cause of a stop that took longer than STAGE_STOP_TIMEOUT.
var errStopTimeout = errors.New("calls in the air did not end within STAGE_STOP_TIMEOUT")

// errNotStored is the same where results could not be stored.
var errNotStored = errors.New("results were not stored within STAGE_STOP_TIMEOUT")

// Stage is one process of a stage: consumers for all partitions, one pool, one client, one recorder.
type Stage struct {
	Cfg       *config.Config
	Conn      *natsconn.Conn
	Log       *slog.Logger
	metrics   *metrics.Metrics
	runID     string
	started   time.Time
	caller    *call.Caller
	Usage     *cost.Recorder
	ledger    *cost.Ledger
	activity  *status.Activity
	history   *status.History
	recorder  *recorder.Recorder
	executor  *executor.Executor
	batches   *batch.Service // nil: batched requests are not answered
	spread    *spread.Spread // nil with one partition
	consumers []*consumer.Consumer
	tracing   *tracing.Tracing // nil: off

	stop   context.CancelCauseFunc // ends the run softly, set while it runs
	pauses chan struct{}           // holds a token when a pause has begun
}

// FatalError ends a run at a provider error that no later call can get past: a bad key, no credit, an unknown model.
type FatalError struct{ Err error }

func (e *FatalError) Error() string { return e.Err.Error() }

// Unwrap returns the provider's error.
func (e *FatalError) Unwrap() error { return e.Err }

// Options are what the commands change about a stage.
type Options struct {
	// NewInput accepts an input stream that was created anew.
	NewInput bool
	// ExitOnFatal ends the run at a fatal provider error, whatever the configuration says.
	ExitOnFatal bool
	// Console is where OTEL_TRACES_EXPORTER=console prints.
	Console io.Writer
	// Spans is where spans go, whatever OTEL_* say; nil: where they say.
	Spans sdktrace.SpanExporter
	// Batches answers batched requests.
	Batches bool
}

// New puts the parts together and starts nothing.
func New(cfg *config.Config, conn *natsconn.Conn, servers *call.Targets, log *slog.Logger, opts Options) (*Stage, error) {
	prompt, err := executor.LoadPrompt(cfg)
	if err != nil {
		return nil, config.Invalid(err)
	}
	s := &Stage{Cfg: cfg, Conn: conn, Usage: cost.NewRecorder(), runID: call.NewID()[:12], started: time.Now(), pauses: make(chan struct{}, 1)}
	s.activity, s.history = status.NewActivity(cfg.HTTP.DashboardPayloads), status.NewHistory(s.started)
	s.Log = log.With(slog.String("run_id", s.runID))
	prices, err := cfg.Cost.Prices()
	if err != nil {
		return nil, err
	}
	s.ledger = cost.NewLedger(prices, cfg.Cost.MaxUSD)
	s.caller = call.NewCaller(servers, s.ledger, cfg.Name, s.runID, s.callDone)
	s.tracing = tracing.New(cfg, opts.Spans, opts.Console, s.runID, s.Log)
	s.metrics = metrics.New(version.Current(), s.snapshot)
	payloads := auditlog.PayloadsFull
	if err := payloads.UnmarshalText([]byte(cfg.Audit.Payloads)); err != nil {
		return nil, err
	}
	s.recorder = recorder.New(conn.NC, recorder.Config{
		Stream: cfg.Audit.Stream, Subject: cfg.Audit.Subject, Name: cfg.Name, Payloads: payloads, Explain: config.Explain, Logger: s.Log,
		Stored:   func(kind string) { s.metrics.AuditEvent(auditlog.Kind(kind)) },
		Recorded: s.activity.Note,
	})
	poolConfig, err := s.poolConfig(opts)
	if err != nil {
		return nil, err
	}
	if s.executor, err = executor.New(cfg, s.caller, prompt, poolConfig, s.Log); err != nil {
		return nil, err
	}
	if cfg.HTTP.DashboardPayloads {
		s.executor.Show = s.activity.NoteRow
	}
	if opts.Batches {
		if s.batches, err = batch.New(cfg, conn, s.caller, s.executor, s.recorder, s.Log); err != nil {
			return nil, err
		}
	}
	if cfg.Streams.Partitions > 1 {
		s.spread = spread.New(conn.NC, spread.Config{
			Name: cfg.Name, ID: s.runID, Partitions: cfg.Streams.Partitions, Explain: config.Explain, Logger: s.Log,
		})
	}
	for p := range cfg.Streams.Partitions {
		c, err := consumer.New(conn.NC, s.consumerConfig(p, opts))
		if err != nil {
			return nil, err
		}
		s.consumers = append(s.consumers, c)
	}
	s.warnOfOpenFiles()
	for _, note := range prompt.SchemaNotes(cfg) {
		s.Log.Warn("the provider may not enforce all of the response schema", slog.String("provider", note.Provider), slog.String("note", note.Text))
	}
	return s, nil
}

func (s *Stage) consumerConfig(partition int, opts Options) consumer.Config {
	cfg := s.Cfg
	return consumer.Config{
		Name: cfg.Name, RunID: s.runID, Partition: partition,
		InputStream: cfg.Input.Stream, InputSubject: cfg.Input.PartitionSubject(partition),
		ResultStream: cfg.Result.Stream, ResultSubject: cfg.Result.Subject,
		DeadLetterSubject: cfg.Streams.DeadLetterSubject,
		Journal:           cfg.Journal.Enabled, JournalStream: cfg.Journal.Stream, JournalAfter: cfg.Journal.After,
		WindowRows: cfg.Window.Rows, WindowBytes: int64(cfg.Window.Bytes),
		Create: cfg.Streams.Create, NewInput: opts.NewInput, Spread: s.spread,
		Executor: s.executor, Recorder: s.recorder, Observer: s.metrics, Tracer: s.tracing.Tracer(cfg, partition),
		Explain: config.Explain, Logger: s.Log,
	}
}

// Prepare creates and checks the streams. Doing it again changes nothing.
func (s *Stage) Prepare(ctx context.Context) error {
	return config.Explained(streams.Ensure(ctx, s.Conn.NC, stored.Streams(s.Cfg)))
}

// setUp does what run needs before the first row.
func (s *Stage) setUp(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	if err := s.recallCost(ctx); err != nil {
		return s.Conn.Explain(err)
	}
	return s.Conn.Explain(s.executor.OpenStore(ctx, s.Conn.NC))
}

// Run works until soft ends, then drains: no row is taken or started, calls in the air end within STAGE_STOP_TIMEOUT, and
// what is contiguous is emitted. When hard ends it stops at once. It returns nil after a clean stop, the cause of a hard
// one, and why the stage could not go on.
func (s *Stage) Run(soft, hard context.Context) error {
	defer s.tracing.Close(hard)
	if err := s.tracing.Start(soft); err != nil {
		return err
	}
	if err := s.setUp(soft); err != nil {
		if soft.Err() != nil {
			return nil // stopped, or all was done already, before it began
		}
		return err
	}
	hard, kill := context.WithCancelCause(hard)
	defer kill(nil)
	soft, stop := context.WithCancelCause(soft)
	defer stop(nil)
	s.stop = stop
	defer context.AfterFunc(soft, func() {
		s.executor.Pool.Drain()
		if why := s.problem(); why != "" {
			s.Log.Warn("stopping; results that can't be stored are waited for", slog.String("reason", why), slog.Duration("at_most", s.Cfg.Process.StopTimeout))
		}
		timer := time.AfterFunc(s.Cfg.Process.StopTimeout, func() { kill(s.whyNotStopped()) })
		context.AfterFunc(hard, func() { timer.Stop() })
	})()

	// Workers that wait for room in the audit would keep the pool from ending.
	defer stopping.After(hard, hardRoomTimeout, s.recorder.Hurry)()

	recording, stopRecording := context.WithCancel(context.WithoutCancel(hard))
	var recorder, calls sync.WaitGroup // recorder: what outlives the consumers
	recorder.Go(func() {
		if err := s.recorder.Run(recording); err != nil {
			kill(err)
		}
	})
	recorder.Go(func() { s.remind(recording) })
	done := make(chan struct{}) // closed when no consumer can start a row any more
	calls.Go(func() { s.executor.Run(soft, done) })
	calls.Go(func() { _ = s.executor.Pool.Run(hard) }) // its error is the cause of hard
	if s.batches != nil {
		calls.Go(func() { s.batches.Serve(soft, hard) })
	}
	s.recordRun(auditlog.PhaseStart, "", nil)

	spreading, stopSpread := context.WithCancel(context.WithoutCancel(hard))
	defer stopSpread()
	if s.spread != nil {
		recorder.Go(func() {
			if err := s.spread.Run(soft, spreading); err != nil {
				stop(err)
			}
		})
	}
	var serving errgroup.Group
	for _, c := range s.consumers {
		serving.Go(func() error {
			err := config.Explained(c.Run(soft, hard))
			if err != nil {
				stop(err) // the other partitions drain
			}
			return err
		})
	}
	err := serving.Wait()
	stopSpread()
	stop(nil)
	close(done)
	// A consumer that was fenced does not wait for its calls in the air; they are paid for, and belong into audit and summary.
	s.executor.Pool.Drain()
	calls.Wait()
	s.end(soft, hard, err)
	stopRecording()
	recorder.Wait()
	if err == nil {
		err = s.verdict(soft, hard)
	}
	return err
}

// problem says what keeps results from being stored; empty when nothing does.
func (s *Stage) problem() string {
	var all []string
	for _, c := range s.consumers {
		if why := c.Status().Problem; why != "" && !slices.Contains(all, why) { // mostly the same for all partitions
			all = append(all, why)
		}
	}
	return strings.Join(all, "; ")
}

// whyNotStopped is the cause of a stop that took too long.
func (s *Stage) whyNotStopped() error {
	if why := s.problem(); why != "" {
		return fmt.Errorf("%w: %s", errNotStored, why)
	}
	return errStopTimeout
}

// verdict says how a run ended that no consumer ended.
func (s *Stage) verdict(soft, hard context.Context) error {
	if hard.Err() != nil {
		return context.Cause(hard)
	}
	if e, ok := errors.AsType[*FatalError](context.Cause(soft)); ok {
		return e
	}
	return nil
}

// end writes the end of the run into the audit and the log.
func (s *Stage) end(soft, hard context.Context, err error) {
	why := ""
	switch cause := context.Cause(soft); {
	case err != nil:
		why = err.Error()
	case hard.Err() != nil:
		why = context.Cause(hard).Error()
	case cause != nil && !errors.Is(cause, context.Canceled):
		why = cause.Error()
	}
	flush, cancel := stopping.Within(hard, flushTimeout, hardFlushTimeout)
	defer cancel()
	summary := s.Summary()
	missing := s.recorder.Flush(flush)
	if missing != nil {
		summary = nil // verify would miss the calls whose events are lost
	}
	s.recordRun(auditlog.PhaseEnd, why, summary)
	if err := errors.Join(missing, s.recorder.Flush(flush)); err != nil {
		s.Log.Warn("audit events of the end not stored", slog.Any("error", err))
	}
	s.executor.FlushStore(flush)
	s.Usage.Log(flush, s.Log)
}

// Summary is what the process did.
func (s *Stage) Summary() *auditlog.Summary {
	stats := s.executor.Pool.Stats()
	sum := &auditlog.Summary{
		CapacityRetries: stats.CapacityRetries, PeakDelay: stats.PeakDelay,
		Throttled: stats.ThrottleTime, Executing: stats.ExecTime,
		Usage: s.Usage.ByModel(), Total: s.Usage.Totals(),
	}
	for _, c := range s.consumers {
		st := c.Status()
		sum.RowsSucceeded += st.Emitted - st.Failed
		sum.RowsFailed += st.Failed
		sum.RowsSkipped += st.Skipped
	}
	return sum
}

func (s *Stage) recordRun(phase auditlog.Phase, reason string, summary *auditlog.Summary) {
	e := &auditlog.Run{
		Header: auditlog.Header{Time: time.Now(), RunID: s.runID, Stage: s.Cfg.Name, Partition: auditlog.All},
		Phase:  phase, Reason: reason, Summary: summary,
	}
	if phase == auditlog.PhaseStart {
		e.Settings = s.Cfg.Settings()
	}
	s.recorder.RecordRun(e)
}

// callDone counts a call in totals and metrics.
func (s *Stage) callDone(c *auditlog.Call) {
	s.Usage.Call(c)
	s.metrics.CallDone(c)
}

// snapshot is what gauges and pages show.
func (s *Stage) snapshot() status.Snapshot {
	snap := status.Snapshot{Pool: s.executor.Pool.Stats()}
	snap.Pause, snap.PausedSince = status.ReasonOf(snap.Pool.Pause), snap.Pool.Pause.Since
	for _, c := range s.consumers {
		snap.Partitions = append(snap.Partitions, c.Status())
	}
	return snap
}

// ready says whether the stage serves its purpose at the moment, and if not why.
func (s *Stage) ready() (ok bool, reason string) {
	if why := s.Conn.Down(); why != "" {
		return false, why
	}
	if p := s.executor.Pool.Stats().Pause; p.Kind != pool.NotPaused {
		return false, "paused: " + s.pauseText(p, time.Now())
	}
	if why := s.recorder.Problem(); why != "" {
		return false, "audit: " + why
	}
	for _, c := range s.consumers {
		st := c.Status()
		if st.Problem != "" {
			return false, fmt.Sprintf("partition %d: %s", st.Partition, st.Problem)
		}
		if st.Role != consumer.Owner && st.Role != consumer.Standby {
			return false, fmt.Sprintf("partition %d is %s", st.Partition, st.Role)
		}
	}
	return true, ""
}
