// Package llmtest is a flaky LLM server: an [http.Handler] that speaks OpenAI's chat
// completions, responses and embeddings, Anthropic's messages, Gemini's generateContent and
// batchEmbedContents, Bedrock's Converse, and the formats of Gemini and Anthropic at Vertex AI.
// It admits only so many calls, takes its time, fails now and then, and always answers the same
// prompt alike. Beside them it serves the providers' Batch APIs: see package batches.
//
// It serves tests, the demo and the mock server alike, so it imports no testing. All its
// time comes from package time: inside a testing/synctest bubble, over a [PipeListener],
// an hour of it takes a moment.
//
//	server, err := llmtest.New(llmtest.Config{Rate: 20, Latency: time.Second})
//	pipe, stop := server.Pipe()
//	defer stop()
//	client, err := llm.NewProvider("mock", llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext})
package llmtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
)

// Config is how a [Server] behaves. Its zero value admits every call and answers at once.
type Config struct {
	// Rate is how many calls a second are admitted; the others get a 429. With 0 all are,
	// unless there is a Schedule.
	Rate float64
	// Schedule replaces Rate by phases that repeat. It may be empty.
	Schedule []Phase
	// Burst is how many calls are admitted at once after a pause. The default is 5.
	Burst int
	// MaxConcurrent is the most calls at a time; the others get a 429. 0 means no limit.
	MaxConcurrent int
	// Latency is the median time of an answer. With 0 calls are answered at once.
	// LatencySigma is the sigma of its log-normal distribution. With 0 all answers take the
	// same time.
	Latency      time.Duration
	LatencySigma float64
	// TextLatency is added to the time of an answer for each text of a call of embeddings.
	TextLatency time.Duration
	// Dimensions is how many numbers a vector has where the call does not say. The default
	// is 256.
	Dimensions int
	// VectorFaults is the share of calls of embeddings whose vectors are wrong. The shares
	// add up to at most 1.
	VectorFaults map[VectorFault]float64
	// Errors is the share of calls, by HTTP status, that fail with it though admitted.
	// The shares add up to at most 1.
	Errors map[int]float64
	// RetryAfter is sent with each 429, 503 and 529. With 0 they have no such header.
	RetryAfter time.Duration
	// Seed chooses latencies and errors: equal seeds give equal sequences, by order of
	// arrival.
	Seed uint64
	// Script, if set, is called first for every call. Nil from it leaves the call to the
	// rest of Config.
	Script func(Call) *Step
	// Batches is how the Batch APIs behave. Nothing above applies to them but Seed.
	Batches batches.Config
}

// Phase is a part of a schedule.
type Phase struct {
	Rate float64       // calls a second, or 0
	For  time.Duration // > 0
}

// Call is what a script may look at.
type Call struct {
	N      int // counts the calls from 0 by arrival
	Prompt string
	Model  string
	System string
	Inputs []string // the texts of a call of embeddings; Prompt has them one after the other
	Body   []byte
	Header http.Header
}

// maxRequestBytes bounds the body of a request.
const maxRequestBytes = 32 << 20

// Server is the flaky LLM server. Make it with [New]. It is safe for concurrent use.
type Server struct {
	cfg      Config
	statuses []int // of cfg.Errors, sorted: a map's order would not repeat
	start    time.Time
	batches  *batches.Server

	mu     sync.Mutex // guards the rest, for a few instructions
	random *rand.Rand
	bucket bucket
	stats  Stats
	served int64 // of the calls in flight, those that MaxConcurrent admitted
}

// Stats counts what a server has done with its calls.
type Stats struct {
	Received      int64 `json:"received"`       // all calls
	Answered      int64 `json:"answered"`       // with a 200
	Texts         int64 `json:"texts"`          // of the calls of embeddings among these
	RateLimited   int64 `json:"rate_limited"`   // beyond the rate
	TooConcurrent int64 `json:"too_concurrent"` // beyond the concurrency
	Injected      int64 `json:"injected"`       // failed by Errors
	Scripted      int64 `json:"scripted"`       // met a step of the script
	Invalid       int64 `json:"invalid"`        // no request we understand
	Abandoned     int64 `json:"abandoned"`      // the client went away first
	InFlight      int64 `json:"in_flight"`
	MaxInFlight   int64 `json:"max_in_flight"` // without those beyond the concurrency, and those that are invalid
	// Batches counts those of the Batch APIs, whose requests are not among the calls.
	Batches batches.Stats `json:"batches"`
}

// Rejected counts the calls refused for want of room.
func (s Stats) Rejected() int64 { return s.RateLimited + s.TooConcurrent }

