package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/operator"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
)

// steering has the orders of operators to this process, and carries them out. They end
// with the process. It is safe for concurrent use.
type steering struct {
	*view
	record func(e auditlog.Run)
	moved  chan *nats.Conn // holds the connection over which orders come from now on

	mu     sync.Mutex
	paused *wish         // no call begins; nil if calls may
	pauses map[int]*wish // partitions whose rows do not begin
	drains map[int]*wish // partitions that another replica should have
	drain  *wish         // the process leaves all partitions to others; nil if it takes its share
}

// wish is an order that is in force: who gave it, and when.
type wish struct {
	text  string // as in "paused by alice@laptop"
	since time.Time
}

// newWish returns the wish of an order that begins now; what is "paused" or "drained".
func newWish(what string, o *control.Order) *wish {
	return &wish{what + " by " + o.By.String(), time.Now()}
}

// wishes returns the partitions that are paused, and those that another replica should
// have.
func (s *steering) wishes() (pauses, drains []status.Wish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := func(of map[int]*wish) (all []status.Wish) {
		for p, w := range of {
			all = append(all, status.Wish{Partition: p, Text: w.text, Since: w.since})
		}
		return all
	}
	return list(s.pauses), list(s.drains)
}

// halted returns why no request of a partition may be sent to a provider, or nil if it
// may. The batch lane asks, since its uploads do not go through the pool.
func (s *steering) halted(partition int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range []*wish{s.paused, s.pauses[partition]} {
		if w != nil {
			return errors.New(w.text)
		}
	}
	return nil
}

// drained returns who asked this process to hand over its partitions. It is "" if nobody
// did, or if the process serves them again because no other replica was left.
func (s *steering) drained() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.drain; w != nil && s.standsAside() {
		return w.text
	}
	return ""
}

// standsAside reports whether the process leaves its partitions to others.
func (s *steering) standsAside() bool {
	if s.spread != nil {
		return s.spread.Leaves()
	}
	return len(s.consumers) > 0 && s.consumers[0].StandsAside()
}

// obey carries out orders until ctx ends, if it may (STAGE_CONTROL).
func (s *steering) obey(ctx context.Context) {
	if s.Cfg.Control.Obey {
		control.Serve(ctx, s.Conn.NC(),
			control.Replica{
				Stage: s.Cfg.Name, ID: s.runID, Host: s.host, Do: s.carryOut,
				Log: s.Log, Moved: s.moved,
			})
	}
}

// page returns the handler for orders from the dashboard, or nil if the process does not
// obey. The orders are published over the connection of this process, so its user needs
// the permission to publish them.
func (s *steering) page() http.Handler {
	if !s.Cfg.Control.Obey {
		return nil
	}
	order := func(ctx context.Context, w operator.Wish) ([]operator.Outcome, error) {
		w.By.NATSUser = s.Cfg.NATS.User
		w.By = operator.Connection(s.Conn.NC(), w.By)
		return operator.Steer(ctx, s.Conn.NC(), s.Cfg.Name, w)
	}
	return operator.Page{Steer: order}.Handler()
}

// carryOut carries out an order, and records who gave it, and the outcome.
func (s *steering) carryOut(ctx context.Context, o *control.Order) (control.Outcome, string) {
	outcome, text := s.steer(ctx, o)
	s.Log.Info("order of an operator", slog.String("order", o.String()),
		slog.String("by", o.By.Detail()), slog.String("outcome", string(outcome)),
		slog.String("what", text))
	s.record(auditlog.Run{
		Phase:  auditlog.PhaseControl,
		Reason: fmt.Sprintf("%s, asked by %s: %s: %s", o, o.By.Detail(), outcome, text),
	})
	return outcome, text
}

