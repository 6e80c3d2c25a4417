// Package executor answers rows: it renders each, shares the call of an equal one, calls through the pool, and builds
// the result.
package executor

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/pool"
)

// Executor answers rows: it renders each, asks the model through the pool, and builds the result. It is the one place
// where a row becomes a request.
//
// Rows are rendered by one goroutine, those of a partition in stream order, only as far ahead of the calls as the pool's
// queue has room; the others wait as they came. Partitions take turns here and, as lanes, in the pool.
type Executor struct {
	cfg    *config.Config
	caller *call.Caller
	prompt *Prompt
	Pool   *pool.Pool[*job, struct{}]
	dedupe *dedupe                         // nil: every row makes its own call
	Show   func(callID string, row []byte) // what was asked about, for the dashboard; nil: it is not shown
	log    *slog.Logger
	debug  bool // the way of each row is logged

	queue *rowQueue
	ready chan struct{} // holds a token while rows of the queue may begin
}

// job is a row on its way through the pool. One goroutine at a time works on it.
type job struct {
	row      *consumer.Row
	parsed   *row.Row
	request  llm.Request
	model    string // that the row names; empty: the target's own
	target   int    // whom prepared asks
	prepared *llm.Prepared
	key      string // hash of what is asked of the first target
	vars     string // hash of the template's variables
	errors   []auditlog.AttemptError
	usage    auditlog.UsageSum
	found    *answer // stored
	body     []byte  // of the result, once the call has succeeded
	tooLarge *llm.Error
}

// Lane implements [pool.Laned]: partitions take turns.
func (j *job) Lane() int { return j.row.Partition }

// Arrived implements [pool.Dated].
func (j *job) Arrived() time.Time { return j.row.Taken }

func New(cfg *config.Config, caller *call.Caller, prompt *Prompt, poolConfig pool.Config, log *slog.Logger) (*Executor, error) {
	e := &Executor{
		cfg: cfg, caller: caller, prompt: prompt, dedupe: newDedupe(cfg), log: log,
		debug: cfg.Process.LogLevel == "debug",
		queue: newRowQueue(), ready: make(chan struct{}, 1),
	}
	poolConfig.OnRoom = e.signal
	var err error
	e.Pool, err = pool.New(poolConfig, e.attempt)
	return e, err
}

// Start queues the row. It implements [consumer.Executor].
func (e *Executor) Start(row *consumer.Row) {
	e.logQueued(row)
	e.queue.add(row)
	e.signal()
}

// Recall hands back the waiting rows that are no longer wanted. It implements [consumer.Recaller].
func (e *Executor) Recall() {
	for _, row := range e.queue.recall((*consumer.Row).Wanted) {
		e.reply(row, consumer.Reply{HandedBack: true})
	}
	e.recallShared()
	e.Pool.Recall(func(j *job) bool { return !j.row.Wanted() })
}

// Resume looks at the waiting rows again, and at the slots that were held. It implements [consumer.Resumer].
func (e *Executor) Resume() {
	e.signal()
	e.Pool.Wake()
}

func (e *Executor) signal() {
	select {
	case e.ready <- struct{}{}:
	default:
	}
}

// Run renders rows and hands them to the pool until ctx ends; then it gives back what waits. A row that is started after
// that is given back too: run returns only when done is closed, when no more can come.
func (e *Executor) Run(ctx context.Context, done <-chan struct{}) {
	defer context.AfterFunc(ctx, e.signal)()
	for {
		select {
		case <-e.ready:
		case <-done:
			return
		}
		e.submit(ctx, e.dedupe.takeBack())
		for some := e.next(ctx); len(some) > 0; some = e.next(ctx) {
			jobs := e.prepareAll(ctx, some)
			e.dedupe.lookUp(ctx, jobs)
			e.submit(ctx, jobs)
		}
	}
}

// next takes the first rows of the queue that may begin: one, or as many as are looked up in the store at once. They are
// valid until the next call.
func (e *Executor) next(ctx context.Context) []*consumer.Row {
	most := 1
	if e.dedupe != nil && e.dedupe.store != nil {
		most = lookUpRows
	}
	return e.queue.take(most, func(row *consumer.Row, before int) bool {
		return ctx.Err() != nil || row.MayBegin() && e.Pool.Room(row.Partition) > before
	})
}

