package executor

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// fan is a row with a job for each element of one of its arrays. Its elements begin one
// by one, as the pool has room, and it is answered with the last of them. When one is
// handed back, those that have not begun are, too, and with the last the row is: the
// answers so far stay in [consumer.Row.Spent] for its next start.
//
// It is safe for concurrent use.
type fan struct {
	e      *Executor
	row    *consumer.Row
	parsed *row.Row
	items  *row.Items

	mu       sync.Mutex
	elements []element
	answered int // elements that have their answer
	replies  int // elements whose replies count in bytes
	bytes    int // that the result has at least

	// These are about the present start of the row.
	next       int  // no element before it is left to begin
	left       int  // elements that are neither answered nor handed back
	handedBack bool // one was handed back
}

// element is what is known of one element of a fan.
type element struct {
	answer  *row.Answer // or nil if it has failed or is not answered yet
	failure *row.ItemFailure
	event   auditlog.Row // of its reply
	usage   auditlog.UsageSum
	done    bool
	spent   *spent // on an element that was handed back, or nil
}

// newFan returns the fan of a row, whose result without its elements has so many bytes.
func newFan(e *Executor, in *consumer.Row, parsed *row.Row, items *row.Items, bytes int) *fan {
	const hash = 67 // bytes of each element's: 64 digits, two quotes and a comma
	return &fan{
		e: e, row: in, parsed: parsed, items: items, elements: make([]element, items.Len()),
		bytes: bytes + hash*items.Len(),
	}
}

// start begins a start of the row, and returns how many elements it has to answer.
func (f *fan) start() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.left, f.handedBack = 0, len(f.elements)-f.answered, false
	f.skip()
	return f.left
}

// skip moves next to an element that is not answered.
func (f *fan) skip() {
	for f.next < len(f.elements) && f.elements[f.next].done {
		f.next++
	}
}

// begin takes out the next element. more says that there is another one.
func (f *fan) begin() (index int, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	index = f.next
	f.next++
	f.skip()
	return index, f.next < len(f.elements)
}

// gaveUp reports whether the row is handed back as soon as the elements that have begun
// end.
func (f *fan) gaveUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.handedBack
}

// tooLarge returns why the row fails whatever the other elements are answered: its result
// would have more bytes than the server takes. It returns nil while the row may succeed.
func (f *fan) tooLarge() *llm.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bytes <= f.row.MaxBodyBytes {
		return nil
	}
	return row.ItemsTooLarge(f.bytes, f.row.MaxBodyBytes, f.replies, len(f.elements), f.e.prompt.moreRoom)
}

// put takes the reply to an element. last says that it was the last of this start.
func (f *fan) put(j *job, reply *consumer.Reply, validated bool) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &f.elements[j.index]
	e.event, e.usage, e.done, e.spent = reply.Event, j.usage, true, nil
	if e.usage.Reported == nil { // from the journal
		e.usage.Reported = reply.Event.Usage
	}
	if reply.Failed {
		e.failure = &row.ItemFailure{Index: j.index}
		e.failure.Reason, e.failure.Error = row.ReadFailure(reply.Body)
		e.failure.Error = excerpt.Of(e.failure.Error)
	} else {
		e.answer, _ = row.ReadAnswer(reply.Body, validated)
		e.answer.VariablesHash = j.vars
		f.bytes += len(e.answer.Text) + len(e.answer.Value) + e.answer.KeptBytes()
		f.replies++
	}
	f.answered++
	f.left--
	return f.left == 0
}

// takeBack takes back an element that has begun, with what was spent on it. last says that
// it was the last element of this start.
func (f *fan) takeBack(index int, s *spent) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.elements[index].spent = s
	f.handedBack = true
	f.left--
	return f.left == 0
}

// takeBackRest takes back the elements that have not begun. last says that the last element
// of this start was among them.
func (f *fan) takeBackRest() (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handedBack = true
	for ; f.next < len(f.elements); f.skip() {
		f.next++
		f.left--
	}
	return f.left == 0
}

