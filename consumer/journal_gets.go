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
	// server cuts off a client for which it has 64 MiB.
	journalGetBytes = 4 << 20
	// journalFirst is how many replies may be asked for before the size of any is known.
	journalFirst = 4
	// journalLag is the wait before a replica is asked again that does not have a reply
	// yet. After journalLagMost the reply counts as gone.
	journalLag     = 50 * time.Millisecond
	journalLagMost = time.Second
)

// gets reads replies that are kept, each by its subject, once its row starts.
type gets struct {
	link    *journalLink
	earlier *earlierTerms
	window  *window
	bodies  *bodies // reads the bodies that are objects

	open    map[uint64]*get // by row
	missing int             // replies that are not here yet
	// by is when rows start without the replies that have not come. Each reply that comes
	// puts it off, since a row may have thousands, and a slow link may carry few at a
	// time.
	by     time.Time
	silent bool // by has passed: no row waits until a reply comes
	size   int  // of the largest of the last replies, in bytes; 0 before the first
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
	if !g.silent && of.by.Before(g.by) {
		return g.by
	}
	return of.by
}

// restore gives a row the replies that earlier terms have kept of it, before it starts. It
// reports false while they are being read, and while they have to wait for others: a row
// that may not begin would have a reply that the window has no room for.
//
// Where the journal does not answer, rows start without their replies, and are paid for
// again.
func (g *gets) restore(row *Row, now time.Time) bool {
	if row.journal.restored {
		return true
	}
	of := g.open[row.Seq]
	if of == nil {
		refs := g.earlier.of(row.Seq)
		if len(refs) == 0 {
			row.journal.restored = true
			return true
		}
		if !g.room() || !row.MayBegin() {
			return false
		}
		of = g.begin(row.Seq, refs, now)
		if of.by = now; !g.silent {
			of.by = now.Add(streams.RequestTimeout)
		}
	}
	switch {
	case of.fetching > 0: // a body is waited for without end, as the row would be paid for again
		return false
	case len(of.missing) > 0 && now.Before(g.until(of)):
		return false
	case len(of.missing) > 0:
		g.silent = true
		g.link.setProblem("no answer")
	}
	g.end(row.Seq, of)
	row.Kept, row.KeptItems, row.journal.restored = of.kept, of.items, true
	g.window.grow(row.Seq, row.keptBytes())
	return true
}

// getBack returns the reply to a row that comes back from the lane, once it is here. The
// row waits for it without end, as it would be paid for again.
func (g *gets) getBack(seq uint64, now time.Time) (kept *Kept, here bool) {
	of := g.open[seq]
	if of == nil {
		of = g.begin(seq, []keptRef{{seq, wholeRow}}, now)
	}
	if len(of.missing) > 0 || of.fetching > 0 {
		return nil, false
	}
	g.end(seq, of)
	return of.kept, true
}

// begin asks for the replies that are kept of a row.
func (g *gets) begin(seq uint64, refs []keptRef, now time.Time) *get {
	of := &get{}
	for _, ref := range refs {
		of.missing = append(of.missing, ref.item)
	}
	g.open[seq] = of
	g.missing += len(of.missing)
	g.ask(seq, of, now)
	g.link.c.at("fetching")
	return of
}

// end ends a get.
func (g *gets) end(seq uint64, of *get) {
	delete(g.open, seq)
	g.missing -= len(of.missing)
}

// ask asks for the replies that are missing. Those of a row with many elements are asked
// for in turns.
func (g *gets) ask(seq uint64, of *get, now time.Time) {
	of.again = now.Add(streams.RequestTimeout)
	of.asked = min(len(of.missing), g.most())
	for _, item := range of.missing[:of.asked] {
		topic := topicGet + "." + strconv.FormatUint(seq, 36) + "." + strconv.Itoa(item)
		subject := g.link.subject(keptRef{seq, item})
		if !g.link.ask(topic, "DIRECT.GET", map[string]string{"last_by_subj": subject}) {
			return
		}
	}
}

// received takes the answer to one request for a reply. name is what follows the topic. A
// request that was repeated may be answered twice: the second answer finds that the reply
// is not missing, or that the get has ended.
func (g *gets) received(m *nats.Msg, name string, now time.Time) {
	row, element, _ := strings.Cut(name, ".")
	seq, err := strconv.ParseUint(row, 36, 64)
	item, errItem := strconv.Atoi(element)
	if code, _ := streams.StatusOf(m); code == "" || code == "404" {
		g.size = max(m.Size(), g.size-g.size/8)
		g.by, g.silent = now.Add(streams.RequestTimeout), false
	}
	of := g.open[seq]
	if err != nil || errItem != nil || of == nil {
		return
	}
	at := slices.Index(of.missing, item)
	if at < 0 {
		return
	}
	if streams.Added(m.Header, jetstream.SequenceHeader) == "" && !g.gone(m, of, now) {
		of.again = soonest(of.again, now.Add(journalLag))
		return
	}
	if ref, k := g.link.parse(m.Header, m.Data); k != nil && ref == (keptRef{seq, item}) {
		if k.object.Name == "" {
			of.put(item, k)
		} else {
			of.fetching++
			g.bodies.getForJournal(seq, k, func(k *Kept) {
				if of.fetching--; k != nil {
					of.put(item, k)
				}
			})
		}
	}
	of.missing = slices.Delete(of.missing, at, at+1)
	g.missing--
	if of.asked--; of.asked == 0 && len(of.missing) > 0 {
		g.ask(seq, of, now)
	}
}

// gone reports whether an answer without a reply is the last word.
func (g *gets) gone(m *nats.Msg, of *get, now time.Time) bool {
	if code, why := streams.StatusOf(m); code != "404" {
		g.link.setProblem("read: " + strings.TrimSpace(code+" "+why))
		return false
	}
	if of.lagUntil.IsZero() {
		of.lagUntil = now.Add(journalLagMost)
	}
	return !now.Before(of.lagUntil)
}

func (of *get) put(item int, k *Kept) {
	if item == wholeRow {
		of.kept = k
		return
	}
	if of.items == nil {
		of.items = make(map[int]*Kept)
	}
	of.items[item] = k
}

// step asks again where no answer has come, and returns when to be called again.
func (g *gets) step(now time.Time) (next time.Time) {
	for seq, of := range g.open {
		if len(of.missing) == 0 {
			continue
		}
		if !now.Before(of.again) {
			g.ask(seq, of, now)
		}
		next = soonest(next, of.again)
		// A row waits for it until then. Once that has passed, the row starts in this
		// pass, unless it may not be started at all: then there is nothing to be called
		// for, and a time in the past would have the term go round without rest.
		if by := g.until(of); !of.by.IsZero() && now.Before(by) {
			next = soonest(next, by)
		}
	}
	return next
}