// submit gives jobs to the pool, but for those that share the call of another. It does not block, though the pool's queue
// may have filled up meanwhile: a job in its hand could not be recalled, and would hold up those of other partitions.
func (e *Executor) submit(ctx context.Context, jobs []*job) {
	for len(jobs) > 0 {
		j := jobs[0]
		jobs = jobs[1:]
		switch {
		case ctx.Err() != nil || !j.row.Wanted():
			e.reply(j.row, consumer.Reply{HandedBack: true})
		case e.shared(j):
		case e.unaffordable(j):
		default:
			if err := e.Pool.Add(j, e.done); err != nil {
				e.done(pool.Result[*job, struct{}]{In: j, Class: pool.Cancelled})
			}
		}
		if back := e.dedupe.takeBack(); len(back) > 0 {
			jobs = append(back, jobs...) // they are older
		}
	}
}

// unaffordable answers a row whose own model has no price, where there is a ceiling.
func (e *Executor) unaffordable(j *job) bool {
	err := e.caller.Affordable(j.model)
	if err == nil {
		return false
	}
	r := pool.Result[*job, struct{}]{In: j, Err: err, Class: pool.Permanent, Finished: time.Now(), Stats: e.Pool.Stats()}
	e.ended(r)
	e.answerError(j, err, r, "")
	return true
}

