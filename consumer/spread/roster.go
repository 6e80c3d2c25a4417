package spread

import (
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// forgetAfter is after how long a silent replica counts as gone: three announcements
	// in a row were lost. It is longer than a pin lives, so the partitions of a replica
	// that was killed wait for this.
	forgetAfter = 1600 * time.Millisecond
	// neglectPatience is how long rows may wait at a partition that nobody serves until
	// the next in line takes it over, and neglectMost until anybody does. A hand-over
	// without calls in flight takes a tenth of that.
	neglectPatience = 1500 * time.Millisecond
	neglectMost     = 2500 * time.Millisecond
	// neglectLook is the time between two looks at a partition that nobody serves, as far
	// as is known.
	neglectLook = 500 * time.Millisecond
	// returnFirst is how long nothing is released to a replica that stood by for a
	// partition and did not take it. It is twice as long each time, up to returnMost: the
	// replica may be able by now, and the shares must be even after ten seconds.
	// returnForget is after how long such a failure is forgotten.
	returnFirst  = time.Second
	returnMost   = 8 * time.Second
	returnForget = time.Minute
	// returnDrains times as long as the partition drained for it, up to returnLongest,
	// comes on top. Without that, calls of 25 s would leave 8 s of every 35 to the rows:
	// the partition drains for 25, waits for 2 until it is taken over, and is released 8 s
	// later.
	returnDrains  = 3
	returnLongest = 10 * time.Minute
	// proveFor is how long a replica must have been there until a partition is released
	// to it that was released for nothing within returnForget. One that dies whenever it
	// starts is gone by then, and half of the ten seconds is left for the move.
	proveFor = 5 * time.Second
	// lostFor is how long a replica that fell silent is remembered, and lostMost how many
	// of them.
	lostFor  = time.Minute
	lostMost = 64
)

// announcement describes a replica to the others.
type announcement struct {
	ID         string `json:"id"`
	Partitions int    `json:"partitions"`
	// Owned are the partitions that it serves. Taken are the ones among them that it took
	// over because nobody else served them.
	Owned []int `json:"owned"`
	Taken []int `json:"taken,omitempty"`
	// Standby are the partitions that it waits to be given: it has just seen their
	// consumer, and would take rows.
	Standby []int `json:"standby,omitempty"`
	// Hello asks the others to announce themselves at once.
	Hello bool `json:"hello,omitempty"`
	// Leaving says that what it owns will soon be free.
	Leaving bool `json:"leaving,omitempty"`
	// Stays says that it does not end: it leaves what it owns to others, and stays.
	Stays bool `json:"stays,omitempty"`
	// Avoid are the partitions that another replica should have rather than this one.
	Avoid []int `json:"avoid,omitempty"`
}

// peer is another replica, as it announced itself last.
type peer struct {
	since   time.Time // it was heard first
	heard   time.Time
	leaving bool
	stays   bool // though it leaves
	owned   map[int]bool
	taken   map[int]bool
	standby map[int]bool
	avoid   map[int]bool
	// refuted are the partitions that it says it serves while the log names another
	// owner.
	refuted map[int]bool

	failures  int       // how often it stood by for a partition and did not take it
	keepUntil time.Time // nothing is released to it before
}

// Service is how this replica serves a partition.
type Service uint8

// How a replica serves a partition.
const (
	NotServed       Service = iota // it does not
	ServedUntilLost                // it did when the connection broke, and is the first to go on with it
	Served                         // it does
	servedInstead                  // it does in the place of another
)

// place is what a replica knows of one partition.
type place struct {
	service Service
	standby bool   // it waits for the partition
	holder  string // the replica that serves it, as far as is known; may be empty

	waitsSince time.Time // rows wait there unserved since then, as far as is known; may be zero
	changed    time.Time // when the holder did last
	looked     time.Time // last look at the consumer
	look       bool      // it must be looked at once, although a replica serves it
	takeOver   bool      // this replica takes it, as no other does

	avoid bool // another replica should have it, as long as one takes it

	released   time.Time     // when its release began; zero once another replica serves it
	releasedTo string        // its assignee then
	drained    time.Duration // how long it took until it was free
	failedAt   time.Time     // when it was last found that nobody had taken it
}

