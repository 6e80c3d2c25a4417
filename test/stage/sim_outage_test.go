package stage_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/test/gateway"
)

const (
	// crewProbe is the longest time from the end of a short outage to its next probe.
	crewProbe = 1250 * time.Millisecond
	// crewHold is STAGE_OUTAGE_HOLD: longer than any outage here. It ends the outage that no success ends, as it is none:
	// an outage ends while only poisonous rows are left to call, since each other one of the windows has its answer and
	// waits for them.
	crewHold = 2 * time.Minute
	// crewPoison is how long a poisonous row may hold its partition: where many calls fail, it gets many attempts.
	crewPoison = crewHold + time.Minute
)

// poisonous reports whether a question is always answered with 500 or, where texts are embedded, refused with 400.
func poisonous(question int) bool { return question%40 == 7 }

// poisonAt reports whether the next row of a partition to get a result, after so many, is poisonous. Where the order is
// not that of the stream that may be any row.
func (c *crew) poisonAt(partition, results int) bool {
	c.t.Helper()
	if c.order != "stream" {
		return true
	}
	rows := c.read("ROWS", fmt.Sprintf("rows.%d.>", partition))
	var n, q int
	_, err := fmt.Sscanf(string(rows[results].Body), `{"n":%d,"q":%d}`, &n, &q)
	return err == nil && poisonous(q)
}

// outage is the current outage of a crew's LLM.
type outage struct {
	state   atomic.Int32 // a gateway.State
	ends    time.Time    // zero: there is none
	changes time.Time    // when an intermittent one changes next; zero: it is constant
	silent  bool         // it was, at some time
}

// lasts reports whether there is one, even if an intermittent one is off at the moment.
func (o *outage) lasts() bool { return !o.ends.IsZero() }

// step returns what happens to a call that arrives; nil: the LLM answers it.
func (o *outage) step() *llmtest.Step {
	switch gateway.State(o.state.Load()) {
	case gateway.BadGateway:
		return &llmtest.Step{Status: 502, Header: map[string]string{"Content-Type": "text/html"}, Body: "<html>502 Bad Gateway</html>", Delay: 5 * time.Millisecond}
	case gateway.Silent:
		return &llmtest.Step{Trouble: llmtest.Stall}
	case gateway.Open, gateway.Refused:
	}
	return nil
}

// dial is how processes reach the LLM.
func (c *crew) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if gateway.State(c.outage.state.Load()) == gateway.Refused {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: c.pipe.Addr(), Err: syscall.ECONNREFUSED}
	}
	return c.pipe.DialContext(ctx, network, address)
}

// setOutage makes sure that rows are waiting when the LLM goes down: a row that is the only one of a process fails
// after its attempts.
func (c *crew) setOutage(to gateway.State) {
	c.t.Helper()
	if to != gateway.Open {
		c.load(3 * customers)
	}
	c.t.Logf("%v the LLM: %v", c.clock(), to)
	c.outage.state.Store(int32(to))
	c.outage.silent = c.outage.silent || to == gateway.Silent
	if to == gateway.Refused {
		c.cutLLM()
	}
}

// beginOutage takes the LLM down, unless it already is, for up to a minute: constantly or off and on.
func (c *crew) beginOutage() {
	if c.outage.lasts() {
		return
	}
	c.done["outage"]++
	c.outage.ends = time.Now().Add(c.moment(c.moment(time.Minute)))
	if c.rng.IntN(3) == 0 {
		c.done["flapping outage"]++
		c.outage.changes = time.Now().Add(c.moment(2 * time.Second))
	}
	c.setOutage(gateway.Troubles[c.rng.IntN(len(gateway.Troubles))])
}

// moveOutage ends an outage that is due, and toggles an intermittent one.
func (c *crew) moveOutage() {
	o, now := &c.outage, time.Now()
	switch {
	case !o.lasts():
	case !now.Before(o.ends):
		c.endOutage()
	case o.changes.IsZero() || now.Before(o.changes):
	case gateway.State(o.state.Load()) == gateway.Open:
		c.setOutage(gateway.Troubles[c.rng.IntN(len(gateway.Troubles))])
		o.changes = now.Add(c.moment(2 * time.Second))
	default:
		c.setOutage(gateway.Open)
		o.changes = now.Add(c.moment(2 * time.Second))
	}
}

// endOutage ends the outage, if there is one. Calls that were never answered hold their slots until they time out.
func (c *crew) endOutage() {
	o := &c.outage
	if !o.lasts() {
		return
	}
	c.setOutage(gateway.Open)
	c.excuse(crewProbe + crewStill)
	if o.silent {
		c.excuse(crewTimeout + crewProbe + crewStill)
	}
	o.ends, o.changes, o.silent = time.Time{}, time.Time{}, false
}

// checkAnswers checks that each result has the answer to its row's question, or the failure that the question always
// gets.
func (c *crew) checkAnswers() {
	c.t.Helper()
	wrong := 0
	for _, m := range c.read("RESULTS", "results.stage.*.rows") {
		var n, q int
		_, err := fmt.Sscanf(string(m.Body), `{"n":%d,"q":%d,`, &n, &q)
		want := llmtest.Answer(fmt.Sprintf("Question %d", q))
		if c.embeds {
			vector := llmtest.Vector(fmt.Sprintf("Question %d", q), 2)
			want = fmt.Sprintf(`"llm_response":[%s,%s],`, number(vector[0]), number(vector[1]))
		}
		if poisonous(q) {
			want = `"llm_response_error":{"reason":"api_call_failed",`
		}
		if err == nil && strings.Contains(string(m.Body), want) {
			continue
		}
		if wrong++; wrong <= 3 {
			c.t.Errorf("%s: %v: want %q in %s", m.Subject, err, want, m.Body)
			c.logCalls(fmt.Sprintf("Question %d\"", q))
		}
	}
	if wrong > 0 {
		c.t.Errorf("%d of %d results are wrong", wrong, c.rows)
	}
}

// number is a number as the LLM writes it in a vector.
func number(n float32) string { return strconv.FormatFloat(float64(n), 'g', -1, 32) }

// logCalls logs the calls with a prompt, and all concurrent calls of the same process.
func (c *crew) logCalls(prompt string) {
	c.t.Helper()
	calls := c.audit().calls
	var runs []string
	var from, to time.Time
	for _, e := range calls {
		if strings.Contains(string(e.E.Request), prompt) {
			if from.IsZero() {
				from = e.E.Time.Add(-e.E.Latency)
			}
			to = e.E.Time
			runs = append(runs, e.E.RunID)
		}
	}
	for _, e := range calls {
		began := e.E.Time.Add(-e.E.Latency)
		if slices.Contains(runs, e.E.RunID) && e.E.Time.After(from) && began.Before(to) {
			c.t.Logf("%s row %d: %v to %v: %s %d %s", e.E.RunID, e.E.Sequence, began.Sub(c.began), e.E.Time.Sub(c.began), e.E.Status, e.E.StatusCode, e.E.Error)
		}
	}
}
