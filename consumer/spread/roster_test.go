package spread

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What a replica of the model is.
const (
	sound  = "sound"
	silent = "silent" // it announces itself and serves nothing
	liar   = "liar"   // it says that it serves everything
	sick   = "sick"   // it says that it stands by and takes nothing that it is given
	away   = "away"   // nobody hears of it
)

// crew is a model of some replicas and of who really serves what. Each announces itself
// every step.
type crew struct {
	t       *rapid.T
	rng     *rand.Rand
	now     time.Time
	names   []string
	kinds   []string
	rosters []*roster
	owner   []int // of each partition; -1: nobody
	last    []int // who appended last to its log; -1: nobody
	drains  []int // steps until its owner, who releases it, has let go
	moves   []int // how often each changed hands
	idle    []int // steps without an owner
}

const crewStep = 200 * time.Millisecond

func newCrew(t *rapid.T, partitions, replicas int) *crew {
	c := &crew{t: t, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "orders"), 0)), now: time.Unix(1, 0), moves: make([]int, partitions), drains: make([]int, partitions), idle: make([]int, partitions)}
	c.owner, c.last = slices.Repeat([]int{-1}, partitions), slices.Repeat([]int{-1}, partitions)
	for i := range replicas {
		c.names = append(c.names, fmt.Sprintf("r%02d", i))
		c.kinds = append(c.kinds, away)
		c.rosters = append(c.rosters, nil)
	}
	return c
}

// become changes what a replica is. One that was away, or no replica of ours, starts
// over.
func (c *crew) become(i int, kind string) {
	if was := c.kinds[i]; was != sound && was != sick || kind != sound && kind != sick {
		c.rosters[i] = newRoster(c.names[i], len(c.owner), c.now)
		for p := range c.owner {
			if c.owner[p] == i {
				c.owner[p] = -1
			}
		}
	}
	c.kinds[i] = kind
}

// step lets a step pass: all announce themselves, then each does what it should, in an
// order that is drawn.
func (c *crew) step() {
	c.now = c.now.Add(crewStep)
	for i, kind := range c.kinds {
		if kind == away {
			continue
		}
		a := c.rosters[i].announce()
		switch kind {
		case silent:
			a = announcement{ID: c.names[i], Partitions: len(c.owner)}
		case liar:
			a = announcement{ID: c.names[i], Partitions: len(c.owner)}
			for p := range c.owner {
				a.Owned = append(a.Owned, p)
			}
		}
		for j, r := range c.rosters {
			if j != i && r != nil {
				r.hear(a, c.now)
			}
		}
	}
	for _, i := range c.rng.Perm(len(c.names)) {
		if c.kinds[i] == sound || c.kinds[i] == sick {
			c.rosters[i].forget(c.now)
			for p, serve := range c.rosters[i].serve(c.now) {
				c.act(i, p, serve)
			}
		}
	}
	for p, o := range c.owner {
		if c.idle[p]++; o >= 0 {
			c.idle[p] = 0
		}
	}
}

func indexes(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// act does what a replica does about one partition.
func (c *crew) act(i, p int, serve bool) {
	r := c.rosters[i]
	pl := &r.places[p]
	switch {
	case c.owner[p] == i && !serve:
		if pl.released.IsZero() {
			r.release(p, c.now)
		}
		if c.drains[p]--; c.drains[p] <= 0 {
			c.owner[p] = -1
			r.own(p, NotServed, c.now)
		}
	case c.owner[p] == i:
		c.drains[p] = 2
	case serve && c.owner[p] < 0 && c.kinds[i] == sound && pl.standby:
		c.owner[p], c.last[p], pl.standby = i, i, false
		c.moves[p]++
		r.own(p, Served, c.now)
	default:
		pl.standby = serve
		if at := r.lookAt(p); !serve && !at.IsZero() && !at.After(c.now) {
			seen := Sight{Pinned: c.owner[p] >= 0, Rows: true}
			if seen.Log = !seen.Pinned || r.disputed(p); seen.Log && c.last[p] >= 0 {
				seen.Owner = c.names[c.last[p]] + ".term"
			}
			r.saw(p, seen, c.now)
		}
		if c.now.UnixMilli()%3000 == 0 { // as Spread does, one partition each time
			r.places[int(c.now.UnixMilli()/3000)%len(c.owner)].look = true
		}
	}
}

func (c *crew) pass(d time.Duration) {
	for range int(d / crewStep) {
		c.step()
	}
}

func (c *crew) count(kind string) (n int) {
	for _, k := range c.kinds {
		if k == kind {
			n++
		}
	}
	return n
}

// shares are how many partitions each sound replica serves, smallest first.
func (c *crew) shares() (list []int) {
	for i, kind := range c.kinds {
		if kind == sound {
			n := 0
			for _, o := range c.owner {
				if o == i {
					n++
				}
			}
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

func (c *crew) checkEven(when string) {
	if shares := c.shares(); shares[len(shares)-1]-shares[0] > 1 || slices.Contains(c.owner, -1) {
		c.t.Fatalf("%s: shares %v, owners %v, replicas %v", when, shares, c.owner, c.kinds)
	}
}

// TestSharesAreEvenAgainFromAnyHistory draws what becomes of the replicas; ten seconds
// after the last change, when all that are there are sound, every partition is served and
// the shares are even.
func TestSharesAreEvenAgainFromAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCrew(t, rapid.IntRange(1, 12).Draw(t, "partitions"), rapid.IntRange(1, 5).Draw(t, "replicas"))
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			i := rapid.IntRange(0, len(c.names)-1).Draw(t, "replica")
			c.become(i, rapid.SampledFrom([]string{sound, silent, liar, sick, away}).Draw(t, "becomes"))
			c.pass(time.Duration(rapid.IntRange(1, 40).Draw(t, "for")) * crewStep)
		}
		c.become(0, sound)
		for i, kind := range c.kinds {
			if kind != sound && kind != away {
				c.become(i, rapid.SampledFrom([]string{sound, away}).Draw(t, "in the end"))
			}
		}
		c.pass(10 * time.Second)
		c.checkEven("ten seconds after the last change")
		before := slices.Clone(c.moves)
		c.pass(20 * time.Second)
		if !slices.Equal(c.moves, before) {
			t.Fatalf("partitions went on to move: %v, then %v", before, c.moves)
		}
	})
}

