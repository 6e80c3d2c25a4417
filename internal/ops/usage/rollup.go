package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The roll-up keeps what stages have spent for longer than the audit lasts. Stream USAGE has
// one message for each stage and day, with the sums of that day's calls by provider and
// model, and the sequence of the audit up to which they are in it. A report is then the sum
// of these days and of the events behind those sequences. So a call counts once, wherever it
// is: for example, a day that was rolled up at noon has the calls of its afternoon from the
// audit.
//
// A message is replaced only if it is still the one that was read, and has all that was in
// it. So a roll-up that is killed half-way, or two of them at once, neither lose a call nor
// count one twice: each day is old or new as a whole, and the next roll-up continues.
const (
	// RollUpStream is where the sums of days are.
	RollUpStream = "USAGE"
	rollUpPrefix = "usage."
	// rolledGroupsMax bounds the groups of one day, so that they fit into a message. The
	// calls of further models count as otherGroup.
	rolledGroupsMax = 1000
	// rollUpTimeout bounds each request.
	rollUpTimeout = 10 * time.Second
	// rollUpProbe is how long a report waits to learn whether there is a roll-up: a user who
	// may not ask gets no answer, and the report is then of the audit alone, and says so.
	rollUpProbe = 2 * time.Second
)

// rolledDay names a message of the roll-up.
type rolledDay struct {
	stage string
	day   int64 // days since 1970
}

// rolled is what a message of the roll-up has.
type rolled struct {
	Stage string `json:"stage"`
	Day   string `json:"day"` // 2006-01-02, in UTC
	// Through is the sequence in the audit stream up to which the calls of the day are in
	// the groups, and Audit is when that stream was created. No call of another audit
	// stream is in the groups.
	Through uint64        `json:"through"`
	Audit   time.Time     `json:"audit_created"`
	Until   *time.Time    `json:"until"` // the last call of all that was known then
	Groups  []rolledGroup `json:"groups"`

	at uint64 // the sequence of the message
}

// rolledGroup are the calls of one model.
type rolledGroup struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Numbers
}

// loadRolled reads the days that were rolled up, once, and adds them to the book. Without
// the stream there are none. Since leaves out days that began before it.
func (r *Reader) loadRolled(ctx context.Context, js jetstream.JetStream) error {
	if r.rolled != nil {
		return nil
	}
	r.rolled = make(map[rolledDay]*rolled)
	looking, cancel := context.WithTimeout(ctx, rollUpProbe)
	defer cancel()
	switch _, err := js.Stream(looking, RollUpStream); {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if !r.rollsUp {
			return nil
		}
	case streams.Unanswered(err) && ctx.Err() == nil && !r.rollsUp:
		r.noRollUp = streams.Denied(js.Conn(), err).Error()
		return nil
	case err != nil:
		return err
	}
	audit, err := js.Stream(ctx, r.cfg.Audit.Stream)
	if err != nil {
		return err
	}
	r.audit = audit.CachedInfo().Created.UTC()
	var filters []string
	for _, name := range r.options.Stages {
		filters = append(filters, rollUpPrefix+name+".*")
	}
	o := stored.ReadOptions{Stream: RollUpStream, Filters: filters}
	err = stored.Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		one := &rolled{at: m.Sequence}
		day, dayErr := time.Time{}, json.Unmarshal(m.Data, one)
		if dayErr == nil {
			day, dayErr = time.Parse(time.DateOnly, one.Day)
		}
		if dayErr != nil {
			return fmt.Errorf("message %d of stream %s is no day of a roll-up: %w", m.Sequence, RollUpStream, dayErr)
		}
		if !day.Before(r.options.Since) {
			r.rolled[rolledDay{one.Stage, day.Unix() / secondsOfDay}] = one
			r.book.addRolled(one, day)
		}
		return nil
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

// inRolled reports whether a day that was rolled up has the call, which is in a message of
// the audit with that sequence.
func (r *Reader) inRolled(c *auditlog.Call, seq uint64) bool {
	day := r.rolled[rolledDay{c.Stage, c.Time.Unix() / secondsOfDay}]
	return day != nil && day.Audit.Equal(r.audit) && seq <= day.Through
}

// covers reports whether the roll-up has all calls that came before a message of the audit
// stream, which is the first that is left.
func (r *Reader) covers(first uint64) bool {
	through := make(map[string]uint64)
	for key, day := range r.rolled {
		if day.Audit.Equal(r.audit) {
			through[key.stage] = max(through[key.stage], day.Through)
		}
	}
	return !slices.ContainsFunc(r.options.Stages, func(stage string) bool { return through[stage]+1 < first })
}

// addRolled adds a day that was rolled up. It does not know the rows of its calls.
func (b *Book) addRolled(one *rolled, day time.Time) {
	for i := range one.Groups {
		g := &one.Groups[i]
		sum := g.sum()
		b.sum(&auditlog.Call{Header: auditlog.Header{Stage: one.Stage, Time: day}, Provider: g.Provider, Model: g.Model}, "").plus(&sum)
		b.total.plus(&sum)
	}
	if one.Until != nil && one.Until.After(b.last) {
		b.last = *one.Until
	}
}

// recall notes a call that is in a day that was rolled up, so that a second event of it is
// recognised.
func (b *Book) recall(c *auditlog.Call) {
	if b.seen.add(c) {
		b.batches.call(c)
		b.runs.call(c)
	}
}

// sum returns the numbers as a sum, to which others can be added.
func (n *Numbers) sum() Sum {
	s := Sum{Succeeded: n.Succeeded, Failed: n.Failed, CapacityRetries: n.CapacityRetries, Unknown: n.Unknown}
	s.Spending = cost.Spending{Totals: auditlog.Totals{Calls: n.Calls}, KnownUSD: n.KnownCostUSD, Unpriced: n.UnpricedCalls}
	if n.TotalTokens != nil {
		s.Usage = &auditlog.Usage{
			PromptTokens: *n.PromptTokens, CompletionTokens: *n.CompletionTokens, TotalTokens: *n.TotalTokens,
			CachedTokens: n.CachedTokens, CacheWriteTokens: n.CacheWriteTokens, CacheWrite1hTokens: n.CacheWrite1hTokens,
			ReasoningTokens: n.ReasoningTokens, CostUSD: n.CostUSD,
		}
		s.Usage = s.Usage.Clone()
	}
	return s
}

// plus adds other, which it does not change.
func (s *Sum) plus(other *Sum) {
	s.Calls += other.Calls
	s.Succeeded += other.Succeeded
	s.Failed += other.Failed
	s.CapacityRetries += other.CapacityRetries
	s.Unknown += other.Unknown
	s.KnownUSD += other.KnownUSD
	s.Unpriced += other.Unpriced
	s.Usage = s.Usage.Plus(other.Usage).Clone()
}

// ErrRolledMeanwhile says that another roll-up has written a day at the same time.
var ErrRolledMeanwhile = errors.New("another roll-up has written a day meanwhile: run the command again; no call is lost or counted twice")

// RollUp brings the days of some stages up to date with the audit: it reads all that is
// there, and stores each day that has changed. It creates the stream if it is missing, with
// so many replicas. days is how many days were stored, also if there is an error.
func RollUp(ctx context.Context, js jetstream.JetStream, r *Reader, replicas int) (days int, err error) {
	if err := createRollUp(ctx, js, replicas); err != nil {
		return 0, err
	}
	r.rollsUp = true
	if err := r.Read(ctx, js); err != nil {
		return 0, err
	}
	for _, one := range r.days() {
		body, err := json.Marshal(one)
		if err != nil {
			return days, err
		}
		m := &nats.Msg{Subject: rollUpPrefix + one.Stage + "." + one.Day, Data: body}
		storing, cancel := context.WithTimeout(ctx, rollUpTimeout)
		_, err = js.PublishMsg(storing, m, jetstream.WithExpectLastSequencePerSubject(one.at))
		cancel()
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
			return days, ErrRolledMeanwhile
		}
		if err != nil {
			return days, fmt.Errorf("store the usage of stage %s on %s: %w", one.Stage, one.Day, err)
		}
		days++
	}
	return days, nil
}