// New makes a server. The error names all that is wrong with cfg.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Burst, cfg.Dimensions = cmp.Or(cfg.Burst, 5), cmp.Or(cfg.Dimensions, dimensionsDefault)
	if cfg.Schedule == nil && cfg.Rate > 0 {
		cfg.Schedule = []Phase{{Rate: cfg.Rate, For: time.Hour}}
	}
	now := time.Now()
	return &Server{
		cfg:      cfg,
		statuses: slices.Sorted(maps.Keys(cfg.Errors)),
		start:    now,
		batches:  batches.New(cfg.Batches, cfg.Seed, live{}),
		random:   rand.New(rand.NewPCG(cfg.Seed, 0x5eed)),
		bucket:   bucket{tokens: float64(cfg.Burst), last: now},
	}, nil
}

func (c *Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.Rate >= 0 && !math.IsInf(c.Rate, 0), "rate %v: want a number from 0", c.Rate)
	for _, p := range c.Schedule {
		check(p.Rate >= 0 && !math.IsInf(p.Rate, 0), "schedule: rate %v: want a number from 0", p.Rate)
		check(p.For > 0, "schedule: duration %v: want more than 0", p.For)
	}
	check(c.Burst >= 0, "burst %d is negative", c.Burst)
	check(c.MaxConcurrent >= 0, "max concurrent %d is negative", c.MaxConcurrent)
	check(c.Latency >= 0, "latency %v is negative", c.Latency)
	check(c.LatencySigma >= 0 && c.LatencySigma <= 5, "latency sigma %v: want 0 to 5", c.LatencySigma)
	check(c.RetryAfter >= 0, "retry-after %v is negative", c.RetryAfter)
	sum := 0.0
	for status, share := range c.Errors {
		check(status >= 400 && status <= 599, "errors: status %d: want 400 to 599", status)
		check(share >= 0 && share <= 1, "errors: share %v of %d: want 0 to 1", share, status)
		sum += share
	}
	wrong := 0.0
	for fault, share := range c.VectorFaults {
		check(share >= 0 && share <= 1, "vector faults: share %v of %s: want 0 to 1", share, fault)
		wrong += share
	}
	check(wrong <= 1+1e-9, "vector faults: the shares add up to %v: want at most 1", wrong)
	check(c.TextLatency >= 0, "text latency %v is negative", c.TextLatency)
	check(c.Dimensions >= 0, "dimensions %d is negative", c.Dimensions)
	check(sum <= 1+1e-9, "errors: the shares add up to %v: want at most 1", sum)
	problems = append(problems, c.Batches.Validate())
	return errors.Join(problems...)
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	inBatches := s.batches.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Batches = inBatches
	return stats
}

// Batches returns the server of the Batch APIs, which knows what it has billed.
func (s *Server) Batches() *batches.Server { return s.batches }

// ServeHTTP implements [http.Handler]. Any path that ends in /chat/completions,
// /responses, /embeddings, /messages, :generateContent, :rawPredict, :batchEmbedContents or
// /converse is an endpoint, those of the Batch APIs are
// too; GET /stats returns the [Stats] as JSON.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == "/stats" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Stats()) // the client is gone: nothing to do
		return
	}
	if batches.Handles(r) {
		s.batches.ServeHTTP(w, r)
		return
	}
	call, d := s.arrive(r)
	defer s.leave(call)
	if step := s.scripted(call); step != nil {
		s.mu.Lock()
		s.admit(call)
		s.mu.Unlock()
		s.play(w, r, d, call, step)
		return
	}
	if call.bad.status != 0 {
		s.count(&s.stats.Invalid)
		s.fail(w, d, call, call.bad)
		return
	}
	v := s.judge(call)
	switch atOnce := v.status != 0 && !v.late; {
	case !atOnce && !sleep(r.Context(), v.latency):
		s.count(&s.stats.Abandoned)
	case v.status != 0:
		s.fail(w, d, call, v.failure)
	default:
		s.answered(call)
		writeJSON(w, d, call, failure{status: http.StatusOK}, reply(d, call))
	}
}

// call is a Call with what only the server needs.
type call struct {
	Call
	path    string
	schema  any
	saw     string  // the roles and media, where there is more than a prompt
	stopped bool    // by a guardrail
	earlier int     // bytes of the texts before the prompt
	bad     failure // status 0: none
	served  bool    // it is among the server's served

	// Of embeddings:
	dimensions int
	base64     bool
	fault      VectorFault // "": none
}