// roster is what a replica knows of the others, and what follows for it. It is pure: the
// instant comes in as an argument. One goroutine at a time uses it.
//
// It trusts no peer: a partition is released only to a replica that stands by for it, so
// one that is silent, or unable to take its share, costs nothing; one that announces that
// it stands by and does not take what it is given costs its own share, less and less
// often, and about a third of the time at most. A peer's claim to own a partition counts
// until another replica claims the same one, or until rows wait there and nobody is
// pinned. Then the log decides.
type roster struct {
	id     string
	places []place
	peers  map[string]*peer

	leaving bool // it takes nothing, and hands over what it has
	checked int  // the last partition whose turn it was, see checkNext
	// lost has the replicas that fell silent without leaving, and when they were last heard.
	lost map[string]time.Time
}

func newRoster(id string, partitions int, now time.Time) *roster {
	r := &roster{
		id: id, places: make([]place, partitions),
		peers: make(map[string]*peer), lost: make(map[string]time.Time),
	}
	for n := range r.places {
		r.places[n].changed = now
	}
	return r
}

// announce returns this replica's announcement.
func (r *roster) announce() announcement {
	a := announcement{
		ID: r.id, Partitions: len(r.places), Owned: []int{}, Leaving: r.leaving, Stays: r.leaving,
	}
	for p := range r.places {
		switch pl := &r.places[p]; {
		case pl.service == servedInstead:
			a.Taken = append(a.Taken, p)
			a.Owned = append(a.Owned, p)
		case pl.service != NotServed:
			a.Owned = append(a.Owned, p)
		}
		if r.places[p].standby {
			a.Standby = append(a.Standby, p)
		}
		if r.places[p].avoid {
			a.Avoid = append(a.Avoid, p)
		}
	}
	return a
}

// hear handles the announcement of another replica of the same stage.
func (r *roster) hear(a announcement, now time.Time) {
	p := r.peers[a.ID]
	if p == nil {
		p = &peer{since: now, refuted: make(map[int]bool)}
		r.peers[a.ID] = p
	}
	p.heard, p.leaving, p.stays = now, a.Leaving, a.Stays
	p.owned, p.taken = setOf(a.Owned), setOf(a.Taken)
	p.standby, p.avoid = setOf(a.Standby), setOf(a.Avoid)
	delete(r.lost, a.ID)
	maps.DeleteFunc(p.refuted, func(partition int, _ bool) bool { return !p.owned[partition] })
}

func setOf(list []int) map[int]bool {
	set := make(map[int]bool, len(list))
	for _, n := range list {
		set[n] = true
	}
	return set
}

// reunite must be called after a time without a connection, during which no replica could
// be heard.
func (r *roster) reunite(now time.Time) {
	for _, p := range r.peers {
		p.heard = now
	}
}

// forget drops the replicas that have been silent for too long, and reports whether there
// were any.
func (r *roster) forget(now time.Time) (some bool) {
	for id, p := range r.peers {
		if now.Sub(p.heard) > forgetAfter {
			delete(r.peers, id)
			some = true
			if (!p.leaving || p.stays) && len(r.lost) < lostMost {
				r.lost[id] = p.heard
			}
		}
	}
	maps.DeleteFunc(r.lost,
		func(_ string, heard time.Time) bool { return now.Sub(heard) > lostFor })
	return some
}

// update works out who serves what. The replica that has claimed it for longest is
// believed, this one before all others.
func (r *roster) update(now time.Time) {
	ids := slices.Sorted(maps.Keys(r.peers))
	for n := range r.places {
		pl := &r.places[n]
		first := slices.IndexFunc(ids, func(id string) bool { return r.peers[id].claims(n) })
		if pl.service == ServedUntilLost && first >= 0 {
			pl.service = NotServed // another replica has taken it over meanwhile
		}
		before := pl.holder
		switch {
		case pl.service != NotServed:
			pl.holder = r.id
		case r.peers[pl.holder].claims(n):
		case first >= 0:
			pl.holder = ids[first]
		default:
			pl.holder = ""
		}
		if pl.holder != before {
			pl.waitsSince, pl.changed = time.Time{}, now
		}
		if pl.holder != "" {
			pl.takeOver = false
			if pl.holder != r.id {
				pl.released = time.Time{}
			}
		}
	}
}

// claims reports whether a peer announces that it serves a partition, and may be
// believed.
func (p *peer) claims(partition int) bool {
	return p != nil && p.owned[partition] && !p.refuted[partition]
}

// standsBy reports whether a peer waits for a partition.
func (p *peer) standsBy(partition int) bool {
	return p != nil && !p.leaving && p.standby[partition]
}

