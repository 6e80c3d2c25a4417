// Package batch answers batched requests over a NATS micro service.
//
// [llm.Batch] decides which prompt is sent when, and what the reply is. This package is
// the service around it: it takes requests, makes the calls through the stage's pool, and
// stores their audit events.
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
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const (
	// serviceName is the name of the micro service: $SRV.INFO.llm-stage finds all stages.
	serviceName = "llm-stage"
	// deprecatedEndpoint is the former name of [config.BatchEndpoint].
	deprecatedEndpoint = "llm_query_batched"
	// inProgressMax bounds the batches in progress in a process. Each may hold a largest
	// message of prompts and one of answers.
	inProgressMax = 64
	// busyRetryAfter is when to retry a request that was refused because there are so
	// many.
	busyRetryAfter = 5 * time.Second
	// Headroom is the number of bytes of the server's largest message that are left for
	// headers.
	Headroom = 1024
)

const (
	headerBatchID = "Stage-Batch-Id"
	headerWarning = "Stage-Warning"
)

// Service answers batched requests over NATS. Their prompts go through the stage's pool,
// in turn with the new rows and in the order in which they come, each attempt by itself:
// see [executor.Executor.CallOnce]. So rows keep three quarters of a full pool, and no batch
// delays the retry of a row. Every replica of a stage answers, owner or standby; the queue
// group picks one.
type Service struct {
	cfg      *config.Config
	conn     *natsconn.Conn
	caller   *call.Caller
	recorder *recorder.Recorder
	batch    *llm.Batch
	executor *executor.Executor
	log      *slog.Logger

	desk  *desk         // of deferred batches
	moved chan struct{} // holds a token when the connection was replaced
	// answering has a place for each request that holds the answers of a deferred batch.
	answering chan struct{}

	mu         sync.Mutex // guards the rest, for a few instructions
	stopped    bool       // no further request begins
	inProgress int
	asks       int                // requests about deferred batches in progress
	totals     map[string]*totals // by endpoint
	working    sync.WaitGroup     // the batches in progress
}

// totals is what $SRV.STATS shows of an endpoint in addition to the service's own
// numbers, which end when a request is accepted.
type totals struct {
	InFlight       int   `json:"in_flight"`
	Answered       int   `json:"answered"`
	Failed         int   `json:"failed"`
	Prompts        int   `json:"prompts"`
	PromptErrors   int   `json:"prompt_errors"`
	ProcessingTime int64 `json:"processing_time"` // nanoseconds, as the service's own
}

// New returns a service that makes its calls through the pool of e, or what is wrong with
// cfg. Deferred batches are in the stream that of names. It starts nothing.
func New(
	cfg *config.Config, conn *natsconn.Conn, of streams.Config, caller *call.Caller,
	e *executor.Executor, recorder *recorder.Recorder, log *slog.Logger,
) (*Service, error) {
	b := &Service{
		cfg: cfg, conn: conn, caller: caller, recorder: recorder, executor: e, log: log,
		moved:     make(chan struct{}, 1),
		totals:    map[string]*totals{config.BatchEndpoint: {}, deprecatedEndpoint: {}},
		answering: make(chan struct{}, answersMax),
	}
	b.desk = newDesk(b, of)
	extra, err := cfg.LLM.ReadExtraBody()
	if err != nil {
		return nil, fmt.Errorf("STAGE_LLM_EXTRA_BODY: %w", err)
	}
	b.batch, err = llm.NewBatch(llm.BatchConfig{
		MaxParallel: cfg.Batch.MaxParallel, ParallelLimit: cfg.Batch.ParallelLimit,
		MaxPrompts: cfg.Batch.MaxPrompts, RPM: cfg.Batch.RPM,
		Retry:           pool.RetryConfig(cfg.Retry),
		MaxContentBytes: b.bytesMax(),
		Request: llm.Request{
			Temperature: cfg.LLM.Temperature, MaxTokens: cfg.LLM.MaxTokens, ExtraBody: extra,
		},
	})
	return b, err
}