// steer refuses orders that make no sense now, and has the others carried out.
func (s *steering) steer(ctx context.Context, o *control.Order) (control.Outcome, string) {
	switch p := o.Partition; {
	case s.ending.stopReport() != nil:
		return control.Refused, "this process is stopping"
	case p != nil && *p >= len(s.consumers):
		return control.Refused, fmt.Sprintf("there is no partition %d: they are numbered from 0 "+
			"to %d", *p, len(s.consumers)-1)
	}
	switch o.Verb {
	case control.Pause:
		return s.pause(o)
	case control.Resume:
		return s.resume(o)
	case control.Probe:
		return s.probe(o)
	case control.Drain:
		return s.handOver(ctx, o)
	}
	return control.Refused, "unknown order"
}

const pauseEnds = "it lasts until stage resume, or until this process ends: " +
	"one that starts in its place does not know of it"

// pause makes no call begin, or no row of one partition. Calls in flight end.
func (s *steering) pause(o *control.Order) (control.Outcome, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Partition == nil {
		if w := s.paused; w != nil {
			return control.Nothing, already(w)
		}
		s.paused = newWish("paused", o)
		s.executor.Pool.Halt(errors.New(s.paused.text))
		return control.Done, fmt.Sprintf("paused, %s; %s",
			inFlight(s.executor.Pool.Stats().InFlight), pauseEnds)
	}
	p := *o.Partition
	if w := s.pauses[p]; w != nil {
		return control.Nothing, already(w)
	}
	if s.pauses == nil {
		s.pauses = make(map[int]*wish)
	}
	s.pauses[p] = newWish("paused", o)
	s.consumers[p].Pause(true)
	text := fmt.Sprintf("no row of partition %d begins", p)
	if s.consumers[p].Status().Role != consumer.Owner {
		text += " when this replica owns it"
	}
	return control.Done, text + "; " + pauseEnds
}

// already says that an order was in force before this one.
func already(w *wish) string {
	return fmt.Sprintf("it was already %s, %s ago", w.text, terminal.Duration(time.Since(w.since)))
}

// inFlight says how many calls end after a pause has begun.
func inFlight(n int) string {
	switch n {
	case 0:
		return "no call is in flight"
	case 1:
		return "1 call in flight ends"
	}
	return fmt.Sprintf("%d calls in flight end", n)
}

// resume ends all orders, or those for one partition. It also makes a stage that is
// paused for another reason probe at once: somebody who resumes has usually fixed the
// cause.
func (s *steering) resume(o *control.Order) (control.Outcome, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ended []string
	end := func(w *wish, what string) {
		ended = append(ended,
			fmt.Sprintf("%s (%s, %s ago)", what, w.text, terminal.Duration(time.Since(w.since))))
	}
	for p := range s.consumers {
		if o.Partition != nil && *o.Partition != p {
			continue
		}
		if w := s.pauses[p]; w != nil {
			end(w, fmt.Sprintf("the pause of partition %d", p))
			delete(s.pauses, p)
			s.consumers[p].Pause(false)
		}
		if w := s.drains[p]; w != nil {
			end(w, fmt.Sprintf("the drain of partition %d", p))
			delete(s.drains, p)
			s.spread.Avoid(p, false)
		}
	}
	if o.Partition == nil {
		if s.paused != nil {
			end(s.paused, "the pause")
			s.paused = nil
		}
		if s.drain != nil {
			end(s.drain, "the drain")
			s.drain = nil
			s.setAside(false)
		}

		other := s.executor.Pool.Stats().Pause
		s.executor.Pool.Continue()
		if other.Kind != pool.NotPaused && other.Kind != pool.Operator {
			h, _ := status.OfPause(other)
			ended = append(ended, "a probe goes now: "+string(h.Kind))
		}
	}

	switch {
	case ended != nil:
	case s.paused != nil: // only one partition was named, and the pause is of all
		return control.Nothing, fmt.Sprintf("not that partition, but all of them were %s: "+
			"stage resume without --partition ends that", s.paused.text)
	case s.drain != nil && s.standsAside():
		return control.Nothing, fmt.Sprintf("not that partition, but the whole replica was %s: "+
			"stage resume without --partition ends that", s.drain.text)
	default:
		return control.Nothing, "no operator has paused or drained it"
	}
	return control.Done, "ended: " + strings.Join(ended, "; ")
}

