package consumer

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// journalGets is how many replies may be asked for at once.
	journalGets = 64
	// journalGetBytes bounds the bytes of replies that are being read, by the largest of
	// the last replies. They delay everything else that comes by the connection, and a
	// server cuts off a client for which it has 64 MiB. Before the first reply is here,
	// few are asked for.
	journalGetBytes = 4 << 20
	journalFirst    = 4
	// journalLag is the wait before a replica is asked again that does not have a reply
	// yet, and journalLagMost for how long that is done: then the reply is gone.
	journalLag     = 50 * time.Millisecond
	journalLagMost = time.Second
)

// gets reads replies that are kept, each by its subject, once its row starts.
type gets struct {
	open    map[uint64]*get // by row
	missing int             // replies that are not here yet
	// by is when rows start without the replies that have not come. Each reply that comes
	// puts it off, since a row may have thousands, and a slow link may carry few at a
	// time. deaf says that it has passed: no row waits until a reply comes.
	by   time.Time
	deaf bool
	size int // of the largest of the last replies
}

// get collects the replies to one row and its elements. Any replica may answer a request
// for a reply, and a replica that lags answers that there is none. The subject exists, so
// it is asked again.
type get struct {
	kept     *Kept
	items    map[int]*Kept
	missing  []int     // elements, or wholeRow, whose replies are not here yet
	fetching int       // replies whose bodies are objects, which are being read
	asked    int       // how many of the missing ones were asked for and not answered yet
	by       time.Time // when the row starts without them; zero means never
	again    time.Time // when to ask once more
	lagUntil time.Time // zero until a replica has answered that there is none
}

// room reports whether another row may ask.
func (g *gets) room() bool { return g.missing < g.most() }

// most is how many replies may be asked for at once.
func (g *gets) most() int {
	if g.size == 0 {
		return journalFirst
	}
	return min(max(journalGetBytes/g.size, 1), journalGets)
}

// until is when a row starts without the replies that have not come.
func (g *gets) until(of *get) time.Time {
	if !g.deaf && of.by.Before(g.by) {
		return g.by
	}
	return of.by
}

// restore gives a row the replies that earlier terms have kept of it, before it starts. It
// reports false while they are being read, and while they have to wait for others: a row
// that may not begin would have a reply that the window has no room for.
//
// Where the journal does not answer, rows start without, and are paid for again.
func (j *journal) restore(row *Row, now time.Time) bool {
	if row.journal.restored {
		return true
	}
	g := j.gets.open[row.Seq]
	if g == nil {
		refs := j.earlier.of(row.Seq)
		if len(refs) == 0 {
			row.journal.restored = true
			return true
		}
		if !j.gets.room() || !row.MayBegin() {
			return false
		}
		g = j.get(row.Seq, refs, now)
		if g.by = now; !j.gets.deaf {
			g.by = now.Add(streams.RequestTimeout)
		}
	}
	if g.fetching > 0 { // without end: without it the row would be paid for again
		return false
	}
	if len(g.missing) > 0 && now.Before(j.gets.until(g)) {
		return false
	}
	if len(g.missing) > 0 {
		j.gets.deaf = true
		j.link.setProblem("no answer")
	}
	j.end(row.Seq, g)
	row.Kept, row.KeptItems, row.journal.restored = g.kept, g.items, true
	j.window.grow(row.Seq, row.keptBytes())
	return true
}

// getBack returns the reply to a row that comes back from the lane, once it is here. It
// is waited for without end: without it the row would be paid for again.
func (j *journal) getBack(seq uint64, now time.Time) (kept *Kept, here bool) {
	g := j.gets.open[seq]
	if g == nil {
		g = j.get(seq, []keptRef{{seq, wholeRow}}, now)
	}
	if len(g.missing) > 0 || g.fetching > 0 {
		return nil, false
	}
	j.end(seq, g)
	return g.kept, true
}