// count returns the number of peers for which what holds.
func (r *roster) count(what func(*peer) bool) (n int) {
	for _, p := range r.peers {
		if what(p) {
			n++
		}
	}
	return n
}

// serving returns how many peers serve partitions and take rows.
func (r *roster) serving() int {
	return r.count(func(p *peer) bool { return len(p.owned) > 0 && !p.leaving })
}

// members are the replicas that take a share, but for one.
func (r *roster) members(without string) []member {
	var list []member
	add := func(id string, took, avoids func(int) bool) {
		if id == without {
			return
		}
		m := member{id: id, avoids: avoids}
		for n := range r.places {
			switch {
			case r.places[n].holder != id:
			case took(n):
				m.taken = append(m.taken, n)
			default:
				m.owned = append(m.owned, n)
			}
		}
		list = append(list, m)
	}
	if !r.leaving {
		var avoids func(int) bool
		if slices.ContainsFunc(r.places, func(pl place) bool { return pl.avoid }) {
			avoids = func(n int) bool { return r.places[n].avoid }
		}
		add(r.id, func(n int) bool { return r.places[n].service == servedInstead }, avoids)
	}
	for id, p := range r.peers {
		if p.leaving {
			continue
		}
		var avoids func(int) bool
		if len(p.avoid) > 0 {
			avoids = func(n int) bool { return p.avoid[n] }
		}
		add(id, func(n int) bool { return p.taken[n] }, avoids)
	}
	return list
}

// serve returns which partitions this replica should serve, or continue to serve, as of
// now.
func (r *roster) serve(now time.Time) []bool {
	r.update(now)
	serve := make([]bool, len(r.places))
	for n, id := range assign(r.members(""), len(r.places)) {
		pl := &r.places[n]
		switch mine := id == r.id; {
		case mine:
			pl.takeOver = false
			if pl.service == servedInstead {
				pl.service = Served
			}
			serve[n] = true
		case pl.service != NotServed:
			serve[n] = !r.peers[id].standsBy(n) || r.doubts(id, n, now)
		default:
			serve[n] = pl.takeOver
		}
	}
	return serve
}

// attended reports whether a replica serves a partition, or waits for it and may be
// relied on.
func (r *roster) attended(partition int) bool {
	if r.places[partition].holder != "" || r.places[partition].standby {
		return true
	}
	return r.count(func(p *peer) bool { return p.standsBy(partition) }) > 0
}

// checkNext makes some partitions due for a look, although others claim to serve or stand
// by for them, because these may be wrong. They are the next one of all in turn, and
// every partition that this replica has released within returnForget and that nobody has
// served since. serves says which partitions this replica serves. Without the second
// rule:
//
//  1. A releases 8 partitions to B. No row waits when A looks at them, so A relies on B.
//  2. Rows come, and B takes none of them.
//  3. A notices it at one partition with each check, so after 16 s at the last one.
func (r *roster) checkNext(serves []bool, now time.Time) {
	for n := range r.places {
		if pl := &r.places[n]; !serves[n] && pl.holder == "" && now.Sub(pl.released) < returnForget {
			pl.look = true
		}
	}
	for range r.places {
		r.checked = (r.checked + 1) % len(r.places)
		if !serves[r.checked] {
			r.places[r.checked].look = true
			return
		}
	}
}

// lookAt returns when the consumer of a partition that this replica does not serve should
// be looked at. Zero means not before something changes. A partition that has been
// released is looked at once although a replica announces that it waits for it.
func (r *roster) lookAt(partition int) time.Time {
	pl := &r.places[partition]
	released := pl.holder == "" && pl.looked.Before(pl.changed)
	if !pl.look && !released && !r.contested(partition) && pl.waitsSince.IsZero() &&
		r.attended(partition) {
		return time.Time{}
	}
	last := pl.looked
	if pl.changed.After(last) {
		last = pl.changed // a hand-over, mostly
	}
	return last.Add(neglectLook)
}

// Sight is what a look at the consumer of a partition has shown.
type Sight struct {
	Pinned bool   // a client is
	Rows   bool   // rows wait, or are taken and not acked
	Log    bool   // it was read
	Owner  string // of the last append to the log; empty if there is none
}

