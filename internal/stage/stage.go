// Package stage is one running process of a stage: it wires the parts together, starts, drains and stops them.
package stage

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/metrics"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/status"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/internal/version"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Stage is one process of a stage: consumers for all partitions, one pool, one client, one recorder. Create it with
// [New], run it once with [Stage.Run].
type Stage struct {
	Cfg   *config.Config
	Conn  *natsconn.Conn
	Log   *slog.Logger   // adds the run id to each line
	Usage *cost.Recorder // tokens and cost of the calls of this run

	runID   string
	started time.Time

	// A row goes from a consumer to the executor, which calls a provider through the caller; the recorder stores what
	// happened.
	consumers []*consumer.Consumer // by partition
	executor  *executor.Executor
	caller    *call.Caller
	ledger    *cost.Ledger
	recorder  *recorder.Recorder
	batches   *batch.Service // nil: batched requests are not answered
	spread    *spread.Spread // nil with one partition

	// Observers: they learn of rows and calls and change nothing.
	metrics  *metrics.Metrics
	activity *status.Activity
	history  *status.History
	tracing  *tracing.Tracing // nil: off

	stop   context.CancelCauseFunc // ends the run softly; set by Run before the pool starts
	pauses chan struct{}           // holds a token when a pause has begun
}

// Options are what the commands change about a stage.
type Options struct {
	// NewInput accepts an input stream that was re-created.
	NewInput bool
	// ExitOnFatal ends the run at a fatal provider error, whatever the configuration says.
	ExitOnFatal bool
	// Console is where OTEL_TRACES_EXPORTER=console prints.
	Console io.Writer
	// Spans receives the spans, whatever OTEL_* say; nil: those variables decide.
	Spans sdktrace.SpanExporter
	// Batches answers batched requests.
	Batches bool
}

// New puts the parts together and starts nothing. The errors are of the configuration. The caller closes conn and
// targets once the stage has ended.
func New(cfg *config.Config, conn *natsconn.Conn, targets *call.Targets, log *slog.Logger, opts Options) (*Stage, error) {
	prompt, err := executor.LoadPrompt(cfg)
	if err != nil {
		return nil, config.Invalid(err)
	}
	s := &Stage{Cfg: cfg, Conn: conn, Usage: cost.NewRecorder(), runID: call.NewID()[:12], started: time.Now(), pauses: make(chan struct{}, 1)}
	s.Log = log.With(slog.String("run_id", s.runID))
	s.addObservers(opts)
	for _, add := range []func() error{
		func() error { return s.addCaller(targets) },
		s.addRecorder,
		func() error { return s.addExecutor(prompt, opts) },
		func() error { return s.addBatches(opts) },
		func() error { return s.addConsumers(opts) },
	} {
		if err := add(); err != nil {
			return nil, err
		}
	}
	s.warnOfOpenFiles()
	s.warnOfSchema(prompt)
	return s, nil
}

// addObservers creates what learns of rows and calls.
func (s *Stage) addObservers(opts Options) {
	s.activity, s.history = status.NewActivity(s.Cfg.HTTP.DashboardPayloads), status.NewHistory(s.started)
	s.metrics = metrics.New(version.Current(), s.snapshot)
	s.tracing = tracing.New(s.Cfg, opts.Spans, opts.Console, s.runID, s.Log)
}

// addCaller creates the caller of the targets, with the ledger of its calls.
func (s *Stage) addCaller(targets *call.Targets) error {
	prices, err := s.Cfg.Cost.Prices()
	if err != nil {
		return err
	}
	s.ledger = cost.NewLedger(prices, s.Cfg.Cost.MaxUSD)
	s.caller = call.NewCaller(targets, s.ledger, s.Cfg.Name, s.runID, s.callDone)
	return nil
}

// addRecorder creates the recorder of audit events.
func (s *Stage) addRecorder() error {
	payloads := auditlog.PayloadsFull
	if err := payloads.UnmarshalText([]byte(s.Cfg.Audit.Payloads)); err != nil {
		return err
	}
	s.recorder = recorder.New(s.Conn.NC, recorder.Config{
		Stream: s.Cfg.Audit.Stream, Subject: s.Cfg.Audit.Subject, Name: s.Cfg.Name, Payloads: payloads, Explain: config.Explain, Logger: s.Log,
		Stored:   func(kind string) { s.metrics.AuditEvent(auditlog.Kind(kind)) },
		Recorded: s.activity.Note,
	})
	return nil
}

// addExecutor creates the executor of rows, with the pool in which it calls.
func (s *Stage) addExecutor(prompt *executor.Prompt, opts Options) error {
	poolConfig, err := s.poolConfig(opts)
	if err != nil {
		return err
	}
	if s.executor, err = executor.New(s.Cfg, s.caller, prompt, poolConfig, s.Log); err != nil {
		return err
	}
	if s.Cfg.HTTP.DashboardPayloads {
		s.executor.Show = s.activity.NoteRow
	}
	return nil
}

// addBatches creates the service of batched requests, if the command wants one.
func (s *Stage) addBatches(opts Options) (err error) {
	if opts.Batches {
		s.batches, err = batch.New(s.Cfg, s.Conn, s.caller, s.executor, s.recorder, s.Log)
	}
	return err
}

// addConsumers creates a consumer for each partition. With several, the replicas spread them among themselves.
func (s *Stage) addConsumers(opts Options) error {
	partitions := s.Cfg.Streams.Partitions
	if partitions > 1 {
		s.spread = spread.New(s.Conn.NC, spread.Config{
			Name: s.Cfg.Name, ID: s.runID, Partitions: partitions, Explain: config.Explain, Logger: s.Log,
		})
	}
	for p := range partitions {
		c, err := consumer.New(s.Conn.NC, s.consumerConfig(p, opts))
		if err != nil {
			return err
		}
		s.consumers = append(s.consumers, c)
	}
	return nil
}

func (s *Stage) consumerConfig(partition int, opts Options) consumer.Config {
	cfg := s.Cfg
	return consumer.Config{
		DurableConfig: stored.Durable(cfg, partition), RunID: s.runID,
		ResultSubject: cfg.Result.Subject, DeadLetterSubject: cfg.Streams.DeadLetterSubject,
		Journal: cfg.Journal.Enabled, JournalStream: cfg.Journal.Stream, JournalAfter: cfg.Journal.After,
		WindowBytes: int64(cfg.Window.Bytes), NewInput: opts.NewInput, Spread: s.spread,
		Executor: s.executor, Recorder: s.recorder, Observer: s.metrics, Tracer: s.tracing.Tracer(cfg, partition),
		Explain: config.Explain, Logger: s.Log,
	}
}

// warnOfSchema warns of parts of the response schema that a provider may ignore.
func (s *Stage) warnOfSchema(prompt *executor.Prompt) {
	for _, note := range prompt.SchemaNotes(s.Cfg) {
		s.Log.Warn("the provider may not enforce all of the response schema", slog.String("provider", note.Provider), slog.String("note", note.Text))
	}
}

// callDone counts a call in totals and metrics.
func (s *Stage) callDone(c *auditlog.Call) {
	s.Usage.Call(c)
	s.metrics.CallDone(c)
}
