package consumer

import (
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// journal keeps replies that wait for an earlier row where the next owner finds them, so
// that a crash does not pay for them again. It saves money and never decides what is
// right: a journal that is full, gone or forbidden is not used.
//
// A reply is an ordinary message on a subject of its row, or of its element, and it is
// sent without waiting for the answer. Its call events are stored before it, so no reply
// that is taken from the journal lacks its audit. A new owner asks which subjects exist,
// and reads the reply to each such row when the row starts. For example, row 7 of
// partition 0 has its reply on journal.stage.0.7.row, and its second element on
// journal.stage.0.7.1.
//
// Each part is a type with its own state, in a file of its name. A reply is with unkept
// until the stream has stored its entry, and the entry is with purges until it is removed.
// If the term ends before that, earlier lists the reply in the next term, and gets reads
// it.
//
// The goroutine of the term owns the journal with all parts. Where [Config.Journal] is
// false it keeps nothing and has nothing to read.
type journal struct {
	link    journalLink  // sends requests and entries, and gets the answers
	earlier earlierTerms // which replies earlier terms have kept
	gets    gets         // reads these replies
	unkept  unkept       // replies that must be kept and are not yet
	purges  purges       // removes entries that are not needed any more
}

// newJournal returns the journal of a term that has no lane yet.
func newJournal(t *term, stream *keptStream) *journal {
	j := &journal{link: journalLink{keptStream: stream, c: t.c}}
	j.earlier.link = &j.link
	j.gets = gets{
		link: &j.link, earlier: &j.earlier, window: t.window, bodies: &t.bodies, open: make(map[uint64]*get),
	}
	j.purges = purges{link: &j.link, earlier: &j.earlier, finished: t.window.finished}
	j.unkept = unkept{link: &j.link, earlier: &j.earlier, window: t.window, bodies: &t.bodies}
	j.unkept.sent = sentEntries{
		link: &j.link, purges: &j.purges, owner: t.owner, most: max(t.c.cfg.WindowRows, journalSent),
	}
	return j
}

// open asks what earlier terms have kept. In a consumer without a journal it does nothing.
func (j *journal) open(now time.Time) {
	if !j.link.cfg.Journal {
		return
	}
	// There is room for all answers that may come at once: to each entry that was sent, to
	// each get, and a few others.
	if j.link.open(j.unkept.sent.most + 2*journalGets + 64) {
		j.earlier.open(now)
	}
}

// received handles one answer.
func (j *journal) received(m *nats.Msg, now time.Time) {
	switch topic, of, _ := strings.Cut(m.Subject[len(j.link.inbox)+1:], "."); topic {
	case topicSubjects:
		if j.earlier.received(m, now) {
			j.purges.begin(j.earlier.upTo)
			j.link.c.at("journal read")
		}
	case topicPurge:
		if refused := streams.Refusal(m); refused != nil {
			j.link.setProblem("purge: " + refused.Error())
		}
	case topicEntry:
		j.unkept.received(m, of, now)
	case topicGet:
		j.gets.received(m, of, now)
	}
}

// step keeps the replies that have waited long enough, repeats requests that were not
// answered, and removes entries that are no longer needed. It returns when it wants to be
// called again; zero means not before something happens.
func (j *journal) step(now time.Time) (next time.Time) {
	if j.link.sub == nil {
		return time.Time{}
	}
	next = j.earlier.step(now)
	next = soonest(next, j.gets.step(now))
	next = soonest(next, j.unkept.step(now))
	return soonest(next, j.purges.step(now))
}

// emitted drops the rows of a group whose results are stored: they no longer need the
// journal.
func (j *journal) emitted(e emitted) {
	j.unkept.emitted(e)
	j.purges.emitted()
}
