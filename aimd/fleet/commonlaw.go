package fleet

import (
	"time"

	"github.com/llm-stage/stage/aimd"
)

const (
	// nurseSec is the time between the turns that come due until a canary is taken: as
	// long as a message takes.
	nurseSec = 0.1
	// turnsKept is for how many turns a refusal can still be told from others.
	turnsKept = 8192
)

// commonLaw runs the law for all members. The law takes each turn for an attempt that is
// sent when the turn comes due. What the members report later are outcomes of calls. So
// the tickets of the last turnsKept turns are kept, and each turn has one outcome at most.
type commonLaw struct {
	*aimd.Adaptive
	multiplier float64   // of the law
	at         time.Time // the law has been run until then

	turn    int64                  // the last that has come due, counted over all members
	came    time.Time              // when the last did
	tickets [turnsKept]aimd.Ticket // by turn
	settled int64                  // turns up to it have been accepted, refused or given up
	epoch   int
	ends    [16]struct { // the last turn of the latest epochs
		epoch int
		turn  int64
	}
	canary canary
	news   bool // the rate has changed, and all members must know at once
}

// canary is a turn in a pause that the server asked for, by which the law finds out
// whether it is over.
type canary struct {
	flies  bool
	ticket aimd.Ticket
	sent   uint64    // by all members, until then
	turned time.Time // when the last turn came due for it
}

// advance runs the law until now, with the calls of all members: how many are in flight,
// and how many were sent in this term. With hungry, a member waits for a turn.
func (l *commonLaw) advance(now time.Time, inFlight int, sent uint64, hungry bool) {
	phase := l.Phase()
	for t := l.at; ; {
		next := l.Next(t, 0)
		if !next.After(t) {
			ticket := l.Sent(t, inFlight)
			l.comeDue(t, ticket)
			if l.Rate(t) == 0 {
				l.canary = canary{flies: true, ticket: ticket, sent: sent, turned: t}
			}
			continue
		}
		if next.After(now) {
			break
		}
		t = next
	}
	l.nurse(now, sent, hungry)
	l.at = now
	l.Next(now, 0)
	l.noteEpoch()
	l.news = l.news || l.Phase() != phase
}

// comeDue has the next turn come due.
func (l *commonLaw) comeDue(t time.Time, ticket aimd.Ticket) {
	l.turn++
	l.tickets[l.turn%turnsKept], l.came = ticket, t
	l.news = l.news || l.Rate(t) == 0 // no plan has announced it
}

// nurse makes sure that some member sends the canary. Until then the law must not take
// silence for an answer. The member with the turn may have run ahead of it when the pause
// began, or may have nothing to send, so further turns come due as long as members wait
// for one.
func (l *commonLaw) nurse(now time.Time, sent uint64, hungry bool) {
	c := &l.canary
	switch {
	case !c.flies:
		return
	case l.Rate(now) > 0 || sent > c.sent:
		c.flies = false
		return
	}
	l.Idle(now.Sub(l.at))
	if hungry && now.Sub(c.turned).Seconds() >= nurseSec {
		c.turned = now
		l.comeDue(now, c.ticket)
	}
}

// noteEpoch notes that the law has begun another epoch, if it has.
func (l *commonLaw) noteEpoch() {
	if e := l.Epoch(); e != l.epoch {
		l.news = true
		slot := &l.ends[l.epoch%len(l.ends)]
		slot.epoch, slot.turn = l.epoch, l.turn
		l.epoch = e
	}
}

// accept reports n accepted calls to the law, while inFlight others have no outcome yet.
// Nobody knows which calls they were, so it takes the oldest.
func (l *commonLaw) accept(now time.Time, n uint64, inFlight int) {
	for ; n > 0 && l.settled < l.turn; n-- {
		l.settled++
		l.Accepted(now, l.tickets[l.settled%turnsKept])
	}
	// Turns that nobody took are not waited for.
	l.settled = max(l.settled, l.turn-int64(inFlight)-int64(l.Rate(now))-16)
}

// refuse tells the law of a turn at which a call was refused. A member that did not know
// yet of a new epoch ran ahead, and its turn has another number by now: it counts as the
// last of its epoch. For example, epoch 3 ended with turn 100, and a member that still
// went by its plan was refused at turn 104. By now another call has that number.
func (l *commonLaw) refuse(now time.Time, f *refusal) {
	turn := min(int64(f.Turn), l.turn)
	if end := l.ends[f.Epoch%len(l.ends)]; f.Epoch < l.epoch && end.epoch == f.Epoch {
		turn = min(turn, end.turn)
	}
	if turn <= max(0, l.turn-turnsKept) {
		return
	}
	if t := l.tickets[turn%turnsKept]; !t.Sent.IsZero() {
		l.Rejected(now, t, f.hint())
	}
}

// rate returns how many turns come due per second at an instant.
func (l *commonLaw) rate(at time.Time) float64 { return min(l.Rate(at), rateLimit) }

// turns returns how many turns have come due, with the part of the next that has passed.
func (l *commonLaw) turns(now time.Time) float64 {
	return float64(l.turn) + min(1, l.rate(now)*now.Sub(l.came).Seconds())
}

// curve returns how many turns come due from now until each of the next steps of a plan,
// and the rate in the last of them.
func (l *commonLaw) curve(now time.Time) (curve []float64, then float64) {
	curve = make([]float64, 0, curveSteps)
	due, estimate := 0.0, min(l.Estimate(), rateLimit)
	for i := range curveSteps {
		ahead := (float64(i) + 0.5) * curveStep
		then = l.rate(now.Add(time.Duration(ahead * float64(time.Second))))
		if ahead > planSec && l.Phase() == aimd.Drain && then*l.multiplier >= estimate*0.99 {
			then = estimate // the law will have left drain by then, and without a plan nobody could say so
		}
		due += then * curveStep
		curve = append(curve, due)
	}
	return curve, then
}
