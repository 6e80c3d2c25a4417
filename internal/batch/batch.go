// Package batch answers batched requests over a NATS micro service.
package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/recorder"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batch"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const (
	// batchService is the name of the micro service: $SRV.INFO.llm-stage finds all stages.
	batchService = "llm-stage"

	batchEndpointDeprecated = "llm_query_batched"
	// batchesMax bounds the batches at work in a process. Each may hold a largest message of prompts and one of answers.
	batchesMax = 64
	// batchesBusyWait is what somebody is told to wait who asks when there are so many.
	batchesBusyWait = 5 * time.Second
	// BatchHeadroom is what headers take of the server's largest message.
	BatchHeadroom = 1024
)

const (
	headerBatchID = "Stage-Batch-Id"
	headerWarning = "Stage-Warning"
)

// batchesBusyError says that too many batches are at work.
type batchesBusyError struct{}

// Error says what to do.
func (*batchesBusyError) Error() string {
	return fmt.Sprintf("%d batches are at work in this stage: ask again after %v", batchesMax, batchesBusyWait)
}

// Service answers batched requests over NATS. Their prompts go through the stage's pool, among the new rows and in the
// order in which they come, each attempt by itself (see [pool.Once]), and as many at a time in all as the pool has slots:
// so of a full pool rows keep at least two thirds, and no batch holds a row up. Every replica of a stage answers, owner
// or standby: it is the queue group that picks one.
type Service struct {
	cfg      *config.Config
	conn     *natsconn.Conn
	caller   *call.Caller
	recorder *recorder.Recorder
	batch    *batch.Batch
	once     *pool.Once[*batchCall, *llm.Reply]
	permits  chan struct{} // a token for each prompt that the pool has
	log      *slog.Logger

	mu      sync.Mutex // guards the rest, for a few instructions
	stopped bool       // no further request is taken up
	atWork  int
	done    map[string]*batchTotals // by endpoint
	working sync.WaitGroup
}

// batchTotals is what $SRV.STATS shows of an endpoint beside the service's own numbers, which end when a request is
// taken up.
type batchTotals struct {
	InFlight       int   `json:"in_flight"`
	Answered       int   `json:"answered"`
	Failed         int   `json:"failed"`
	Prompts        int   `json:"prompts"`
	PromptErrors   int   `json:"prompt_errors"`
	ProcessingTime int64 `json:"processing_time"` // nanoseconds, as the service's own
}

// New puts the parts together and starts nothing.
func New(cfg *config.Config, conn *natsconn.Conn, caller *call.Caller, e *executor.Executor, recorder *recorder.Recorder, log *slog.Logger) (*Service, error) {
	b := &Service{
		cfg: cfg, conn: conn, caller: caller, recorder: recorder, log: log, permits: make(chan struct{}, cfg.Pool.Size),
		done: map[string]*batchTotals{config.BatchEndpoint: {}, batchEndpointDeprecated: {}},
	}
	extra, err := cfg.LLM.ReadExtraBody()
	if err != nil {
		return nil, fmt.Errorf("STAGE_LLM_EXTRA_BODY: %w", err)
	}
	b.batch, err = batch.New(batch.Config{
		MaxParallel: cfg.Batch.MaxParallel, ParallelLimit: cfg.Batch.ParallelLimit, MaxPrompts: cfg.Batch.MaxPrompts, RPM: cfg.Batch.RPM,
		Retry:           pool.RetryConfig(cfg.Retry),
		MaxContentBytes: b.bytesMax(),
		Request:         llm.Request{Temperature: cfg.LLM.Temperature, MaxTokens: cfg.LLM.MaxTokens, ExtraBody: extra},
	})
	b.once = pool.NewOnce(e.Pool, b.attempt)
	return b, err
}

// bytesMax is the largest body of a reply.
func (b *Service) bytesMax() int { return int(b.conn.NC.MaxPayload()) - BatchHeadroom }