// bytesMax is the largest body of a reply.
func (b *Service) bytesMax() int { return int(b.conn.NC().MaxPayload()) - Headroom }

// Serve answers requests until soft ends, then finishes those in progress: calls in
// flight end, prompts that were not sent fail. When hard ends the pool cancels the calls.
// The pool must run until Serve returns.
func (b *Service) Serve(soft, hard context.Context) {
	work, stop := context.WithCancelCause(context.WithoutCancel(soft))
	defer stop(nil)
	service, err := b.open(work, hard)
	if err != nil {
		b.log.Error("batched requests are not answered", slog.Any("error", err))
		return // rows do not depend on it
	}
	var desk sync.WaitGroup
	defer desk.Wait()
	desk.Go(func() { b.desk.run(soft, hard) })
	for serving := true; serving; {
		select {
		case <-soft.Done():
			serving = false
		case <-b.moved: // the service went with its connection
			if again, err := b.open(work, hard); err == nil {
				service = again
			} else {
				b.log.Error("batched requests are not answered", slog.Any("error", err))
			}
		}
	}
	stop(errStopping)
	if !b.conn.External { // else it ends with the connection
		if err := service.Stop(); err != nil {
			b.log.Warn("service of batched requests not stopped cleanly", slog.Any("error", err))
		}
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.working.Wait()
}

// Use has the service be offered over the present connection of [New]'s conn, since the
// one before was closed for good.
func (b *Service) Use(*nats.Conn) {
	select {
	case b.moved <- struct{}{}:
	default:
	}
}

// open begins to take requests.
func (b *Service) open(work, hard context.Context) (micro.Service, error) {
	service, err := micro.AddService(b.conn.NC(), micro.Config{
		Name: serviceName, Version: semanticVersion(version.Current().Version),
		Description: "batched requests to an LLM through a stage's pool",
		Metadata: map[string]string{
			"stage": b.cfg.Name, "run_id": b.caller.RunID(), "provider": b.cfg.LLM.Provider,
			"model": b.caller.At(0).Model(),
		},
		StatsHandler: b.stats,
	})
	if err != nil {
		return nil, err
	}
	warning := "the endpoint " + deprecatedEndpoint + " is deprecated: use " +
		config.BatchSubject(b.cfg.Name)
	for _, v := range []struct{ endpoint, warning string }{
		{config.BatchEndpoint, ""}, {deprecatedEndpoint, warning},
	} {
		handler := func(req micro.Request) { b.take(work, hard, v.endpoint, v.warning, req) }
		err := service.AddEndpoint(v.endpoint, micro.HandlerFunc(handler),
			micro.WithEndpointSubject(b.cfg.Name+"."+v.endpoint))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %s: %w", v.endpoint, err), service.Stop())
		}
	}
	for request, handle := range map[string]func(context.Context, []byte) (any, error){
		RequestSubmit: b.submit, RequestGet: b.get, RequestCancel: b.cancel,
	} {
		handler := func(req micro.Request) { b.ask(work, hard, handle, req) }
		err := service.AddEndpoint(config.BatchEndpoint+"_"+request, micro.HandlerFunc(handler),
			micro.WithEndpointSubject(config.DeferredSubject(b.cfg.Name, request)))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %s: %w", request, err), service.Stop())
		}
	}
	return service, nil
}

// errEmbeds refuses a request to a stage whose answers are vectors: a reply has texts.
var errEmbeds = errors.New("this stage makes vectors (STAGE_TASK=embed), and a prompt wants an " +
	"answer: send it to a stage with STAGE_TASK=chat, or store the texts as rows to have them " +
	"embedded")

// check returns why a request is refused, whatever the stage has to do, or nil.
func (b *Service) check(request *llm.BatchRequest) error {
	if b.cfg.Embeds() {
		return errEmbeds
	}
	return b.batch.Check(request)
}