// TestWhoDoesNotServeCostsItsOwnShareOnly has some replicas that are sound, and one or
// two that are not, for good.
func TestWhoDoesNotServeCostsItsOwnShareOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, good := rapid.IntRange(1, 12).Draw(t, "partitions"), rapid.IntRange(1, 3).Draw(t, "sound ones")
		bad := rapid.SliceOfN(rapid.SampledFrom([]string{silent, liar, sick}), 1, 2).Draw(t, "others")
		c := newCrew(t, partitions, good+len(bad))
		where := rapid.Permutation(indexes(len(c.names))).Draw(t, "names")
		goodFirst := rapid.Bool().Draw(t, "the sound ones first")
		begin := func(sounds bool) {
			for n, i := range where {
				if n < good == sounds {
					c.become(i, sound)
					if !sounds {
						c.become(i, bad[n-good])
					}
					c.pass(time.Duration(rapid.IntRange(0, 10).Draw(t, "between")) * crewStep)
				}
			}
		}
		begin(goodFirst)
		c.pass(5 * time.Second)
		begin(!goodFirst)
		c.pass(20 * time.Second)
		if slices.Contains(c.owner, -1) && c.count(sick) == 0 {
			t.Fatalf("nobody serves some of %v beside %v", c.owner, c.kinds)
		}
		before := slices.Clone(c.moves)
		for range int(time.Minute / crewStep) {
			c.step()
			for p, n := range c.idle {
				if n > int(5*time.Second/crewStep) {
					t.Fatalf("nobody has served partition %d for %v beside %v", p, time.Duration(n)*crewStep, c.kinds)
				}
			}
		}
		moved, total := 0, 0
		for p := range before {
			if n := c.moves[p] - before[p]; n > 0 {
				moved++
				total += n
			}
		}
		share := (partitions + len(c.names) - 1) / len(c.names)
		if most := c.count(sick) * share; moved > most || total > 8*most {
			t.Fatalf("in a minute %d partitions moved %d times, want at most the %d of who does not take what it is given: %v", moved, total, most, c.kinds)
		}
	})
}