// Serve answers requests until soft ends, then finishes those at work: their calls in the air end, what was not asked
// fails. When hard ends the pool cuts the calls. The pool must run, and serve returns after it has ended.
func (b *Service) Serve(soft, hard context.Context) {
	work, stop := context.WithCancelCause(context.WithoutCancel(soft))
	defer stop(nil)
	service, err := b.open(work, hard)
	if err != nil {
		b.log.Error("batched requests are not answered", slog.Any("error", err)) // rows do not depend on it
		return
	}
	<-soft.Done()
	stop(errStopping)
	if !b.conn.Lent { // else it ends with the connection
		if err := service.Stop(); err != nil {
			b.log.Warn("service of batched requests not stopped in order", slog.Any("error", err))
		}
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.working.Wait()
}

// open begins to take requests.
func (b *Service) open(work, hard context.Context) (micro.Service, error) {
	service, err := micro.AddService(b.conn.NC, micro.Config{
		Name: batchService, Version: semanticVersion(version.Current().Version), Description: "batched requests to an LLM through a stage's pool",
		Metadata: map[string]string{
			"stage": b.cfg.Name, "run_id": b.caller.RunID(), "provider": b.cfg.LLM.Provider, "model": b.caller.At(0).Model(),
		},
		StatsHandler: b.stats,
	})
	if err != nil {
		return nil, err
	}
	warning := "the endpoint " + batchEndpointDeprecated + " is deprecated: ask " + config.BatchSubject(b.cfg.Name)
	for _, v := range []struct{ endpoint, warning string }{{config.BatchEndpoint, ""}, {batchEndpointDeprecated, warning}} {
		handler := func(req micro.Request) { b.take(work, hard, v.endpoint, v.warning, req) }
		err := service.AddEndpoint(v.endpoint, micro.HandlerFunc(handler), micro.WithEndpointSubject(b.cfg.Name+"."+v.endpoint))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %s: %w", v.endpoint, err), service.Stop())
		}
	}
	return service, nil
}

// take takes a request up. What needs no call is answered here, where the service counts it as an error; the rest in a
// goroutine of its own, for requests of an endpoint come one by one.
func (b *Service) take(work, hard context.Context, endpoint, warning string, req micro.Request) {
	if req.Reply() == "" {
		b.log.Debug("batched request without a reply subject is not answered", slog.String("subject", req.Subject()))
		return // and not paid for
	}
	headers := micro.Headers{}
	if warning != "" {
		headers[headerWarning] = []string{warning}
	}
	refuse := func(err error) {
		body, code, description := batchReply(b.cfg.LLM.Provider, nil, err, b.bytesMax())
		if err := req.Error(code, oneLine(description), body, micro.WithHeaders(headers)); err != nil {
			b.log.Debug("batched request not answered", slog.Any("error", err))
		}
		b.count(endpoint, func(t *batchTotals) { t.Failed++ })
	}
	request, err := ReadBatchRequest(req.Data())
	if err == nil {
		err = b.batch.Check(request)
	}
	if err != nil {
		refuse(err)
		return
	}
	b.mu.Lock()
	if b.stopped { // it came before the subscription ended
		b.mu.Unlock()
		_, err := b.batch.Do(work, b.newRun(), request) // work has ended: this tells so of each prompt
		refuse(err)
		return
	}
	if b.atWork >= batchesMax {
		b.mu.Unlock()
		refuse(&batchesBusyError{})
		return
	}
	b.atWork++
	b.done[endpoint].InFlight++
	reply := req.Reply() // not through req: the service looks at it when this returns
	b.working.Go(func() {
		b.answer(work, hard, endpoint, &nats.Msg{Subject: reply, Header: nats.Header(headers)}, request)
	})
	b.mu.Unlock()
}

// answer asks the prompts and sends the reply.
func (b *Service) answer(work, hard context.Context, endpoint string, msg *nats.Msg, request *batch.Request) {
	began, run := time.Now(), b.newRun()
	reply, err := b.batch.Do(work, run, request)
	run.audited(hard)
	var code, description string
	msg.Data, code, description = batchReply(run.Provider(), reply, err, b.bytesMax())
	msg.Header[headerBatchID] = []string{run.id}
	if code != "" {
		msg.Header[micro.ErrorHeader], msg.Header[micro.ErrorCodeHeader] = []string{oneLine(description)}, []string{code}
	}
	if err := b.conn.NC.PublishMsg(msg); err != nil {
		b.log.Warn("reply to a batched request not sent", slog.String("batch_id", run.id), slog.Any("error", err))
	}
	b.log.Debug("batched request", slog.String("batch_id", run.id), slog.Int("prompts", len(request.Prompts)), slog.Int("errors", reply.ErrorCount()),
		slog.String("code", code), slog.Duration("took", time.Since(began)))
	b.count(endpoint, func(t *batchTotals) {
		t.InFlight--
		t.Prompts += len(request.Prompts)
		t.PromptErrors += reply.ErrorCount()
		t.ProcessingTime += time.Since(began).Nanoseconds()
		if code == "" {
			t.Answered++
		} else {
			t.Failed++
		}
	})
	b.mu.Lock()
	b.atWork--
	b.mu.Unlock()
}

func (b *Service) count(endpoint string, change func(*batchTotals)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b.done[endpoint])
}

// stats is what the service adds to its own statistics.
func (b *Service) stats(e *micro.Endpoint) any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.done[e.Name]; t != nil {
		return *t
	}
	return nil
}

// oneLine makes a text fit for a header.
func oneLine(text string) string {
	const most = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

var semanticVersionPattern = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// semanticVersion is the version as a service must have one: a build from a checkout has none.
func semanticVersion(version string) string {
	if v := strings.TrimPrefix(version, "v"); semanticVersionPattern.MatchString(v) {
		return v
	}
	return "0.0.0-devel"
}
