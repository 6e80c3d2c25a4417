package stage

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// flushTimeout is how long a process that stops waits for its last audit events to be
// stored. After a hard stop that is at most hardFlushTimeout; and events for which the
// recorder has no room are given up after hardRoomTimeout already, since a worker that
// waits for room would keep the pool from ending.
const (
	flushTimeout     = 10 * time.Second
	hardRoomTimeout  = time.Second
	hardFlushTimeout = 2 * time.Second
)

// FatalError ends a run at a provider error that no later call can get past: a bad key,
// no credit, an unknown model.
type FatalError struct{ Err error }

// Error is the text of the provider's error.
func (e *FatalError) Error() string { return e.Err.Error() }

// Unwrap returns the provider's error.
func (e *FatalError) Unwrap() error { return e.Err }

// Prepare creates and checks the streams. Doing it again changes nothing.
//
// Several stages of a process do it in turn, in the order of their entries. If two
// streams with one subject are created at the same moment, the server accepts both, since
// it checks each before it has added the other; at its next start it refuses one of them.
// In turn, it is always the later stage that fails, because its stream would take a
// subject of the earlier one's.
func (s *Stage) Prepare(ctx context.Context) error {
	defer s.preparation.leave()
	if s.preparation.before != nil {
		select {
		case <-s.preparation.before:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return config.Explained(streams.Ensure(ctx, s.Conn.NC(), stored.Streams(s.Cfg)))
}

// Run works until soft ends, then drains: it takes and starts no row, waits for the calls
// in flight, for a quarter longer than STAGE_LLM_TIMEOUT at most, and emits all results
// that are contiguous. When hard ends it stops at once. It blocks until all that it
// started has ended. The error is nil after a clean stop; otherwise it is the cause of a
// hard one, a [*FatalError], or why the stage could not continue.
//
// The parts start in this order and end in the reverse one, so that each part can rely on
// those above it:
//
//	recorder, watchers of pauses     until the last event is stored
//	  answerer, orders, inspector    so that a draining stage still answers
//	    executor, pool               until no consumer can start a row
//	      spread                     so that the others know who leaves
//	        consumers                drain when soft ends
func (s *Stage) Run(soft, hard context.Context) error {
	defer s.tracing.Close(hard)
	if err := s.tracing.Start(soft); err != nil {
		return err
	}
	defer s.exporter.Close(hard)
	if err := s.exporter.Start(soft); err != nil {
		return err
	}
	if err := s.setUp(soft); err != nil {
		if soft.Err() != nil {
			return nil // stopped, or all was done already, before it began
		}
		return err
	}

	defer s.follow()()
	defer s.followRoom()()
	hard, kill := context.WithCancelCause(hard)
	defer kill(nil)
	soft, s.ending.stop = context.WithCancelCause(soft)
	defer s.ending.stop(nil)
	defer context.AfterFunc(soft, func() { s.ending.drain(soft, hard, kill) })()
	// Workers that wait for room in the audit would keep the pool from ending.
	defer stopping.After(hard, hardRoomTimeout, s.recorder.Hurry)()

	stopRecorder := s.startRecorder(hard, kill)
	inspect := func(ctx context.Context) { s.inspector.Run(ctx, rand.N(streams.InspectEvery)) }
	stopAnswers := stopping.Background(hard, s.answerer.Run, s.steering.obey, inspect)
	finishCalls := s.startCalls(soft, hard)
	s.record(auditlog.Run{Phase: auditlog.PhaseStart})
	stopSpread := s.startSpread(soft, hard)
	stopReport := s.sharing.reportChanges(soft)

	err := s.consume(soft, hard)

	stopReport()
	stopSpread()
	s.ending.stop(nil)
	finishCalls()
	stopAnswers()
	s.end(soft, hard, err)
	stopRecorder()
	if err != nil {
		return err
	}
	return s.verdict(soft, hard)
}

// setUp prepares everything that Run needs before the first row: the streams, the cost of
// earlier runs, and the store of replies.
func (s *Stage) setUp(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	if err := recallCost(ctx, s.Cfg, s.Conn.NC(), s.ledger, s.Log); err != nil {
		return s.Conn.Explain(err)
	}
	if side := s.opts.Side; side != nil {
		return side.Replies.Explain(s.executor.Sharing.OpenStore(ctx, side.Replies.NC()))
	}
	return s.Conn.Explain(s.executor.Sharing.OpenStore(ctx, s.Conn.NC()))
}

// startRecorder starts the parts that outlive the consumers: the recorder of audit
// events, and the observers of pauses. An audit that can't be written ends the run at
// once: a call without an event would break the promise that every call is audited. stop
// ends the parts and waits for them.
func (s *Stage) startRecorder(hard context.Context, kill context.CancelCauseFunc) (stop func()) {
	record := func(ctx context.Context) {
		if err := s.recorder.Run(ctx); err != nil {
			kill(err)
		}
	}
	parts := []func(context.Context){
		record, s.pauses.remind, s.pauses.remindRefused,
		s.watchdog.run, s.watchKeys,
	}
	if s.opts.ExitOnFatal {
		parts = append(parts, s.pauses.giveUpAbsent)
	}
	return stopping.Background(hard, parts...)
}

// startCalls starts everything that calls the providers: executor, pool, and the service
// of batched requests. finish drains the pool and waits for the calls in flight; it is
// called when no consumer can start a row any more. A consumer that was fenced does not
// wait for its calls, but they are paid for, and belong in audit and summary.
func (s *Stage) startCalls(soft, hard context.Context) (finish func()) {
	consumed := make(chan struct{})
	var parts sync.WaitGroup
	parts.Go(func() { s.executor.Run(soft, consumed) })
	parts.Go(func() { _ = s.executor.Pool.Run(hard) }) // its error is the cause of hard
	stopBudget := s.sharing.start(hard, s.executor.Pool.Wake)
	if s.batches != nil {
		parts.Go(func() { s.batches.Serve(soft, hard) })
	}
	return func() {
		close(consumed)
		s.executor.Pool.Drain()
		parts.Wait()
		stopBudget()
	}
}

// startSpread starts to negotiate with the other replicas who owns which partition. It
// continues while the consumers drain, so that the others know who leaves; stop ends it
// and waits for it.
func (s *Stage) startSpread(soft, hard context.Context) (stop func()) {
	if s.spread == nil {
		return func() {}
	}
	return stopping.Background(hard, func(ctx context.Context) {
		if err := s.spread.Run(soft, ctx); err != nil {
			s.ending.stop(err)
		}
	})
}

// consume serves all partitions until soft or hard ends. An error of one of them lets the
// others drain.
func (s *Stage) consume(soft, hard context.Context) error {
	if err := s.checkPartitions(soft); err != nil {
		return err
	}
	var serving errgroup.Group
	for _, c := range s.consumers {
		serving.Go(func() error {
			err := config.Explained(c.Run(soft, hard))
			if err != nil {
				s.ending.stop(err)
			}
			return err
		})
	}
	return serving.Wait()
}

// checkPartitions checks all partitions before one of them is served. Otherwise a problem
// of partition 7 would end the process when the others have calls in flight already. A
// single partition checks itself when it starts.
func (s *Stage) checkPartitions(ctx context.Context) error {
	var checks errgroup.Group
	for _, c := range s.consumers {
		if len(s.consumers) > 1 {
			checks.Go(func() error { return config.Explained(c.Check(ctx)) })
		}
	}
	err := checks.Wait()
	if err != nil {
		s.ending.stop(err)
	}
	return err
}

// end records the end of the run in the audit and the log. err is why the consumers
// ended, or nil if they were stopped. The events of the calls are stored first: the
// summary counts these calls, and verify compares it with the events.
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
	s.record(auditlog.Run{Phase: auditlog.PhaseEnd, Reason: why, Summary: summary})
	if err := errors.Join(missing, s.recorder.Flush(flush)); err != nil {
		s.Log.Warn("last audit events not stored", slog.Any("error", err))
	}
	s.executor.Sharing.Store.Flush(flush)
	s.Usage.Log(flush, s.Log)
}

// verdict returns the error of a run that no consumer ended.
func (s *Stage) verdict(soft, hard context.Context) error {
	if hard.Err() != nil {
		return context.Cause(hard)
	}
	if e, ok := errors.AsType[*FatalError](context.Cause(soft)); ok {
		return e
	}
	return nil
}

// record records an event of the run as a whole. The start lists the settings, the end
// has the summary.
func (s *Stage) record(e auditlog.Run) {
	e.Header = auditlog.Header{
		Time: time.Now(), RunID: s.runID, Stage: s.Cfg.Name,
		Partition: auditlog.All,
	}
	if e.Phase == auditlog.PhaseStart {
		e.Settings = s.Cfg.Settings()
	}
	s.recorder.RecordRun(&e)
}

// use moves all parts to a new connection to NATS: the library closes a connection for
// good at some errors of the server, and the process continues. The consumers come last,
// since their next terms need the recorder.
func (s *Stage) use(nc *nats.Conn) {
	s.recorder.Use(nc)
	s.answerer.Use(nc)
	if s.opts.Side == nil { // with Side, the store of replies is on another server
		s.executor.Sharing.Store.Use(nc)
	}
	s.objects.Use(nc)
	s.sharing.use(nc)
	if s.batches != nil {
		s.batches.Use(nc)
	}
	s.lanes.use(nc)
	if s.spread != nil {
		s.spread.Use(nc)
	}
	for _, c := range s.consumers {
		c.Use(nc)
	}

	// The channel holds one connection. One that nobody has taken yet is outdated, so it
	// is replaced; only this goroutine sends, so there is room for the new one.
	select {
	case <-s.steering.moved:
	default:
	}
	s.steering.moved <- nc
}

// follow makes the stage use each connection that replaces the present one, until stop is
// called. It is called once the parts are there. The connection may have been replaced
// since they were made, before anybody was told: then they are moved at once.
func (s *Stage) follow() (stop func()) {
	made := s.nc
	stop = s.Conn.OnMove(s.use)
	if nc := s.Conn.NC(); nc != made {
		s.use(nc)
	}
	return stop
}

// followRoom makes the partitions wait while the embedded server can store nothing, for
// example on a full disk, until stop is called.
func (s *Stage) followRoom() (stop func()) {
	return s.Conn.OnFull(func(why error) {
		for _, c := range s.consumers {
			c.SetFull(why)
		}
	})
}
