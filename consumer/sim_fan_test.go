package consumer_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
)

const (
	// wholeRow is the element of a call that is for a row as a whole.
	wholeRow = -1
	// simElementsMost is how many elements a row has at most, and simElementsMean how many it has on the average.
	simElementsMost = 6
	simElementsMean = simElementsMost / 2
)

// simElement is what a call is for: an element of a row, or wholeRow.
type simElement struct {
	row  uint64
	item int
}

// simJob is a row, or an element of one, that waits for its call or has it in flight.
type simJob struct {
	row  *consumer.Row
	item int
	fan  *simFan // nil: the whole row
}

func (j simJob) element() simElement { return simElement{j.row.Seq, j.item} }

func (j simJob) compare(other simJob) int {
	return cmp.Or(cmp.Compare(j.row.Seq, other.row.Seq), cmp.Compare(j.item, other.item))
}

func (j simJob) requestHash() string {
	if j.fan == nil {
		return requestHash(j.row)
	}
	return itemRequestHash(j.row, j.item)
}

func itemRequestHash(row *consumer.Row, item int) string {
	return fmt.Sprintf("%s, element %d", requestHash(row), item)
}

// handBack hands back what has no call.
func (j simJob) handBack() {
	if j.fan == nil {
		j.row.Reply(consumer.Reply{HandedBack: true})
		return
	}
	j.fan.handBack()
}

// simFan is a row whose elements are answered one by one. The answers outlive a start that is handed back.
type simFan struct {
	row *consumer.Row

	mu      sync.Mutex
	replies []*consumer.Reply // by element; nil: not answered
	left    int               // elements that are neither answered nor handed back in this start
	back    bool              // one was handed back
}

// elements is how many elements a row has.
func (s *sim) elements(seq uint64) int {
	if seq%9 == 0 {
		return 0
	}
	return rand.New(rand.NewPCG(s.seed, seq)).IntN(simElementsMost + 1)
}

// openFan begins a start of a row with so many elements, and returns those that have no reply yet, also not in the
// journal.
func openFan(row *consumer.Row, elements int, restored func(item int, k *consumer.Kept)) (f *simFan, jobs []simJob) {
	f, again := row.Spent.(*simFan)
	if !again {
		f = &simFan{row: row, replies: make([]*consumer.Reply, elements)}
	}
	for i, reply := range f.replies {
		if k := row.KeptItems[i]; reply == nil && k != nil && k.RequestHash == itemRequestHash(row, i) {
			restored(i, k)
			kept := k.Reply
			kept.Event.Source = auditlog.SourceJournal
			row.KeepItem(i, kept) // as the program does
			f.replies[i] = &kept
		} else if reply == nil {
			jobs = append(jobs, simJob{row, i, f})
		}
	}
	f.left, f.back = len(jobs), false
	if len(jobs) == 0 {
		f.conclude()
	}
	return f, jobs
}

// startFan starts the elements of a row that have no reply yet.
func (e *simExecutor) startFan(row *consumer.Row) {
	f, jobs := openFan(row, e.life.s.elements(row.Seq), func(item int, k *consumer.Kept) {
		e.life.s.restored(simElement{row.Seq, item}, k)
	})
	if len(jobs) == 0 {
		return
	}
	if isClosed(e.draining) {
		f.back = true
		f.conclude()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range jobs {
		e.queue(j)
	}
	e.pump()
}

func (f *simFan) handBack() {
	f.mu.Lock()
	f.back = true
	f.left--
	last := f.left == 0
	f.mu.Unlock()
	if last {
		f.conclude()
	}
}

// answer takes the reply to an element.
func (f *simFan) answer(item int, reply consumer.Reply) {
	f.row.KeepItem(item, reply)
	f.mu.Lock()
	f.replies[item] = &reply
	f.left--
	last := f.left == 0
	f.mu.Unlock()
	if last {
		f.conclude()
	}
}

// conclude answers the row, or hands it back, with its last element. Nobody else has the fan any more.
func (f *simFan) conclude() {
	if f.back {
		f.row.Spent = f
		f.row.Reply(consumer.Reply{HandedBack: true})
		return
	}
	f.row.Spent = nil
	reply := consumer.Reply{Event: auditlog.Row{Attempts: len(f.replies)}}
	bodies := make([]string, len(f.replies))
	for i, item := range f.replies {
		bodies[i] = string(item.Body)
		reply.Failed = reply.Failed || item.Failed
		if item.Event.Source == auditlog.SourceCall || reply.Event.Source == "" {
			reply.Event.Source = item.Event.Source
		}
	}
	reply.Body = []byte(strings.Join(bodies, simBetween))
	f.row.Reply(reply)
}

// simBetween is between the replies to the elements in a result.
const simBetween = "; "

// id is the call's name, and the body of the reply to an element.
func (c *simCall) id() string {
	return fmt.Sprintf("call %d of row %d, element %d", c.number, c.of.row, c.of.item)
}

// fails reports whether a row's result is an error.
func (s *sim) fails(seq uint64) bool {
	if !s.fansOut {
		return s.outcome(simElement{seq, wholeRow}).failed
	}
	for i := range s.elements(seq) {
		if s.outcome(simElement{seq, i}).failed {
			return true
		}
	}
	return false
}

// checkBody checks that a result is made of the reply to each element of its row, in their order.
func (s *sim) checkBody(seq uint64, body string) {
	s.t.Helper()
	if want := string(enlarge(simElement{seq, wholeRow}, fmt.Appendf(nil, `done {"n":%d}`, seq-1))); !s.fansOut {
		if body != want {
			s.t.Errorf("row %d: %.200s, %d bytes; want %.200s, %d bytes", seq, body, len(body), want, len(want))
		}
		return
	}
	var replies []string
	if body != "" {
		replies = strings.Split(body, simBetween)
	}
	for i, reply := range replies {
		if !s.answers(simElement{seq, i}, reply) {
			s.t.Errorf("row %d: %.200q in the place of element %d is the reply to no call for it", seq, reply, i)
		}
	}
	if want := s.elements(seq); len(replies) != want {
		s.t.Errorf("row %d has %d elements, and %d replies in its result: %.200s", seq, want, len(replies), body)
	}
}

// answers reports whether a text is the reply to a call for an element.
func (s *sim) answers(of simElement, reply string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.callsFor[of], func(c *simCall) bool {
		return string(enlarge(of, []byte(c.id()))) == reply && !c.answered.IsZero()
	})
}

// restored checks a reply to an element that the journal had.
func (s *sim) restored(of simElement, k *consumer.Kept) {
	s.note("element restored")
	if !s.answers(of, string(k.Reply.Body)) || k.Reply.Failed != s.outcome(of).failed {
		s.t.Errorf("%v the journal has %.200q (failed %v) as the reply to element %d of row %d", s.clock(), k.Reply.Body, k.Reply.Failed, of.item, of.row)
	}
}