// arrive counts a call and reads it.
func (s *Server) arrive(r *http.Request) (*call, dialect) {
	c := &call{Call: Call{Header: r.Header}}
	s.mu.Lock()
	c.N = int(s.stats.Received)
	s.stats.Received++
	s.stats.InFlight++
	s.mu.Unlock()

	d := dialectOf(r.URL.Path)
	c.bad = c.receive(r, d)
	if c.dimensions == 0 {
		c.dimensions = s.cfg.Dimensions
	}
	return c, d
}

// receive reads the request, or returns how it fails.
func (c *call) receive(r *http.Request, d dialect) failure {
	if d == (openAI{}) && !strings.HasSuffix(r.URL.Path, "/chat/completions") {
		return failure{http.StatusNotFound, "no such endpoint: " + r.URL.Path}
	}
	if r.Method != http.MethodPost {
		return failure{http.StatusMethodNotAllowed, "use POST"}
	}
	var err error
	if c.Body, err = io.ReadAll(io.LimitReader(r.Body, maxRequestBytes+1)); err != nil {
		return failure{http.StatusBadRequest, "body cut short"}
	}
	if len(c.Body) > maxRequestBytes {
		return failure{http.StatusRequestEntityTooLarge, "body too large"}
	}
	c.path = r.URL.Path
	if err := d.read(c); err != nil {
		return failure{http.StatusBadRequest, err.Error()}
	}
	return failure{}
}

// admit counts a call that is served, under the mutex.
func (s *Server) admit(c *call) {
	c.served = true
	s.served++
	s.stats.MaxInFlight = max(s.stats.MaxInFlight, s.served)
}

func (s *Server) leave(c *call) {
	s.mu.Lock()
	s.stats.InFlight--
	if c.served {
		s.served--
	}
	s.mu.Unlock()
}

// answered counts a call that is answered.
func (s *Server) answered(c *call) {
	s.mu.Lock()
	s.stats.Answered++
	s.stats.Texts += int64(len(c.Inputs))
	s.mu.Unlock()
}

func (s *Server) count(n *int64) {
	s.mu.Lock()
	*n++
	s.mu.Unlock()
}

// verdict is what the server does with an ordinary call: status 0 answers it after latency.
type verdict struct {
	failure
	late    bool // fail only after latency
	latency time.Duration
}

// judge decides about a call that arrives now. It draws the same random numbers
// whatever the verdict, so that one call does not change another's.
func (s *Server) judge(c *call) verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := verdict{latency: time.Duration(float64(s.cfg.Latency) * math.Exp(s.cfg.LatencySigma*s.random.NormFloat64()))}
	v.latency += time.Duration(len(c.Inputs)) * s.cfg.TextLatency
	luck := s.random.Float64()
	if len(s.cfg.VectorFaults) > 0 && c.Inputs != nil {
		c.fault = s.cfg.drawFault(s.random.Float64())
	}
	if limit := int64(s.cfg.MaxConcurrent); limit > 0 && s.served >= limit {
		s.stats.TooConcurrent++
		v.failure = failure{http.StatusTooManyRequests, fmt.Sprintf("more than %d calls at a time", limit)}
		return v
	}
	s.admit(c)
	if s.cfg.Schedule != nil && !s.bucket.take(time.Now(), s.start, s.cfg.Schedule, float64(s.cfg.Burst)) {
		s.stats.RateLimited++
		v.failure = failure{http.StatusTooManyRequests, "rate limit reached"}
		return v
	}
	for _, status := range s.statuses {
		if luck -= s.cfg.Errors[status]; luck < 0 {
			s.stats.Injected++
			v.failure = failure{status, "injected failure"}
			v.late = status >= 500 && !isCapacity(status)
			return v
		}
	}
	return v
}

func isCapacity(status int) bool { return status == 429 || status == 503 || status == 529 }

// failure is an error reply.
type failure struct {
	status  int
	message string
}

func (s *Server) fail(w http.ResponseWriter, d dialect, c *call, f failure) {
	if s.cfg.RetryAfter > 0 && isCapacity(f.status) {
		whole := (s.cfg.RetryAfter + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.FormatInt(int64(whole), 10))
		if s.cfg.RetryAfter%time.Second != 0 {
			w.Header().Set("Retry-After-Ms", strconv.FormatInt(max(1, s.cfg.RetryAfter.Milliseconds()), 10))
		}
	}
	writeJSON(w, d, c, f, d.fault(f))
}

// writeJSON writes a reply. f has its status.
func writeJSON(w http.ResponseWriter, d dialect, c *call, f failure, body []byte) {
	if d, ok := d.(withHeader); ok {
		d.writeHeader(w.Header(), c, f)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // the client is gone: nothing to do
}

// sleep waits for d and reports whether ctx lasted as long.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
