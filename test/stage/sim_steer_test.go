package stage_test

import (
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/replicas"
)

// steer has an operator pause or drain processes, or partitions, and end that after a while, in which another process may
// come, go or be killed. A drain may be refused, and whoever is asked may be gone.
func (c *crew) steer(what string) {
	c.t.Helper()
	o := control.Order{Verb: control.Pause, By: control.By{User: "sim"}}
	if strings.HasPrefix(what, "drain") {
		o.Verb = control.Drain
	}
	if strings.HasSuffix(what, "partition") {
		p := c.rng.IntN(crewPartitions)
		o.Partition = &p
	}
	asked := c.replicas()
	if len(asked) == 0 {
		return
	}
	o.Replicas = asked
	if o.Verb == control.Drain && o.Partition == nil || c.rng.IntN(2) == 0 {
		o.Replicas = asked[:1]
	}
	c.send(o)
	c.excuse(time.Hour) // rows may wait, as asked
	c.pass(c.moment(10 * time.Second))
	if place := c.rng.IntN(len(c.places)); c.places[place] != nil && len(c.alive()) > 1 && c.rng.IntN(3) == 0 {
		r := c.places[place]
		c.places[place] = nil
		r.kill()
	} else if c.rng.IntN(2) == 0 {
		c.move(place)
	}
	c.pass(c.moment(5 * time.Second))
	if again := c.replicas(); len(again) > 0 {
		c.send(control.Order{Verb: control.Resume, Replicas: again, By: o.By})
	}
	c.excused = time.Now().Add(crewLongest + crewStill)
}

// send sends an order. Who does not answer is about to end, or has.
func (c *crew) send(o control.Order) {
	c.t.Helper()
	answers, err := control.Send(c.t.Context(), c.nc, "stage", o)
	if err != nil {
		c.t.Errorf("%v %s: %v", c.clock(), o.Verb, err)
	}
	for id, a := range answers {
		c.t.Logf("%v %s by %s: %s: %s", c.clock(), o.String(), id, a.Outcome, a.Text)
		if a.Outcome == control.Refused && o.Verb != control.Drain && !strings.Contains(a.Text, "stopping") {
			c.t.Errorf("%v %s refused %s: %s", c.clock(), id, o.String(), a.Text)
		}
	}
}

// replicas are the run ids of those that answer, as anybody can find out, and checks what they say of each other.
func (c *crew) replicas() (ids []string) {
	c.t.Helper()
	w := replicas.Merge(replicas.Ask(c.t.Context(), c.nc, "stage", nil), nil, time.Now())
	for _, r := range w.Replicas {
		switch {
		case r.Status == replicas.Unreadable:
			c.t.Errorf("%v WHOLE: replica %s: %s", c.clock(), r.Replica, r.Note)
		case r.Status == replicas.Answers && r.State != "stopping":
			ids = append(ids, r.Replica)
		}
	}
	return ids
}
