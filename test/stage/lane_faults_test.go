package stage_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/process"
)

// manner is how a process dies at a step.
type manner string

const (
	before manner = "before" // nothing of the step arrives
	after  manner = "after"  // it arrives, and its answer is lost
	within manner = "within" // its answer is cut in the middle
	late   manner = "late"   // it arrives, up to two minutes after the process has died
)

// laneExchange is a kind of HTTP request to the provider.
type laneExchange struct {
	name, method string
	path         *regexp.Regexp
}

// exchanges of all Batch APIs; the first that matches counts.
var exchanges = []laneExchange{
	{"cancel", http.MethodPost, regexp.MustCompile(`[/:]cancel$`)},
	{"create", http.MethodPost, regexp.MustCompile(`(/batches|:batchGenerateContent)$`)},
	{"upload", "", regexp.MustCompile(`/upload/`)},
	{"upload", http.MethodPost, regexp.MustCompile(`/files$`)},
	{"delete", http.MethodDelete, regexp.MustCompile(`.`)},
	{"find", http.MethodGet, regexp.MustCompile(`/(batches|files)$`)},
	{"fetch", http.MethodGet, regexp.MustCompile(`(/content|/results|:download)$`)},
	{"poll", http.MethodGet, regexp.MustCompile(`/batches/[^/]+$`)},
}

// stepOf returns the step that a request to the provider is; a live call otherwise.
func stepOf(r *http.Request) string {
	for _, e := range exchanges {
		if (e.method == "" || e.method == r.Method) && e.path.MatchString(r.URL.Path) {
			return e.name
		}
	}
	return "call"
}

// laneMessage is a step that a process takes by what it sends to the NATS server.
type laneMessage struct {
	name, subject string
	has           string // in what is sent; empty: anything
}

var messages = []laneMessage{
	{"claim", "PUB lane.stage.", `"kind":"claim"`},
	{"intent", "PUB lane.stage.", `"kind":"intent"`},
	{"record", "PUB lane.stage.", `"kind":"submitted"`},
	{"done", "PUB lane.stage.", `"kind":"done"`},
	{"abandon", "PUB lane.stage.", `"kind":"abandoned"`},
	{"journal", "PUB journal.stage.", ""},
	{"emit", "PUB results.stage.", "Stage-Status"},
	{"audit of a batch", "PUB audit.stage.", `"event":"batch"`},
	{"audit of a line", "PUB audit.stage.", `"lane":"batch"`},
	{"purge of the records", "PUB $JS.API.STREAM.PURGE.LANE", ""},
	{"purge of the journal", "PUB $JS.API.STREAM.PURGE.JOURNAL", ""},
	{"reset", "PUB $JS.API.CONSUMER.RESET.ROWS", ""},
}

// place is where in what is sent a message begins; -1: it is not in it.
func (m *laneMessage) place(data []byte) int {
	var at int
	if m.has != "" {
		if at = bytes.Index(data, []byte(m.has)); at < 0 {
			return -1
		}
		at = bytes.LastIndex(data[:at], []byte(m.subject))
	} else {
		at = bytes.Index(data, []byte(m.subject))
	}
	if at > 0 && data[at-1] == 'H' {
		at--
	}
	return at
}

// laneTarget is a step at which a process is to die, counted over all processes.
type laneTarget struct {
	step   string
	manner manner
	nth    int           // so many times it is let through
	after  time.Duration // of manner late
	next   *laneTarget   // where another process is to die then
}

// laneSteps are all steps, each with the manners in which a process may die at it.
func laneSteps() (all []laneTarget) {
	for _, m := range messages {
		all = append(all, laneTarget{step: m.name, manner: before}, laneTarget{step: m.name, manner: after})
	}
	for _, name := range []string{"upload", "create", "poll", "fetch", "fetch", "delete", "find", "call"} {
		all = append(all, laneTarget{step: name, manner: before}, laneTarget{step: name, manner: after})
	}
	return append(all, laneTarget{step: "fetch", manner: within}, laneTarget{step: "upload", manner: late}, laneTarget{step: "create", manner: late}, laneTarget{step: "create", manner: late})
}

// forgetting is how often, in percent, the provider does not know for a moment what it is asked about.
const forgetting = 5

// forgets reports whether a request gets a 404, which the next one like it need not get.
func (s *laneSim) forgets(step string) bool {
	switch step {
	case "fetch", "create", "poll", "find":
	default:
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.whims.IntN(100) >= forgetting {
		return false
	}
	s.forgotten[step]++
	return true
}

// laneTrap waits for the first process at its target.
type laneTrap struct{ stagetest.Trap[laneTarget] }

// at reports how the process that is at a step dies; without a manner it lives.
func (t *laneTrap) at(step string) (hit laneTarget) {
	t.Spring(func(set *laneTarget) *laneTarget {
		switch {
		case set == nil || set.step != step:
			return set
		case set.nth > 0:
			set.nth--
			return set
		}
		hit = *set
		return hit.next
	})
	return hit
}

// sees is [stagetest.Wire]'s Sees.
func (t *laneTrap) sees(data []byte) int {
	step := ""
	t.Spring(func(set *laneTarget) *laneTarget {
		if set != nil {
			step = set.step
		}
		return set
	})
	for _, m := range messages {
		if m.name != step {
			continue
		}
		at := m.place(data)
		if at < 0 {
			return -1
		}
		switch t.at(m.name).manner {
		case before:
			return at
		case after, within, late:
			return len(data)
		}
	}
	return -1
}

// gate is what stands between one process and the provider.
type gate struct {
	sim     *laneSim
	process *process.Process
	next    http.Handler
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	step := stepOf(r)
	g.sim.saw(step, r)
	switch hit := g.sim.trap.at(step); hit.manner {
	case before:
		g.process.Die()
	case after:
		g.next.ServeHTTP(&cutWriter{head: make(http.Header)}, r)
		g.process.Die()
	case within:
		g.next.ServeHTTP(&cutWriter{head: make(http.Header), w: w, left: 3000}, r)
		g.process.Die()
	case late:
		g.process.Die()
		g.arriveLater(r, hit.after)
	default:
		if g.sim.forgets(step) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"message":"not found","type":"invalid_request_error"}}`)
			return
		}
		g.next.ServeHTTP(w, r)
		return
	}
	panic(http.ErrAbortHandler)
}

// arriveLater has a request that is on its way arrive when its process is long dead.
func (g *gate) arriveLater(r *http.Request, after time.Duration) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	later := r.Clone(context.WithoutCancel(r.Context()))
	later.Body = io.NopCloser(bytes.NewReader(body))
	g.sim.later.Go(func() {
		time.Sleep(after)
		defer func() { _ = recover() }() // an answer that is lost closes the connection
		g.next.ServeHTTP(&cutWriter{head: make(http.Header)}, later)
	})
}

// cutWriter passes on the first bytes of an answer; without a writer none.
type cutWriter struct {
	w      http.ResponseWriter
	head   http.Header
	left   int
	status bool
}

func (c *cutWriter) Header() http.Header {
	if c.w != nil {
		return c.w.Header()
	}
	return c.head
}

func (c *cutWriter) WriteHeader(status int) {
	if c.w != nil && !c.status {
		c.w.Header().Del("Content-Length")
		c.w.WriteHeader(status)
	}
	c.status = true
}

func (c *cutWriter) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	if n := min(c.left, len(p)); c.w != nil && n > 0 {
		_, _ = c.w.Write(p[:n])
		_ = http.NewResponseController(c.w).Flush()
		c.left -= n
	}
	return len(p), nil
}