// probe makes the next probe of a pause go at once.
func (s *steering) probe(o *control.Order) (control.Outcome, string) {
	if p := o.Partition; p != nil && s.consumers[*p].Status().Role != consumer.Owner {
		return control.Nothing, fmt.Sprintf("it does not own partition %d", *p)
	}
	stats := s.executor.Pool.Stats()
	switch stats.Pause.Kind {
	case pool.Operator:
		return control.Refused, stats.Pause.Err.Error() + ": stage resume ends that, and probes"
	case pool.NotPaused:
		return control.Nothing, "it is not paused"
	case pool.FatalError, pool.WrongSettings, pool.Outage, pool.Shortage:
	}
	s.executor.Pool.Probe()
	h, _ := status.OfPause(stats.Pause)
	why := string(h.Kind)
	if stats.Waiting == 0 {
		return control.Done, "paused: " + why + "; no row waits, the next one is the probe"
	}
	return control.Done, "paused: " + why + "; the next probe goes now"
}

// handOver makes another replica take the partitions of this one, or one of them. It
// refuses if no replica could: the rows would wait for nobody.
func (s *steering) handOver(ctx context.Context, o *control.Order) (control.Outcome, string) {
	p := o.Partition
	switch {
	case p == nil && len(o.Replicas) == 0:
		return control.Refused, "all replicas can't be drained: name one"
	case p != nil && s.consumers[*p].Status().Role != consumer.Owner:
		return control.Nothing, fmt.Sprintf("it does not own partition %d", *p)
	}
	if why := s.noHeir(ctx, p); why != "" {
		return control.Refused, why
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p != nil && s.spread != nil {
		if s.drains == nil {
			s.drains = make(map[int]*wish)
		}
		s.drains[*p] = newWish("drained", o)
		s.spread.Avoid(*p, true)
		return control.Done, fmt.Sprintf("partition %d goes to another replica as soon as its "+
			"calls in flight have ended; this one does not take it until stage resume, "+
			"or unless nobody else does", *p)
	}
	if s.drain != nil && s.standsAside() {
		return control.Nothing, already(s.drain)
	}
	s.drain = newWish("drained", o)
	owned := 0
	for _, c := range s.consumers {
		if c.Status().Role == consumer.Owner {
			owned++
		}
	}
	s.setAside(true)
	return control.Done, fmt.Sprintf("%s to hand over as soon as calls in flight have ended; "+
		"the process stays, and takes none until stage resume, or unless nobody else does",
		terminal.Plural(owned, "partition"))
}

// setAside makes the process leave its partitions to others, or take its share again.
// With one partition there is no spread, and the consumer itself stands aside.
func (s *steering) setAside(on bool) {
	if s.spread != nil {
		s.spread.Leave(on)
		return
	}
	for _, c := range s.consumers {
		c.StandAside(on)
	}
}

// noHeir returns why no other replica could take over all partitions, or one; it returns
// "" if one could.
func (s *steering) noHeir(ctx context.Context, partition *int) (why string) {
	w := s.Whole(ctx)
	why = "no other replica is ready to take over: start one, or pause this one, " +
		"or stop its process"
	for i := range w.Replicas {
		r := &w.Replicas[i]
		switch {
		case r.Self || r.Status != replicas.Answers || !r.Ready || r.Drained != "" ||
			r.State == status.StateStopping:
		case partition != nil && slices.Contains(r.Left, *partition):
			why = fmt.Sprintf("partition %d was drained from %s on %s, "+
				"and no other replica is ready: stage resume --partition %d ends that", *partition,
				r.Replica, terminal.OrDash(r.Host), *partition)
		default:
			return ""
		}
	}
	return why
}