// prepareAll answers the rows that need no call, and makes jobs of the others.
func (e *Executor) prepareAll(ctx context.Context, rows []*consumer.Row) []*job {
	jobs := make([]*job, 0, len(rows))
	for _, row := range rows {
		if ctx.Err() != nil || !row.Wanted() {
			e.reply(row, consumer.Reply{HandedBack: true})
		} else if j := e.prepare(row); j != nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// prepare answers a row that needs no call, or makes a job of it.
func (e *Executor) prepare(row *consumer.Row) *job {
	if e.cfg.Rows.OnUpstreamError == "pass" && row.Header.Get(streams.HeaderStatus) == auditlog.RowError {
		e.passOn(row)
		return nil
	}
	j := &job{row: row}
	err := rowFault(row)
	if err == nil {
		err = e.render(j)
	}
	if err != nil {
		e.answerError(j, err, pool.Result[*job, struct{}]{Finished: time.Now(), Stats: e.Pool.Stats()}, "")
		return nil
	}
	if e.restored(j) {
		return nil
	}
	return j
}

// rowFault is the error of a row that the loader put in the place of one too large for a message.
func rowFault(in *consumer.Row) error {
	if llm.Reason(in.Header.Get(streams.HeaderRowError)) != llm.ReasonRowTooLarge {
		return nil
	}
	size, _ := strconv.ParseInt(in.Header.Get(streams.HeaderRowSize), 10, 64) // 0 tells as much as a missing number
	limit, _ := strconv.Atoi(in.Header.Get(streams.HeaderRowLimit))
	return row.TooLarge(size, limit, in.Body)
}

// passOn answers a row that arrived as an error of an earlier stage: it goes on unchanged, in its place.
func (e *Executor) passOn(in *consumer.Row) {
	now := time.Now()
	body := in.Body
	event := e.event(&job{row: in}, pool.Result[*job, struct{}]{Finished: now, Stats: e.Pool.Stats()})
	event.Source = auditlog.SourceUpstream
	if len(body) > in.MaxBodyBytes {
		fault := row.ResultTooLarge(len(body), in.MaxBodyBytes)
		body, event.Reason = e.prompt.errorBody(nil, in, fault, nil), string(fault.Reason)
	}
	e.reply(in, consumer.Reply{Body: body, Failed: true, Event: event, UpstreamReason: upstreamReason(in, e.cfg.Prompt.ResponseField)})
}

// upstreamError is the reason of an error that came in and does not say its own.
const upstreamError = "upstream_error"

// reasonWord is what a reason looks like. It goes into a header, and it comes from somebody else.
var reasonWord = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// upstreamReason finds out why a row failed that came in as an error: from its body, or where it was a dead letter from
// its header.
func upstreamReason(in *consumer.Row, field string) string {
	for _, reason := range []string{row.FailureReason(in.Body, field), in.Header.Get(streams.HeaderReason)} {
		if reasonWord.MatchString(reason) {
			return reason
		}
	}
	return upstreamError
}

// render parses the row and makes the request of it.
func (e *Executor) render(j *job) error {
	var err error
	if j.parsed, err = row.Parse(j.row.Body); err != nil {
		return err
	}
	if j.request, j.vars, err = e.prompt.Request(j.parsed); err != nil {
		return err
	}
	j.model = j.row.Header.Get(streams.HeaderModel)
	if err = e.address(j, 0); err != nil {
		return err
	}
	j.key = e.caller.At(0).Key(j.prepared)
	return nil
}

// done answers the row. It runs on the pool's goroutine.
func (e *Executor) done(r pool.Result[*job, struct{}]) {
	j := r.In
	j.prepared, j.request = nil, llm.Request{}
	e.ended(r)
	switch {
	case r.Class == pool.Cancelled:
		e.reply(j.row, consumer.Reply{HandedBack: true})
	case r.Err != nil:
		e.answerError(j, r.Err, r, auditlog.SourceCall)
	case j.tooLarge != nil:
		e.answerError(j, j.tooLarge, r, auditlog.SourceCall)
	default:
		event := e.event(j, r)
		event.Source = auditlog.SourceCall
		e.reply(j.row, consumer.Reply{Body: j.body, Event: event, RequestHash: j.key, Form: e.prompt.form()})
	}
}

// reply answers the row, or gives it back.
func (e *Executor) reply(row *consumer.Row, reply consumer.Reply) {
	e.logFinished(row, &reply)
	row.Reply(reply)
}

// answerError answers the row with an error result. source is where the error came from; empty: nobody was asked.
func (e *Executor) answerError(j *job, err error, r pool.Result[*job, struct{}], source string) {
	fault := call.AsError(err)
	if p, ok := errors.AsType[*pool.PanicError](err); ok {
		e.log.Error("a call panicked: this is a fault of the stage, please report it",
			slog.Uint64("sequence", j.row.Seq), slog.Any("panic", p.Value), slog.String("stack", string(p.Stack)))
	}
	event := e.event(j, r)
	event.Reason = string(fault.Reason)
	event.Source = source
	reply := consumer.Reply{Body: e.prompt.errorBody(j.parsed, j.row, fault, j.errors), Failed: true, Event: event}
	if source != "" { // else nothing was paid for it
		reply.RequestHash, reply.Form = j.key, e.errorForm(j.row, fault.Reason)
	}
	e.reply(j.row, reply)
}

// event is what the row event says of the way of a row through the pool.
func (e *Executor) event(j *job, r pool.Result[*job, struct{}]) auditlog.Row {
	return auditlog.Row{
		Attempts: r.Attempts, CapacityRetries: r.CapacityRetries, Errors: j.errors, Usage: j.usage.Total(),
		QueuedAt: j.row.Taken, StartedAt: r.Started, FinishedAt: r.Finished,
		TemplateHash: e.prompt.templateHash(), VariablesHash: j.vars,
		PoolConfig: auditlog.PoolConfig{PoolSize: r.Stats.PoolSize, DispatchDelay: r.Stats.CurrentDelay},
		PoolStats: auditlog.PoolStats{
			CapacityRetries: r.Stats.CapacityRetries, Successes: r.Stats.Successes, MaxConcurrent: r.Stats.MaxConcurrent,
			ThrottleTime: r.Stats.ThrottleTime, PeakDelay: r.Stats.PeakDelay, CurrentDelay: r.Stats.CurrentDelay,
		},
	}
}

// Weight estimates the tokens of the job's next call: those of the request by its length, and as many as the reply may
// have. It implements [pool.Weighted]; the reply's usage corrects it.
func (j *job) Weight(int) int64 {
	if j.prepared == nil {
		return 0
	}
	return call.EstimateTokens(j.prepared, &j.request)
}
