// Package batches serves the Batch APIs of OpenAI, Azure, Anthropic and Gemini for
// package llmtest, as nasty as the real ones: shuffled, missing, doubled and cut lines,
// lost answers, lists that lag, expiry by each provider's rule.
//
// One engine keeps the table of batches; a thin dialect per provider reads and writes its
// shapes. The state of a batch is a function of the time since its creation, so nothing
// runs in the background, and in a testing/synctest bubble a day takes a moment. What a
// batch does depends on the seed and its number alone: equal seeds, equal troubles.
package batches

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Config is how the Batch APIs behave. Its zero value ends each batch at once, with an
// answer for each line.
type Config struct {
	// Delay is how long a batch takes.
	Delay time.Duration
	// Expire is the share of batches that expire, after ExpireAfter or, if that is 0,
	// after Delay, and with a part of their lines answered. Azure's never do. The batches
	// of the others also expire when Delay is longer than their window.
	Expire      float64
	ExpireAfter time.Duration
	// Fail is the share of lines, by HTTP status, that fail with it. The shares add up to
	// at most 1.
	Fail map[int]float64
	// These are shares of answered lines. Missing lines are billed, but not in the results.
	// Doubled ones are there twice. Foreign ones are followed by a line of another batch.
	// Torn ones are cut in the middle.
	Missing, Doubled, Foreign, Torn float64
	// LoseCreate is the share of creations that are carried out and whose answer is lost.
	LoseCreate float64
	// ListLag is how long a new batch or file is not in lists; Hidden how long a GET of a
	// new batch returns a 404.
	ListLag, Hidden time.Duration
	// BadGateway is the share of downloads that get a 502, CutContent the share of those
	// that break off in the middle.
	BadGateway, CutContent float64
	// CancelDelay is how long a cancellation takes; lines go on being answered meanwhile.
	CancelDelay time.Duration
	// MaxLines and MaxBytes bound one batch. The defaults are the provider's own limits.
	MaxLines int
	MaxBytes int64
	// Enqueued is the most prompt tokens of one model in batches that are not over. 0 means
	// no limit. RefuseAtOnce makes all providers refuse a batch beyond it at creation.
	// Without it OpenAI and Azure accept such a batch, which then ends as failed.
	Enqueued     int64
	RefuseAtOnce bool
	// Poison, if set, reports lines for which a batch is refused as a whole; Unnamed
	// leaves their numbers out of the error.
	Poison  func(customID string, body []byte) bool
	Unnamed bool
	// Script, if set, is called first for every request. Nil from it leaves the request
	// to the rest of Config.
	Script func(Request) *Step
}

// Validate returns all that is wrong with c.
func (c *Config) Validate() error {
	var problems []error
	share := func(name string, v float64) {
		if !(v >= 0 && v <= 1) {
			problems = append(problems, fmt.Errorf("batches: %s %v: want a share from 0 to 1", name, v))
		}
	}
	length := func(name string, d time.Duration) {
		if d < 0 {
			problems = append(problems, fmt.Errorf("batches: %s %v is negative", name, d))
		}
	}
	share("expire", c.Expire)
	share("missing", c.Missing)
	share("doubled", c.Doubled)
	share("foreign", c.Foreign)
	share("torn", c.Torn)
	share("lose create", c.LoseCreate)
	share("bad gateway", c.BadGateway)
	share("cut content", c.CutContent)
	length("delay", c.Delay)
	length("expire after", c.ExpireAfter)
	length("list lag", c.ListLag)
	length("hidden", c.Hidden)
	length("cancel delay", c.CancelDelay)
	if c.MaxLines < 0 || c.MaxBytes < 0 || c.Enqueued < 0 {
		problems = append(problems, errors.New("batches: a limit is negative"))
	}
	sum := 0.0
	for status, v := range c.Fail {
		if status < 400 || status > 599 {
			problems = append(problems, fmt.Errorf("batches: fail: status %d: want 400 to 599", status))
		}
		share("fail", v)
		sum += v
	}
	if sum > 1+1e-9 {
		problems = append(problems, fmt.Errorf("batches: fail: the shares add up to %v: want at most 1", sum))
	}
	return errors.Join(problems...)
}

// Provider is whose Batch API a request is for.
type Provider string

// The providers.
const (
	OpenAI    Provider = "openai"
	Azure     Provider = "azure"
	Anthropic Provider = "anthropic"
	Gemini    Provider = "gemini"
)

// Op is what a request asks for.
type Op string

// The operations. Content is the download of results, whatever their address.
const (
	Upload     Op = "upload"
	GetFile    Op = "get file"
	ListFiles  Op = "list files"
	DeleteFile Op = "delete file"
	Content    Op = "content"
	Create     Op = "create"
	Get        Op = "get"
	List       Op = "list"
	Cancel     Op = "cancel"
	Delete     Op = "delete"
)

// Request is what a script may look at.
type Request struct {
	N        int // counts the requests from 0 by arrival
	Provider Provider
	Op       Op
	ID       string // of the batch or file, or empty
	Body     []byte // of Upload and Create
}

// Step is what a script does to one request.
type Step struct {
	// Delay is waited before anything else.
	Delay time.Duration
	// Status is answered in place of doing the work, with Body or the provider's error
	// object. With 0 the work is done.
	Status int
	Body   string
	// Lose closes the connection without an answer.
	Lose Lose
}

// Lose is when a connection is closed.
type Lose uint8

const (
	// LoseNothing answers.
	LoseNothing Lose = iota
	// LoseRequest closes the connection before the work is done.
	LoseRequest
	// LoseAnswer does the work and closes the connection then.
	LoseAnswer
)

