package consumer

import (
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
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
// The parts are in files of their own: the link to the stream, the replies that wait to be
// kept (unkept), the
// entries that were sent to the stream and have no answer yet (sentEntries), the replies
// that earlier terms have kept (earlierTerms) and how they are read (gets), and the
// entries that must stay in the stream (purges).
//
// The goroutine of the term owns it. Where [Config.Journal] is false it keeps nothing and
// has nothing to read.
type journal struct {
	link   journalLink
	owner  string
	window *window
	lane   *laneRows // learns which replies are kept
	bodies *bodies   // move the replies that are larger than a message

	unkept  unkept
	sent    sentEntries
	earlier earlierTerms
	gets    gets
	purges  purges
}

// newJournal returns the journal of a term that has no lane yet.
func newJournal(t *term, stream *keptStream) *journal {
	j := &journal{
		link: journalLink{keptStream: stream, c: t.c}, owner: t.owner, window: t.window, bodies: &t.bodies,
	}
	j.earlier.link = &j.link
	j.gets = gets{
		link: &j.link, earlier: &j.earlier, window: t.window, bodies: &t.bodies, open: make(map[uint64]*get),
	}
	j.purges = purges{link: &j.link, earlier: &j.earlier, finished: t.window.finished}
	return j
}

// open asks what earlier terms have kept. In a consumer without a journal it does nothing.
func (j *journal) open(now time.Time) {
	if !j.link.cfg.Journal {
		return
	}
	j.sent.most = max(j.link.cfg.WindowRows, journalSent)
	// There is room for all answers that may come at once: to each entry that was sent, to
	// each get, and a few others.
	if j.link.open(j.sent.most + 2*journalGets + 64) {
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
		j.stored(m, of, now)
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
	next = soonest(next, j.keepDue(now))
	return soonest(next, j.purges.step(now))
}

// emitted drops rows that no longer need the journal.
func (j *journal) emitted(rows []*Row) {
	for _, row := range rows {
		j.unkept.settle(row)
		for item := range row.eachItem() {
			j.unkept.settle(item)
		}
	}
	j.unkept.sweep()
	j.purges.emitted()
}

// mustKeep reports whether a reply must be kept at all: only if it was paid for in this
// process.
func mustKeep(r *Reply) bool {
	return r.RequestHash != "" && r.Event.Source != auditlog.SourceJournal
}