// saw records what a look has shown.
func (r *roster) saw(partition int, s Sight, now time.Time) {
	pl := &r.places[partition]
	pl.look, pl.looked = false, now
	if s.Log {
		r.believe(partition, s.Owner, now)
	}
	// A holder without a pin has lost it while its window is full, and serves its rows.
	if s.Pinned || !s.Rows || pl.holder != "" {
		pl.waitsSince = time.Time{}
		return
	}
	if pl.waitsSince.IsZero() {
		pl.waitsSince = now
	}
	switch waited := now.Sub(pl.waitsSince); {
	case waited >= neglectMost, waited >= neglectPatience && r.nextInLine(partition) == r.id:
		pl.takeOver = true
	}
}

// believe goes by the log: the replica that appended last owns the partition, if any
// does. A replica that was wrong about one partition may be wrong about others.
func (r *roster) believe(partition int, owner string, now time.Time) {
	for id, p := range r.peers {
		was := p.refuted[partition]
		delete(p.refuted, partition)
		if !p.owned[partition] || strings.HasPrefix(owner, id+".") {
			continue
		}
		p.refuted[partition] = true
		for n := range r.places {
			r.places[n].look = r.places[n].look || !was && p.owned[n] && !p.refuted[n]
		}
	}
	r.update(now)
}

// disputed reports whether more than one replica says that it serves a partition, or one
// that was wrong before: then a look should read the log, too.
func (r *roster) disputed(partition int) bool {
	return r.count(func(p *peer) bool { return p.refuted[partition] }) > 0 ||
		r.count(func(p *peer) bool { return p.owned[partition] }) > 1
}

// contested reports whether more than one replica may be believed to serve a partition.
func (r *roster) contested(partition int) bool {
	return r.count(func(p *peer) bool { return p.claims(partition) }) > 1
}

// assignee is the replica that should serve a partition.
func (r *roster) assignee(partition int) string {
	return assign(r.members(""), len(r.places))[partition]
}

// nextInLine is the replica that should serve a partition in the place of its assignee.
func (r *roster) nextInLine(partition int) string {
	return assign(r.members(r.assignee(partition)), len(r.places))[partition]
}

// release notes that this replica begins to release a partition.
func (r *roster) release(partition int, now time.Time) {
	pl := &r.places[partition]
	pl.released, pl.releasedTo, pl.drained = now, r.assignee(partition), 0
}

// own notes how this replica serves a partition from now on. It can only lose what it had.
func (r *roster) own(partition int, to Service, now time.Time) {
	pl := &r.places[partition]
	switch {
	case to == Served:
		r.fail(partition, now)
		if pl.takeOver {
			to = servedInstead
		}
	case to == ServedUntilLost && pl.service == NotServed:
		to = NotServed
	}
	if to < Served && pl.service >= Served && !pl.released.IsZero() {
		pl.drained = now.Sub(pl.released)
	}
	pl.service, pl.takeOver = to, false
}

// fail notes who has not taken a partition that this replica begins to serve, if anybody
// has not: rows waited there for the one that it was released to, or for an assignee that
// stands by; or it was released, no other has served it since, and the one that it was
// released to is gone.
func (r *roster) fail(partition int, now time.Time) {
	pl := &r.places[partition]
	released, to, drained := !pl.released.IsZero(), pl.releasedTo, pl.drained
	if !released {
		to, drained = r.assignee(partition), 0
	}
	pl.released = time.Time{}
	p := r.peers[to]
	gone := released && p == nil
	neglects := pl.takeOver && (released || p.standsBy(partition))
	if !gone && !neglects {
		return
	}
	pl.failedAt = now
	if p == nil {
		return
	}
	if !now.Before(p.keepUntil) { // else it fails with several at once, which counts once
		if now.Sub(p.keepUntil) > returnForget {
			p.failures = 0
		}
		p.failures++
	}
	wait := min(returnFirst<<min(p.failures-1, 10), returnMost) +
		min(returnDrains*drained, returnLongest)
	if until := now.Add(wait); until.After(p.keepUntil) {
		p.keepUntil = until
	}
}

// doubts reports whether a partition is not released to a peer that stands by for it,
// though it is its assignee. One that has failed must wait. So must one that this replica
// has known only for a short time, where somebody has failed, because a replica that dies
// whenever it starts comes back under another id:
//
//  1. A releases the partition to B, which dies before the calls of A have ended.
//  2. A serves the partition again. B is restarted, and is C from now on.
//  3. C stands by, and A releases the partition to C. This repeats.
func (r *roster) doubts(id string, partition int, now time.Time) bool {
	p := r.peers[id]
	return now.Before(p.keepUntil) ||
		now.Sub(r.places[partition].failedAt) < returnForget && now.Sub(p.since) < proveFor
}