// answer takes the reply to a job of an element: the row's own follows with the
// last of them.
func (f *fan) answer(j *job, reply *consumer.Reply) {
	f.e.log.element(j, reply)
	if reply.HandedBack {
		s := j.spent
		f.concludeIf(f.takeBack(j.index, &s))
		return
	}
	j.row.KeepItem(j.index, *reply)
	f.concludeIf(f.put(j, reply, f.e.prompt.values()))
}

// handBackRest hands back the elements of a row that wait to begin.
func (f *fan) handBackRest() { f.concludeIf(f.takeBackRest()) }

// concludeIf answers a row, or hands it back, with its last element.
func (f *fan) concludeIf(last bool) {
	switch {
	case !last:
	case f.handedBack: // nobody else has the fan any more
		f.row.Spent = f
		f.e.handBack(f.row)
	default:
		f.row.Spent = nil
		reply := f.reply()
		f.e.reply(f.row, &reply)
	}
}

// reply is the reply to a row whose elements are all answered. It has no request hash:
// each element was kept by itself.
func (f *fan) reply() consumer.Reply {
	failed := []row.ItemFailure{}
	answers := make([]*row.Answer, len(f.elements))
	for i := range f.elements {
		el := &f.elements[i]
		if answers[i] = el.answer; el.failure != nil {
			failed = append(failed, *el.failure)
			answers[i] = &row.Answer{Value: el.failure.Value(), VariablesHash: f.items.VariablesHash(i)}
		}
	}
	reply := consumer.Reply{Event: f.event()}
	failure := f.tooLarge()
	if failure == nil && len(failed) > 0 && f.e.cfg.Foreach.Errors == config.ForeachRow {
		failure = row.ItemsFailed(failed, len(f.elements))
	}
	if failure == nil {
		reply.Body = f.e.prompt.format.AppendItems(nil, f.parsed, answers)
		if limit := f.row.MaxBodyBytes; len(reply.Body) > limit {
			failure = row.ResultTooLarge(len(reply.Body), limit, f.e.prompt.moreRoom)
		}
	}
	if failure != nil {
		attempts := attemptsOf(reply.Event.Errors)
		reply.Failed, reply.Event.Reason = true, string(failure.Reason)
		reply.Event.Errors = withCause(reply.Event.Errors, failure)
		reply.Body = f.e.prompt.errorBody(f.parsed, f.row, failure, attempts)
	}
	return reply
}

// sourceRank orders where the elements' answers came from. The row's came from the last of
// their sources in this order. For example, with one call and nine answers from the
// journal it is the call.
var sourceRank = []string{"", auditlog.SourceDedupe, auditlog.SourceJournal, auditlog.SourceCall}

// event returns the row's event, which sums up the events of its elements.
func (f *fan) event() auditlog.Row {
	all := f.e.event(&job{row: f.row, vars: f.parsed.VariablesHash()}, f.e.uncalled(nil), "")
	var usage auditlog.UsageSum
	var last time.Time
	var hash callsHash
	hashed := true
	for i := range f.elements {
		el := &f.elements[i]
		ev := &el.event
		all.Attempts += ev.Attempts
		all.CapacityRetries += ev.CapacityRetries
		if ev.Attempts+ev.CapacityRetries > 0 {
			hashed = hashed && hash.addText(ev.CallsHash) // an earlier version kept no hash with a reply
		}
		for _, failed := range ev.Errors {
			if failed.Item = &i; len(all.Errors) < attemptErrorsMax {
				all.Errors = append(all.Errors, failed)
			}
		}
		if !ev.StartedAt.IsZero() && (all.StartedAt.IsZero() || ev.StartedAt.Before(all.StartedAt)) {
			all.StartedAt = ev.StartedAt
		}
		if ev.FinishedAt.After(last) {
			last, all.PoolConfig, all.PoolStats = ev.FinishedAt, ev.PoolConfig, ev.PoolStats
		}
		if slices.Index(sourceRank, ev.Source) > slices.Index(sourceRank, all.Source) {
			all.Source = ev.Source
		}
		usage.Add(el.usage.Reported, el.usage.Unpriced)
	}
	all.Usage, all.FinishedAt = usage.Total(), cmp.Or(last, all.FinishedAt)
	if hashed {
		all.CallsHash = hash.String()
	}
	return all
}
