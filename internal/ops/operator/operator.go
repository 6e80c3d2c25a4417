// Package operator does what an operator asks of a stage: it finds the replicas that a
// wish is about, sends them the order, and reports what became of it at each. The commands
// and the buttons of the page (page.go) are two ways to use it.
package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go"
)

// Wish is what somebody asks for.
type Wish struct {
	Verb      control.Verb `json:"verb"`
	Partition *int         `json:"partition"` // or nil for all that a replica has
	// Replica is the run id of one replica, the beginning of that id, or its host. If it is
	// empty the wish is for all replicas, except that a drain then needs a partition.
	Replica string     `json:"replica"`
	By      control.By `json:"-"`
}

// Outcome is what became of the wish at one replica.
type Outcome struct {
	Replica string `json:"replica"`
	Host    string `json:"host"`
	Outcome string `json:"outcome"` // done, nothing, refused, no answer, not asked
	Text    string `json:"text"`
	Failed  bool   `json:"failed"` // the order may not have been carried out
}

// check returns why no stage could carry out the wish, or nil.
func (w *Wish) check() error {
	switch {
	case !slices.Contains(control.Verbs, w.Verb):
		return fmt.Errorf("unknown verb %q: there are pause, resume, probe and drain", w.Verb)
	case w.Partition != nil && *w.Partition < 0:
		return fmt.Errorf("no partition %d: they are numbered from 0", *w.Partition)
	case w.Verb == control.Drain && w.Partition == nil && w.Replica == "":
		return fmt.Errorf("name what to drain: a replica or a partition")
	}
	return nil
}

// Steer carries a wish to the replicas of a stage, and returns what became of it at each,
// in the order of their run ids. It looks for replicas as long as [replicas.Ask] does, and
// then waits until all that the wish is for have answered, at most [control.Patience]. The
// error says that nothing was done, or that the connection broke.
func Steer(ctx context.Context, nc *nats.Conn, stage string, w Wish) ([]Outcome, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	whole := replicas.Merge(replicas.Ask(ctx, nc, stage, nil), nil, time.Now())
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := whole.Nobody(replicas.Subject(stage)); err != nil {
		return nil, err
	}
	chosen, err := w.choose(&whole)
	if err != nil {
		return nil, err
	}
	order := control.Order{Verb: w.Verb, Partition: w.Partition, By: w.By}
	var outcomes []Outcome
	add := func(r *replicas.Replica, outcome, text string, failed bool) {
		outcomes = append(outcomes, Outcome{r.Replica, r.Host, outcome, text, failed})
	}
	for i := range chosen {
		switch r := &chosen[i]; {
		case r.Status == replicas.Unreadable:
			add(r, "not asked", r.Note, true)
		case !r.Control:
			add(r, string(control.Refused), "STAGE_CONTROL is off there: set it to true, and restart it", true)
		default:
			order.Replicas = append(order.Replicas, r.Replica)
		}
	}
	if len(order.Replicas) > 0 {
		answers, err := control.Send(ctx, nc, stage, order)
		if err != nil {
			return nil, fmt.Errorf("%s of stage %s: %w", w.Verb, stage, err)
		}
		for i := range chosen {
			r := &chosen[i]
			if !slices.Contains(order.Replicas, r.Replica) {
				continue
			}
			if a, ok := answers[r.Replica]; ok {
				add(r, string(a.Outcome), a.Text, a.Outcome == control.Refused)
			} else {
				add(r, "no answer", "it may have been done or not, see stage status: does it still run, and may its NATS user subscribe to "+control.Subject(stage), true)
			}
		}
	}
	slices.SortFunc(outcomes, func(a, b Outcome) int { return strings.Compare(a.Replica, b.Replica) })
	return outcomes, nil
}

// choose returns the replicas that a wish is for.
func (w *Wish) choose(whole *replicas.Whole) ([]replicas.Replica, error) {
	if p := w.Partition; p != nil && *p >= whole.PartitionCount {
		return nil, fmt.Errorf("there is no partition %d: stage %s has %s, numbered from 0", *p, whole.Stage, terminal.Plural(whole.PartitionCount, "partition"))
	}
	chosen, err := choose(whole, w.Replica)
	if err == nil && w.Partition != nil && (w.Verb == control.Drain || w.Verb == control.Probe) {
		return owner(whole, *w.Partition, chosen)
	}
	return chosen, err
}

// owner returns the owner of a partition, if it is one of the replicas that were chosen.
func owner(whole *replicas.Whole, partition int, chosen []replicas.Replica) ([]replicas.Replica, error) {
	p := &whole.Partitions[partition]
	if p.Replica == "" {
		return nil, fmt.Errorf("no replica owns partition %d: it moves, or no row waits there; see stage status", partition)
	}
	i := slices.IndexFunc(chosen, func(r replicas.Replica) bool { return r.Replica == p.Replica })
	if i < 0 {
		return nil, fmt.Errorf("that replica does not own partition %d: %s on %s does", partition, p.Replica, terminal.OrDash(p.Host))
	}
	return chosen[i : i+1], nil
}

// choose returns the replicas that name means, or all that answer.
func choose(whole *replicas.Whole, name string) (chosen []replicas.Replica, err error) {
	var known []string
	for _, r := range whole.Replicas {
		if r.Status == replicas.Missed {
			continue
		}
		known = append(known, r.Replica+" on "+terminal.OrDash(r.Host))
		if name == "" || r.Replica == name || r.Host == name {
			chosen = append(chosen, r)
		}
	}
	if chosen == nil && name != "" {
		for _, r := range whole.Replicas {
			if r.Status != replicas.Missed && strings.HasPrefix(r.Replica, strings.ToUpper(name)) {
				chosen = append(chosen, r)
			}
		}
	}
	switch {
	case chosen == nil:
		return nil, fmt.Errorf("no replica %q answers: there are %s", name, strings.Join(known, ", "))
	case name != "" && len(chosen) > 1:
		return nil, fmt.Errorf("%q means %d replicas: give the run id of one, of %s", name, len(chosen), strings.Join(known, ", "))
	}
	return chosen, nil
}

// Connection completes by, which says who asks, with what is known of the connection.
func Connection(nc *nats.Conn, by control.By) control.By {
	by.Server = cmp.Or(by.Server, nc.ConnectedServerName())
	if id, err := nc.GetClientID(); err == nil {
		by.ClientID = id
	}
	return by
}
