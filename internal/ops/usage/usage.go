// Package usage adds up what stages have spent, from their audit events alone: calls,
// tokens and cost, by stage, provider, model and day.
//
//	book := usage.NewBook([]usage.Dimension{usage.ByStage})
//	reader := usage.NewReader(cfg, book, usage.Options{Stages: []string{"a", "b"}})
//	err := reader.Read(ctx, js)
//	err = reader.Report().Write(os.Stdout, usage.Table)
//
// A call counts once, however often its event is stored: see [Book.Add] and seen.go. A
// [Reader] (read.go) fills the [Book], together with the days that were rolled up
// (rollup.go) and the members of rows that calls are grouped by (fields.go). What it comes
// to is a [Report] (report.go, text.go). batches.go has what batches were billed beyond
// their calls, and runs.go what parallel calls gained.
package usage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
)

// Dimension is what calls are grouped by.
type Dimension string

// The values of Dimension.
const (
	ByStage    Dimension = "stage"
	ByProvider Dimension = "provider"
	ByModel    Dimension = "model"
	ByDay      Dimension = "day" // of the call, in UTC
)

// fieldPrefix begins the dimensions of members of the rows, such as field.customer.
const fieldPrefix = "field."

// Field returns the name of the member that a dimension is about. ok is false if it is
// about none.
func (d Dimension) Field() (name string, ok bool) {
	name, ok = strings.CutPrefix(string(d), fieldPrefix)
	return name, ok && name != ""
}

// Dimensions are the values of [Dimension] that have a fixed name, in the order in which
// groups are sorted. The dimension of a member comes after them.
var Dimensions = []Dimension{ByStage, ByProvider, ByModel, ByDay}

// ParseDimensions reads the names of dimensions. It returns them in the order of
// [Dimensions], each once. The error names the first unknown one.
func ParseDimensions(names []string) (by []Dimension, err error) {
	var field Dimension
	for _, name := range names {
		if _, ok := Dimension(name).Field(); ok {
			if field != "" && field != Dimension(name) {
				return nil, fmt.Errorf("%q: %s is there already: give one member of the row", name, field)
			}
			field = Dimension(name)
			continue
		}
		if !slices.Contains(Dimensions, Dimension(name)) {
			return nil, fmt.Errorf("%q: it is stage, provider, model, day or field.NAME, or several of them separated by commas", name)
		}
	}
	for _, d := range Dimensions {
		if slices.Contains(names, string(d)) {
			by = append(by, d)
		}
	}
	if field != "" {
		by = append(by, field)
	}
	return by, nil
}

// Sum is what some calls add up to.
type Sum struct {
	cost.Spending

	// Succeeded, Failed, CapacityRetries and Unknown count the calls by their status;
	// together they are Calls.
	Succeeded, Failed, CapacityRetries, Unknown uint64
}

func (s *Sum) add(c *auditlog.Call) {
	s.Add(c)
	switch c.Status {
	case auditlog.CallSuccess:
		s.Succeeded++
	case auditlog.CallCapacityRetry:
		s.CapacityRetries++
	case auditlog.CallUnknown:
		s.Unknown++
	case auditlog.CallFailure:
		s.Failed++
	}
}

// groupsMax bounds the groups, as rows may name any model: beyond it, the calls of
// further models and values count as otherGroup.
const (
	groupsMax  = 10000
	otherGroup = "other"
)

const secondsOfDay = int64(24 * time.Hour / time.Second)

// group is the key of a group of calls. A dimension that calls are not grouped by is zero.
type group struct {
	stage, provider, model string
	day                    int64 // days since 1970
	field                  string
}

func (g group) compare(o group) int {
	return cmp.Or(cmp.Compare(g.stage, o.stage), cmp.Compare(g.provider, o.provider), cmp.Compare(g.model, o.model), cmp.Compare(g.day, o.day),
		cmp.Compare(g.field, o.field))
}

// Book adds up events. Its memory is bounded: 10,000 groups and the groups of one more
// model, some 32 MB of calls that it would recognise, 4,096 finished batches, and 10,000
// runs. It is not safe for concurrent use.
type Book struct {
	by      []Dimension
	groups  map[group]*Sum
	total   Sum
	seen    seen
	batches batches
	runs    runs
	doubled uint64
	unread  uint64
	last    time.Time // of the last event that was counted, by its own time
}

// NewBook returns an empty book that groups calls by some dimensions. Without any, all
// calls are one group.
func NewBook(by []Dimension) *Book {
	return &Book{by: by, groups: make(map[group]*Sum), seen: seen{most: generationSize}, batches: newBatches(), runs: newRuns()}
}

// AddOf is Add for a call whose row has this value in the member that calls are grouped
// by.
func (b *Book) AddOf(c *auditlog.Call, value string) { b.call(c, value) }

// Add adds an event of any kind. A nil event is one that cannot be read, and is counted as
// such.
//
// The event of a call may be stored twice: a publish that is repeated after the stream's
// window of message ids has passed stores a second copy, and a line of a provider's batch
// is recorded by each owner that reads it. Such a copy is left out if the first one is
// among the last 4 million calls of rows, or the last half a million of batched requests.
// If each call is of another term of ownership, it must be among the last 40,000. That is
// enough, since a stage repeats an event within minutes.
func (b *Book) Add(e *auditlog.Event) {
	switch {
	case e == nil:
		b.unread++
	case e.Batch != nil:
		b.batches.event(e.Batch)
	case e.Run != nil:
		b.runs.event(e.Run)
	case e.Call != nil:
		b.call(e.Call, "")
	}
}

func (b *Book) call(c *auditlog.Call, value string) {
	if !b.seen.add(c) {
		b.doubled++
		return
	}
	b.batches.call(c)
	b.runs.call(c)
	b.sum(c, value).add(c)
	b.total.add(c)
	if c.Time.After(b.last) {
		b.last = c.Time
	}
}

// sum returns the sum of the group to which the call belongs.
func (b *Book) sum(c *auditlog.Call, value string) *Sum {
	var key group
	for _, d := range b.by {
		switch d {
		case ByStage:
			key.stage = c.Stage
		case ByProvider:
			key.provider = c.Provider
		case ByModel:
			key.model = c.Model
		case ByDay:
			key.day = c.Time.Unix() / secondsOfDay
		default:
			key.field = value
		}
	}
	s := b.groups[key]
	if s == nil && len(b.groups) >= groupsMax {
		if key.field != "" {
			key.field = otherGroup
		}
		if key.model != "" {
			key.model = otherGroup
		}
		s = b.groups[key]
	}
	if s == nil {
		s = new(Sum)
		b.groups[key] = s
	}
	return s
}

// token splits the name of a call that a batch answered, <token>-<sequence>. ok is false
// for any other name.
func token(c *auditlog.Call) (name string, ok bool) {
	at := strings.LastIndexByte(c.CallID, '-')
	if c.Lane == "" || at < 0 {
		return "", false
	}
	return c.CallID[:at], true
}