// createRollUp creates the stream of the roll-up if it is missing. It keeps the newest
// message of each subject.
func createRollUp(ctx context.Context, js jetstream.JetStream, replicas int) error {
	_, err := js.Stream(ctx, RollUpStream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	creating, cancel := context.WithTimeout(ctx, rollUpTimeout)
	defer cancel()
	_, err = js.CreateStream(creating, jetstream.StreamConfig{
		Name: RollUpStream, Subjects: []string{rollUpPrefix + ">"}, MaxMsgsPerSubject: 1, Replicas: max(replicas, 1),
		Description: "what stages have spent, by day: stage usage --roll-up",
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil // another roll-up has created it
	}
	return err
}

// days returns the days whose sums are not those of their messages, ordered. The book is
// grouped by stage, provider, model and day.
func (r *Reader) days() []*rolled {
	changed := make(map[rolledDay]*rolled)
	for _, key := range slices.SortedFunc(maps.Keys(r.book.groups), group.compare) {
		at := rolledDay{key.stage, key.day}
		one := changed[at]
		if one == nil {
			one = &rolled{
				Stage: key.stage, Day: time.Unix(key.day*secondsOfDay, 0).UTC().Format(time.DateOnly),
				Through: r.at, Audit: r.audit, Until: timeOrNil(r.book.last),
			}
			if before := r.rolled[at]; before != nil {
				one.at = before.at
			}
			changed[at] = one
		}
		one.add(key.provider, key.model, r.book.groups[key])
	}
	keys := slices.SortedFunc(maps.Keys(changed), func(a, b rolledDay) int {
		if c := strings.Compare(a.stage, b.stage); c != 0 {
			return c
		}
		return int(a.day - b.day)
	})
	var days []*rolled
	for _, key := range keys {
		if before := r.rolled[key]; before == nil || before.calls() != changed[key].calls() {
			days = append(days, changed[key])
		}
	}
	return days
}

// add adds the calls of a model.
func (d *rolled) add(provider, model string, s *Sum) {
	if len(d.Groups) < rolledGroupsMax {
		d.Groups = append(d.Groups, rolledGroup{provider, model, numbersOf(s)})
		return
	}
	last := &d.Groups[rolledGroupsMax-1]
	sum := last.sum()
	sum.plus(s)
	*last = rolledGroup{"", otherGroup, numbersOf(&sum)}
}

// calls counts the calls of the day. It grows with each call that is added.
func (d *rolled) calls() (n uint64) {
	for i := range d.Groups {
		n += d.Groups[i].Calls
	}
	return n
}