// take accepts a request or refuses it. A refusal is sent from here, where the service
// counts it as an error; an accepted request is answered in its own goroutine, since
// requests of an endpoint come one by one.
func (b *Service) take(work, hard context.Context, endpoint, warning string, req micro.Request) {
	subject := req.Reply() // read now: the service reuses req when take returns
	if subject == "" {
		b.log.Debug("batched request without a reply subject is not answered",
			slog.String("subject", req.Subject()))
		return // and not paid for
	}
	headers := micro.Headers{}
	if warning != "" {
		headers[headerWarning] = []string{warning}
	}
	request, err := ReadRequest(req.Data())
	if err == nil {
		err = b.check(request)
	}
	if err == nil {
		err = b.begin(endpoint, func() {
			msg := &nats.Msg{Subject: subject, Header: nats.Header(headers)}
			b.answer(work, hard, endpoint, msg, request)
		})
	}
	if errors.Is(err, errStopping) {
		// Work has ended: no prompt is sent, the report lists each.
		_, err = b.batch.Do(work, b.newRun(), request)
	}
	if err != nil {
		b.refuse(endpoint, req, headers, err)
	}
}

// begin runs answer in its own goroutine, unless the service has stopped or is busy.
func (b *Service) begin(endpoint string, answer func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped { // the request came before the subscription ended
		return errStopping
	}
	if b.inProgress >= inProgressMax {
		return &busyError{inProgressMax, "batches"}
	}
	b.inProgress++
	b.totals[endpoint].InFlight++
	b.working.Go(answer)
	return nil
}

// refuse answers a request with a service error.
func (b *Service) refuse(endpoint string, req micro.Request, headers micro.Headers, err error) {
	body, code, description := encodeReply(b.cfg.LLM.Provider, nil, err, b.bytesMax())
	if err := req.Error(code, oneLine(description), body, micro.WithHeaders(headers)); err != nil {
		b.log.Debug("batched request not answered", slog.Any("error", err))
	}
	b.mu.Lock()
	b.totals[endpoint].Failed++
	b.mu.Unlock()
}

// answer sends the prompts to the provider, replies to the request and counts it.
func (b *Service) answer(
	work, hard context.Context, endpoint string, msg *nats.Msg, request *llm.BatchRequest,
) {
	began, run := time.Now(), b.newRun()
	reply, err := b.batch.Do(work, run, request)
	run.awaitAudit(hard)
	var code, description string
	msg.Data, code, description = encodeReply(run.Provider(), reply, err, b.bytesMax())
	msg.Header[headerBatchID] = []string{run.id}
	if code != "" {
		msg.Header[micro.ErrorHeader] = []string{oneLine(description)}
		msg.Header[micro.ErrorCodeHeader] = []string{code}
	}
	if err := b.conn.NC().PublishMsg(msg); err != nil {
		b.log.Warn("reply to a batched request not sent", slog.String("batch_id", run.id),
			slog.Any("error", err))
	}
	took := time.Since(began)
	b.log.Debug("batched request", slog.String("batch_id", run.id),
		slog.Int("prompts", len(request.Prompts)), slog.Int("errors", reply.ErrorCount()),
		slog.String("code", code), slog.Float64("took_ms", milliseconds(took)))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inProgress--
	t := b.totals[endpoint]
	t.InFlight--
	t.Prompts += len(request.Prompts)
	t.PromptErrors += reply.ErrorCount()
	t.ProcessingTime += took.Nanoseconds()
	if code == "" {
		t.Answered++
	} else {
		t.Failed++
	}
}

// stats returns what the service adds to its own statistics of an endpoint.
func (b *Service) stats(e *micro.Endpoint) any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.totals[e.Name]; t != nil {
		return *t
	}
	return nil
}

// oneLine returns the text without line breaks, cut to 500 bytes, for a header.
func oneLine(text string) string {
	const most = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

var semanticVersionPattern = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// semanticVersion is the version in the form that a service must have. A build from a
// checkout has none and gets 0.0.0.
func semanticVersion(version string) string {
	if v := strings.TrimPrefix(version, "v"); semanticVersionPattern.MatchString(v) {
		return v
	}
	return "0.0.0-devel"
}

// milliseconds is the unit of times in log lines.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