// Live are the live endpoints: a line gets what they would answer.
type Live interface {
	// Answer answers the body of a request to a path; for what it refuses, Status is that
	// of the error.
	Answer(path string, body []byte) Reply
	// Fault is the body of an error.
	Fault(path string, status int, message string) []byte
}

// Reply is the answer of a live endpoint.
type Reply struct {
	Status             int
	Body               []byte
	Prompt, Completion int64 // tokens
}

// Stats counts what has been done and billed.
type Stats struct {
	Created    int64 `json:"created"` // accepted; those refused later included
	Running    int64 `json:"running"`
	Completed  int64 `json:"completed"`
	Failed     int64 `json:"failed"` // refused as a whole after creation
	Expired    int64 `json:"expired"`
	Cancelled  int64 `json:"cancelled"`
	Refused    int64 `json:"refused"` // creations
	Answered   int64 `json:"answered"`
	LineErrors int64 `json:"line_errors"`
	Lapsed     int64 `json:"lapsed"` // expired or cancelled
	Prompt     int64 `json:"billed_prompt_tokens"`
	Completion int64 `json:"billed_completion_tokens"`
	Forgotten  int64 `json:"forgotten"` // billed beyond what Billed remembers
}

// Info is a batch as the server knows it.
type Info struct {
	ID, Model string
	Provider  Provider
	Created   time.Time
	// First is the custom id of its first line: two batches with the same one are the
	// same batch submitted twice.
	First string
	Lines int
	State string
}

const (
	maxBody   = 512 << 20
	maxStored = 2 << 30 // bytes of files and batches
	maxKept   = 10000   // batches, and files
	maxBilled = 1 << 21 // custom ids
)

// Server serves the Batch APIs. Make it with [New]. It is safe for concurrent use.
type Server struct {
	cfg  Config
	seed uint64
	live Live
	born int64 // milliseconds: no id is that of another server, such as this one's predecessor

	mu       sync.Mutex // guards the rest
	requests int
	serial   int // of batches, files and uploads
	stored   int64
	jobs     []*job // in order of creation
	byID     map[string]*job
	files    []*file // in order of creation
	fileByID map[string]*file
	uploads  map[string]string // Gemini's started uploads: id to display name
	billed   map[string]int32  // by custom id
	stats    Stats
}

// New makes a server whose lines are answered by live. cfg must be valid.
func New(cfg Config, seed uint64, live Live) *Server {
	return &Server{
		cfg: cfg, seed: seed, live: live, born: time.Now().UnixMilli(),
		byID: map[string]*job{}, fileByID: map[string]*file{}, uploads: map[string]string{}, billed: map[string]int32{},
	}
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	stats := s.stats
	for _, j := range s.jobs {
		if !j.settled {
			stats.Running++
		}
	}
	return stats
}

// Billed returns how often each line was billed, by what key makes of its custom id; nil
// means by the custom id.
func (s *Server) Billed(key func(customID string) string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	counts := make(map[string]int, len(s.billed))
	for id, n := range s.billed {
		if key != nil {
			id = key(id)
		}
		counts[id] += int(n)
	}
	return counts
}

// Batches returns the batches that were accepted, oldest first: the last ten thousand.
func (s *Server) Batches() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	infos := make([]Info, 0, len(s.jobs))
	for _, j := range s.jobs {
		infos = append(infos, Info{
			ID: j.id, Model: j.model, Provider: j.provider, Created: j.created, First: j.first, Lines: j.total,
			State: string(j.phase(time.Now())),
		})
	}
	return infos
}

// draw returns a number in [0, 1) that depends on the seed and its arguments alone.
func (s *Server) draw(what string, n, i int) float64 {
	x := s.seed
	mix := func(v uint64) { // splitmix64
		x += 0x9e3779b97f4a7c15 + v
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	for _, c := range []byte(what) {
		mix(uint64(c))
	}
	mix(uint64(n))
	mix(uint64(i))
	return float64(x>>11) / (1 << 53)
}

// ServeHTTP implements [http.Handler], for requests that [Handles] takes.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rq, ok := route(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	body, err := readBody(w, r)
	s.mu.Lock()
	rq.N = s.requests
	s.requests++
	s.mu.Unlock()
	rq.Body = body
	var step Step
	if s.cfg.Script != nil {
		if p := s.cfg.Script(rq.Request); p != nil {
			step = *p
		}
	}
	if !sleep(r, step.Delay) || step.Lose == LoseRequest {
		panic(http.ErrAbortHandler) // the server's way to close a connection
	}
	var a reply
	switch {
	case step.Status != 0:
		a = reply{status: step.Status, body: []byte(cmp.Or(step.Body, string(rq.fault(step.Status, "scripted failure"))))}
	case err != nil:
		a = rq.refuse(http.StatusRequestEntityTooLarge, "body too large or cut short")
	default:
		a = s.serve(rq)
	}
	if step.Lose == LoseAnswer || a.lost {
		panic(http.ErrAbortHandler)
	}
	a.write(w)
}

// serve does the work.
func (s *Server) serve(rq *request) reply {
	if rq.Op == Content {
		if s.draw("502", rq.N, 0) < s.cfg.BadGateway {
			return reply{status: http.StatusBadGateway, kind: "text/html", body: []byte("<html>502 Bad Gateway</html>")}
		}
		a := s.dispatch(rq)
		a.cut = s.draw("cut", rq.N, 0) < s.cfg.CutContent
		return a
	}
	a := s.dispatch(rq)
	if rq.Op == Create && a.status < 300 && s.draw("lose", rq.N, 0) < s.cfg.LoseCreate {
		a.lost = true
	}
	return a
}

func (s *Server) dispatch(rq *request) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	switch rq.Provider {
	case Anthropic:
		return s.anthropic(rq)
	case Gemini:
		return s.gemini(rq)
	case OpenAI, Azure:
	}
	return s.openAI(rq)
}
