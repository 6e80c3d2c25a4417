// Package stage is one running process of a stage, or of several: it wires the parts
// together, starts, drains and stops them. A row takes this way through the parts:
//
//	consumer --row----> executor --request--> pool --call--> caller --> provider
//	         <--reply--          <--reply----
//	consumer --result-> results stream
//	recorder --event--> audit stream
//
// No part here decides about rows, and each part has a goroutine or a mutex of its own.
// This package knows all of them, so what needs several parts is here: the status, the
// holds, the orders of operators, the memory limit, the end of a run.
//
//	s, err := stage.New(cfg, conn, targets, log, stage.Options{}) // starts nothing
//	err = s.Run(soft, hard) // returns once soft has ended, and the stage has drained
package stage

import (
	"context"
	"io"
	"log/slog"
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
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/metrics"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/internal/version"
	"github.com/nats-io/nats.go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Stage is one process of a stage: consumers for all partitions, one pool, one client,
// one recorder. It has the wiring and the life cycle; each part has a type and a file of
// its own, with a pointer to the view. Create it with [New], run it once with
// [Stage.Run].
//
// New sets all fields, and nothing replaces a part after that. So the parts may be read
// from any goroutine, and only the state within a part needs a mutex.
type Stage struct {
	view // the parts, and what they show
	finder
	pauses pauses

	nc          *nats.Conn // the connection of Conn for which the parts were made, see follow
	ledger      *cost.Ledger
	batches     *batch.Service // nil means that batched requests are not answered
	metrics     *metrics.Metrics
	tracing     *tracing.Tracing  // nil means off
	exporter    *metrics.Exporter // nil means off
	objects     *media.Objects    // where rows may have pictures, documents and sounds
	opts        Options
	preparation preparation // its turn among the stages of the process
}

// preparation makes several stages of a process prepare one after the other, see
// [Stage.Prepare]. A stage waits for before, which is the left of the stage before it.
type preparation struct {
	before <-chan struct{} // closed when the stage before has left; nil for the first stage
	left   chan struct{}   // closed by leave
	leave  func()          // may be called again: a stage may end before it has prepared
}

// newPreparation returns the preparation of the first stage; run sets before for the
// others.
func newPreparation() preparation {
	left := make(chan struct{})
	return preparation{left: left, leave: sync.OnceFunc(func() { close(left) })}
}

// Options are the choices of a command about a stage.
type Options struct {
	// NewInput accepts an input stream that was re-created since the last claim.
	NewInput bool
	// ExitOnFatal ends the run at a fatal provider error, whatever the configuration, and
	// where nothing listens at the provider's address for 30 s.
	ExitOnFatal bool
	// Console is where OTEL_TRACES_EXPORTER=console prints. If it is nil, that is
	// standard error.
	Console io.Writer
	// Spans receives the spans, whatever OTEL_* are set to. If it is nil, these variables
	// decide.
	Spans sdktrace.SpanExporter
	// Batches answers batched requests.
	Batches bool
	// Files are the files that rows may name as pictures, documents and sounds. If it is
	// nil, a row that names one fails.
	Files *media.Files
	// CancelBatches has a stop cancel the batches of the batch lane that the provider
	// works on. Without it they run on, and the next start collects them.
	CancelBatches bool
	// Flags are the flags with which commands find the streams of this stage, for advice:
	// "--job reviews", for example. It is empty if they need nothing but the settings.
	Flags string
	// Side has the parts that the stage shares with others which answer the same rows, or
	// nil.
	Side *SideBySide
	// Called is called with each call once it is priced and its event is recorded. It
	// must be safe for concurrent use and must not block. It may be nil.
	Called func(call.Outcome)

	// lane makes the batch lane of a partition. It is nil but in tests.
	lane    func(*batchLanes, int) (batchLane, error)
	several bool          // other stages run in this process
	slots   *processSlots // shared with these stages, or nil
}

// New puts the parts together and starts nothing. The errors are of the configuration.
// The caller closes conn and targets once the stage has ended.
//
// The order matters: the caller comes before the executor and its pool, which call by it.
// The lanes need both, and the consumers' configuration names the lanes. The recorder
// comes before the services and consumers that record by it.
func New(
	cfg *config.Config, conn *natsconn.Conn, targets *call.Targets, log *slog.Logger, opts Options,
) (*Stage, error) {
	prompt, err := executor.LoadPrompt(cfg)
	if err != nil {
		return nil, config.Invalid(err)
	}
	prices, err := cfg.Prices()
	if err != nil {
		return nil, err
	}

	payloads := auditlog.PayloadsFull
	if err := payloads.UnmarshalText([]byte(cfg.Audit.Payloads)); err != nil {
		return nil, err
	}
	s := &Stage{
		view: newView(cfg, conn), nc: conn.NC(), opts: opts, preparation: newPreparation(),
		ledger: cost.NewLedger(prices, cfg.Cost.MaxUSD),
	}
	if side := opts.Side; side != nil {
		s.ledger, s.opts.slots = side.Ledger, side.slots
	}

	s.objects = media.NewObjects(s.nc)
	prompt.Media.Objects, prompt.Media.Files = s.objects, opts.Files
	if s.opts.several {
		log = log.With(slog.String("stage", cfg.Name))
	}
	s.Log = log.With(slog.String("run_id", s.runID))
	s.flags = opts.Flags

	s.linkView()
	s.addReports()
	s.addCaller(targets)
	s.addRecorder(payloads)
	if err := s.addExecutor(prompt); err != nil {
		return nil, err
	}

	s.lanes.ledger = s.ledger
	if err := s.lanes.open(opts.lane); err != nil {
		return nil, err
	}
	if opts.Batches && cfg.Serve.Batches {
		if s.batches, err = batch.New(cfg, conn, stored.Streams(cfg), s.caller, s.executor,
			s.recorder, s.Log); err != nil {
			return nil, err
		}
	}

	s.inspector = streams.NewInspector(s.Conn.NC, stored.Streams(cfg), s.Log)
	if err := s.addConsumers(); err != nil {
		return nil, err
	}
	if !s.opts.several {
		warnOfProcess(s)
	}

	s.warnOfSettings(prompt)
	return s, nil
}

// linkView gives the parts in the view a pointer to it, by which they find each other.
func (s *Stage) linkView() {
	v := &s.view
	exit := s.opts.ExitOnFatal || s.Cfg.Rows.OnFatal == "exit"
	s.finder, s.watchdog.view, s.ending.view = finder{v}, v, v
	s.pauses = pauses{view: v, exit: exit, began: make(chan struct{}, 1), record: s.record}
	s.sharing = sharing{view: v, notes: map[string]budgetNote{}, record: s.record}
	s.steering.view, s.steering.record, s.steering.moved = v, s.record, make(chan *nats.Conn, 1)
	s.lanes.view, s.lanes.exit, s.lanes.cancel = v, exit, s.opts.CancelBatches
}

// addReports creates what shows the stage to others: answers to their questions, metrics
// and traces.
func (s *Stage) addReports() {
	cfg := s.Cfg
	s.answerer = replicas.New(s.nc, cfg.Name, s.summary, s.Log)
	if s.opts.several {
		s.metrics = metrics.NewOfSeveral(version.Current(), cfg.Name, s.gauges)
	} else {
		s.metrics = metrics.New(version.Current(), s.gauges)
	}
	s.tracing = tracing.New(cfg, s.opts.Spans, s.opts.Console, s.runID, s.Log)
	s.exporter = metrics.NewExporter(cfg.MetricsExport(), s.metrics, s.runID, s.Log)
	s.answerer.Row = func(ctx context.Context, row uint64) ([]replicas.Call, *hold.Hold) {
		return s.callsOf(row), s.RowHold(ctx, row)
	}
}

// addCaller creates the caller. Every call, whoever made it, is counted here: rows,
// batched requests and the batch lane.
func (s *Stage) addCaller(targets *call.Targets) {
	cfg := s.Cfg
	s.caller = call.NewCaller(targets, s.ledger, cfg.Name, s.runID, func(o call.Outcome) {
		c := o.Event
		s.Usage.Call(c)
		if c.Lane != "" && c.Status == auditlog.CallCapacityRetry {
			s.lanes.retries.Add(1)
		}
		s.metrics.CallDone(c, o.Target, tracing.ErrorType(o.Err, o.Exchange))
		if s.opts.Called != nil {
			s.opts.Called(o)
		}
	})

	s.caller.Refused = func(r call.Refusal) {
		s.activity.NoteRefusal(status.RefusalReport{
			Time: r.Time, Provider: r.Provider, Model: r.Model, StatusCode: r.Status,
			Error:        string(cfg.Secrets().Redact([]byte(r.Error))),
			RetryAfterMS: retryAfter(r.RetryAfter),
		})
	}
}

// addRecorder creates the recorder of the audit.
func (s *Stage) addRecorder(payloads auditlog.Payloads) {
	cfg := s.Cfg
	s.recorder = recorder.New(s.nc, recorder.Config{
		Stream: cfg.Audit.Stream, Subject: cfg.Audit.Subject, Name: cfg.Name, Payloads: payloads,
		Explain: config.Explain, Logger: s.Log,
		Stored:   func(kind string) { s.metrics.AuditEvent(auditlog.Kind(kind)) },
		Recorded: s.activity.Note,
	})
}

// addExecutor creates the executor, with the pool and on the caller.
func (s *Stage) addExecutor(prompt *executor.Prompt) error {
	cfg := s.Cfg
	poolConfig, err := s.poolConfig()
	if err != nil {
		return err
	}
	s.executor, err = executor.New(cfg, s.caller, prompt, poolConfig, s.Log)
	if err != nil {
		return err
	}
	s.executor.Failed = s.activity.NoteCause
	if cfg.HTTP.DashboardPayloads {
		s.executor.Show = s.activity.NoteRow
	}
	return nil
}

// warnOfSettings writes notes about settings, which belong to the log of the stage.
func (s *Stage) warnOfSettings(prompt *executor.Prompt) {
	cfg := s.Cfg
	for _, f := range cfg.Deprecated() {
		s.Log.Warn("a deprecated setting is set, which a later release refuses",
			slog.String("variable", f.Variable), slog.String("instead", f.Deprecated))
	}
	for _, note := range prompt.SchemaNotes(cfg) {
		s.Log.Warn("the provider may not enforce all of the response schema",
			slog.String("provider", note.Provider), slog.String("note", note.Text))
	}
	for _, note := range prompt.KeepNotes() {
		s.Log.Warn("the extra body asks for parts of replies that are not kept",
			slog.String("note", note))
	}
}

// addConsumers creates a consumer for each partition. With several, the replicas spread
// them among themselves.
func (s *Stage) addConsumers() error {
	partitions := s.Cfg.Streams.Partitions
	if partitions > 1 {
		s.spread = spread.New(s.nc, spread.Config{
			Name: s.Cfg.Name, ID: s.runID, Partitions: partitions, Explain: config.Explain,
			Logger: s.Log,
		})
	}
	for p := range partitions {
		c, err := consumer.New(s.nc, s.consumerConfig(p))
		if err != nil {
			return err
		}
		s.consumers = append(s.consumers, c)
	}
	return nil
}

// consumerConfig returns the settings of the consumer of a partition. A stage without a
// batch lane still has to know of batches that an earlier owner has left open, see left.
func (s *Stage) consumerConfig(partition int) consumer.Config {
	cfg := s.Cfg
	c := consumer.Config{
		DurableConfig: stored.Durable(cfg, partition), RunID: s.runID,
		ResultSubject: cfg.Result.Subject, ResultBucket: cfg.Result.Bucket,
		ResultMaxAge: cfg.Result.MaxAge, DeadLetterSubject: cfg.Streams.DeadLetterSubject,
		Journal: cfg.Journal.Enabled, JournalStream: cfg.Journal.Stream,
		JournalAfter: cfg.Journal.After,
		WindowBytes:  int64(cfg.Window.Bytes), Moves: s.Conn.Replaceable(), Streams: s.inspector,
		NewInput: s.opts.NewInput, Spread: s.spread,
		Executor: s.executor, Recorder: s.recorder, Observer: s.metrics,
		Tracer:  s.tracing.Tracer(cfg, partition),
		Explain: config.Explain, Logger: s.Log,
	}
	if s.lanes.all == nil {
		c.LaneLeft = s.lanes.left
	} else {
		c.Lane, c.LaneRows = s.lanes.all[partition], cfg.LaneRows()
		c.ClaimedLane = &streams.ClaimedLane{
			Stream: cfg.Lane.Stream, Rows: cfg.LaneRows(),
			PollMS: cfg.Lane.Poll.Milliseconds(), Collects: cfg.LaneCollects(),
		}
	}
	if cfg.Order.Mode == streams.OrderKey {
		place := cfg.Order.Key
		c.OrderKey = place.String()
		c.Key = func(row *consumer.Row) string {
			return place.Of(row.Subject, row.Header,
				row.Body)
		}
	}
	return c
}

// retryAfter returns the wait that a provider asked for, in milliseconds as reports have
// it, or nil if it asked for none.
func retryAfter(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	return new(terminal.Milliseconds(d))
}