// A partition that is released and that nobody takes stands still while it drains and
// until it is taken over. That is a third of the time at most, whether those who stand by
// for it stay and take nothing, or die and come back under other ids.
func TestReleasesForNothingCostAThirdOfTheTime(t *testing.T) {
	const step, lasts = 100 * time.Millisecond, 10 * time.Minute
	for _, tt := range []struct {
		name  string
		drain time.Duration
		// ghosts are those that stand by for both partitions at an instant, and serve none.
		ghosts func(at time.Duration) []string
	}{
		{"one", 0, func(time.Duration) []string { return []string{"z"} }},
		{"one, long calls", 25 * time.Second, func(time.Duration) []string {
			return []string{"a"}
		}},
		{"three", time.Second, func(time.Duration) []string {
			return []string{"a", "b", "z"}
		}},
		{"a new one each second", 0, func(at time.Duration) []string {
			return []string{fmt.Sprint("a", int(at.Seconds()))}
		}},
		{"two new ones each second", time.Second, func(at time.Duration) []string {
			second := int(at.Seconds())
			return []string{fmt.Sprint("a", second), fmt.Sprint("z", second)}
		}},
		{
			"one that dies after a second, each half minute", 25 * time.Second,
			func(at time.Duration) []string {
				if at%(30*time.Second) < time.Second {
					return []string{fmt.Sprint("a", int(at.Seconds()))}
				}
				return nil
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Unix(1, 0)
			r := newRoster("us", 2, began)
			var still, drained [2]time.Duration // drained: how long it has drained already
			for at := time.Duration(0); at < lasts; at += step {
				now := began.Add(at)
				for _, id := range tt.ghosts(at) {
					r.hear(announcement{ID: id, Partitions: 2, Standby: []int{0, 1}}, now)
				}
				r.forget(now)
				for p, serve := range r.serve(now) {
					pl := &r.places[p]
					switch {
					case pl.service == NotServed && serve:
						r.own(p, Served, now)
					case pl.service == NotServed:
						if look := r.lookAt(p); !look.IsZero() && !look.After(now) {
							r.saw(p, Sight{Rows: true}, now)
						}
						still[p] += step
					case pl.released.IsZero() && serve:
						drained[p] = 0
					case drained[p] >= tt.drain: // its calls have ended
						r.own(p, NotServed, now)
						still[p] += step
					default: // a release goes on even if the others are gone meanwhile
						if pl.released.IsZero() {
							r.release(p, now)
						}
						drained[p] += step
						still[p] += step
					}
				}
			}
			for p := range still {
				if most := lasts / 3; still[p] > most {
					t.Errorf("partition %d stands still for %v of %v, want at most %v",
						p, still[p], lasts, most)
				}
			}
		})
	}
}

// Rows may come after the look that follows a release. A replica that announces that it
// stands by, and takes none of them, delays all its partitions together and not one after
// the other.
func TestRowsOfAllReleasedPartitionsAreNoticedAtOnce(t *testing.T) {
	const partitions, still = 16, 4500 * time.Millisecond
	now := time.Unix(1, 0)
	r := newRoster("b", partitions, now)
	for p := range r.places {
		r.own(p, Served, now)
	}
	step := func() (serves []bool) {
		now = now.Add(100 * time.Millisecond)
		r.hear(announcement{ID: "a", Partitions: partitions, Standby: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}, now)
		return r.serve(now)
	}
	look := func(rows bool) {
		for p := range r.places {
			if at := r.lookAt(p); r.places[p].service == NotServed && !at.IsZero() && !at.After(now) {
				r.saw(p, Sight{Rows: rows}, now)
			}
		}
	}
	var released []int
	for p, serve := range step() {
		if !serve {
			released = append(released, p)
			r.release(p, now)
			r.own(p, NotServed, now)
		}
	}
	if len(released) != partitions/2 {
		t.Fatalf("%d of %d partitions are released to a standby", len(released), partitions)
	}
	for range 10 {
		step()
		look(false)
	}
	for _, p := range released {
		if at := r.lookAt(p); !at.IsZero() {
			t.Fatalf("partition %d, which a standby should take, is looked at again after %v", p, at.Sub(now))
		}
	}
	came := now
	nextCheck := now.Add(checkEvery)
	for now.Sub(came) < still {
		serves := step()
		if !now.Before(nextCheck) {
			r.checkNext(serves, now)
			nextCheck = now.Add(checkEvery)
		}
		look(true)
	}
	for p, serve := range r.serve(now) {
		if !serve {
			t.Errorf("nobody serves partition %d %v after rows came", p, still)
		}
	}
}

// Calls of our own compete with those of the replicas that serve partitions and take
// rows, and with no others.
func TestOthersAreThoseThatServe(t *testing.T) {
	now := time.Unix(1, 0)
	r := newRoster("us", 4, now)
	hear := func(want int, a announcement) {
		t.Helper()
		a.Partitions = 4
		if r.hear(a, now); r.serving() != want {
			t.Errorf("after %+v: %d others serve, want %d", a, r.serving(), want)
		}
	}
	hear(0, announcement{ID: "standby", Standby: []int{0, 1}})
	hear(1, announcement{ID: "owner", Owned: []int{2}})
	hear(2, announcement{ID: "instead", Owned: []int{3}, Taken: []int{3}})
	hear(1, announcement{ID: "owner", Owned: []int{2}, Leaving: true})
	hear(2, announcement{ID: "standby", Owned: []int{2}})
	hear(1, announcement{ID: "instead"})
	now = now.Add(forgetAfter + time.Millisecond)
	if r.forget(now); r.serving() != 0 {
		t.Errorf("%d others serve long after the last was heard", r.serving())
	}
}