// get asks for the replies that are kept of a row.
func (j *journal) get(seq uint64, refs []keptRef, now time.Time) *get {
	g := &get{}
	for _, ref := range refs {
		g.missing = append(g.missing, ref.item)
	}
	if j.gets.open == nil {
		j.gets.open = make(map[uint64]*get)
	}
	j.gets.open[seq] = g
	j.gets.missing += len(g.missing)
	j.ask(seq, g, now)
	j.link.c.at("fetching")
	return g
}

// end ends a get.
func (j *journal) end(seq uint64, g *get) {
	delete(j.gets.open, seq)
	j.gets.missing -= len(g.missing)
}

// ask asks for the replies that are missing. Those of a row with many elements are asked
// for in turns.
func (j *journal) ask(seq uint64, g *get, now time.Time) {
	g.again = now.Add(streams.RequestTimeout)
	g.asked = min(len(g.missing), j.gets.most())
	for _, item := range g.missing[:g.asked] {
		topic := topicGet + "." + strconv.FormatUint(seq, 36) + "." + strconv.Itoa(item)
		subject := j.link.subject(keptRef{seq, item})
		if !j.link.ask(topic, "DIRECT.GET", map[string]string{"last_by_subj": subject}) {
			return
		}
	}
}

// gotten takes the answer to one request for a reply.
func (j *journal) gotten(m *nats.Msg, name string, now time.Time) {
	row, element, _ := strings.Cut(name, ".")
	seq, err := strconv.ParseUint(row, 36, 64)
	item, errItem := strconv.Atoi(element)
	if code, _ := streams.StatusOf(m); code == "" || code == "404" {
		j.gets.size = max(m.Size(), j.gets.size-j.gets.size/8)
		j.gets.by, j.gets.deaf = now.Add(streams.RequestTimeout), false
	}
	g := j.gets.open[seq]
	if err != nil || errItem != nil || g == nil {
		return // the second answer to a request that was repeated
	}
	at := slices.Index(g.missing, item)
	if at < 0 {
		return
	}
	if streams.Added(m.Header, jetstream.SequenceHeader) == "" && !j.gone(m, g, now) {
		g.again = soonest(g.again, now.Add(journalLag))
		return
	}
	if ref, k := j.link.parse(m.Header, m.Data); k != nil && ref == (keptRef{seq, item}) {
		if k.object.Name == "" {
			g.put(item, k)
		} else {
			g.fetching++
			j.bodies.getForJournal(seq, k, func() bool { return j.gets.open[seq] == g }, func(k *Kept) {
				if g.fetching--; k != nil {
					g.put(item, k)
				}
			})
		}
	}
	g.missing = slices.Delete(g.missing, at, at+1)
	j.gets.missing--
	if g.asked--; g.asked == 0 && len(g.missing) > 0 {
		j.ask(seq, g, now)
	}
}

// gone reports whether an answer without a reply is the last word.
func (j *journal) gone(m *nats.Msg, g *get, now time.Time) bool {
	if code, why := streams.StatusOf(m); code != "404" {
		j.link.setProblem("read: " + strings.TrimSpace(code+" "+why))
		return false
	}
	if g.lagUntil.IsZero() {
		g.lagUntil = now.Add(journalLagMost)
	}
	return !now.Before(g.lagUntil)
}

func (g *get) put(item int, k *Kept) {
	if item == wholeRow {
		g.kept = k
		return
	}
	if g.items == nil {
		g.items = make(map[int]*Kept)
	}
	g.items[item] = k
}

// stepGets asks again where no answer has come, and returns when to be called again.
func (j *journal) stepGets(now time.Time) (next time.Time) {
	for seq, g := range j.gets.open {
		if len(g.missing) == 0 {
			continue
		}
		if !now.Before(g.again) {
			j.ask(seq, g, now)
		}
		next = soonest(next, g.again)
		// A row waits for it until then. Once that has passed, the row starts in this
		// pass, unless it may not be started at all: then there is nothing to be called
		// for, and a time in the past would have the term go round without rest.
		if by := j.gets.until(g); !g.by.IsZero() && now.Before(by) {
			next = soonest(next, by)
		}
	}
	return next
}
