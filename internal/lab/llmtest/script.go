package llmtest

import (
	"cmp"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Step is one scripted reply.
type Step struct {
	// Status is the HTTP status of the reply. The default is 200.
	Status int
	// Header are headers of the reply, besides Content-Type, which is JSON unless given
	// here.
	Header map[string]string
	// Body is the body of the reply. The default is the ordinary answer for a 200, and the
	// ordinary error object for any other status.
	Body string
	// Delay is waited before anything is written.
	Delay time.Duration
	// Trouble is what goes wrong in transit.
	Trouble Trouble
}

// Trouble is what goes wrong with a scripted reply in transit.
type Trouble uint8

// The zero Trouble is none: the reply arrives.
const (
	None    Trouble = iota
	Stall           // nothing is written until the client goes away
	Cut             // the connection closes in the middle of the body
	Hang            // half of the body comes, then nothing until the client goes away
	Reset           // the connection closes before any reply
	Garbage         // bytes that are not HTTP: the Body, or some
)

// Steps returns a script that plays steps by order of arrival, then leaves all calls to
// the rest of the configuration.
func Steps(steps ...Step) func(Call) *Step {
	var mu sync.Mutex
	return func(Call) *Step {
		mu.Lock()
		defer mu.Unlock()
		if len(steps) == 0 {
			return nil
		}
		step := steps[0]
		steps = steps[1:]
		return &step
	}
}

func (s *Server) scripted(c *call) *Step {
	if s.cfg.Script == nil {
		return nil
	}
	step := s.cfg.Script(c.Call)
	if step != nil {
		s.count(&s.stats.Scripted)
	}
	return step
}

// play gives the scripted reply.
func (s *Server) play(w http.ResponseWriter, r *http.Request, d dialect, c *call, step *Step) {
	if !sleep(r.Context(), step.Delay) {
		s.count(&s.stats.Abandoned)
		return
	}
	status := cmp.Or(step.Status, http.StatusOK)
	body := []byte(step.Body)
	switch {
	case step.Body != "":
	case status == http.StatusOK:
		body = reply(d, c)
	case status >= 400:
		body = d.fault(failure{status: status, message: "scripted failure"})
	}
	switch step.Trouble {
	case None:
	case Cut, Hang:
		defer panic(http.ErrAbortHandler) // the server's way to close a connection
	case Stall:
		s.abandon(r)
		return
	case Reset, Garbage:
		s.breakOff(w, step)
		return
	}
	h := w.Header()
	if d, ok := d.(withHeader); ok {
		d.writeHeader(h, c, failure{status: status})
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	for name, value := range step.Header {
		h.Set(name, value)
	}
	w.WriteHeader(status)
	if status == http.StatusOK && step.Trouble == None {
		s.answered(c)
	}
	if step.Trouble != None {
		body = body[:len(body)/2]
	}
	_, _ = w.Write(body) // the client is gone: nothing to do
	if step.Trouble != None {
		_ = http.NewResponseController(w).Flush()
	}
	if step.Trouble == Hang {
		s.abandon(r)
	}
}

// abandon waits until the client goes away.
func (s *Server) abandon(r *http.Request) {
	<-r.Context().Done()
	s.count(&s.stats.Abandoned)
}

// breakOff closes the connection in place of a reply.
func (s *Server) breakOff(w http.ResponseWriter, step *Step) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if step.Trouble == Garbage {
		_, _ = conn.Write([]byte(cmp.Or(step.Body, "\x16\x03\x01 this is no HTTP") + "\r\n\r\n"))
	}
	_ = conn.Close()
}
