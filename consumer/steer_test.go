package consumer_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

// TestALeavingReplicaHandsOverAndTakesNothing has one of three replicas leave, then all: what nobody stands by for stays
// where it is, so that no partition is without an owner.
func TestALeavingReplicaHandsOverAndTakesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		var execs []*sleeper
		var mates []*crewMate
		for _, run := range []string{"first", "second", "third"} {
			execs = append(execs, unhurried())
			mates = append(mates, b.mate(run, execs[len(execs)-1]))
		}
		b.awaitShares([]int{2, 3, 3}, mates...)
		mates[0].spread.Leave(true)
		b.awaitShares([]int{0, 4, 4}, mates...)
		if owned := mates[0].owns(); len(owned) > 0 {
			t.Errorf("the replica that leaves owns %v", owned)
		}
		time.Sleep(10 * time.Second)
		b.awaitShares([]int{0, 4, 4}, mates...)
		mates[1].spread.Leave(true)
		mates[2].spread.Leave(true)
		time.Sleep(10 * time.Second)
		b.awaitShares([]int{0, 4, 4}, mates...)
		for _, m := range mates {
			m.spread.Leave(false)
		}
		b.awaitShares([]int{2, 3, 3}, mates...)
		if again := repeated(execs); len(again) > 0 {
			t.Errorf("%d rows were called again though nobody was killed", len(again))
		}
		rows()
		for _, m := range mates {
			m.stop()
		}
	})
}

// TestAnAvoidedPartitionMoves has each partition of a replica move to another one, which keeps it while shares stay even.
func TestAnAvoidedPartitionMoves(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		first := b.mate("first", unhurried())
		second := b.mate("second", unhurried())
		b.awaitShares([]int{4, 4}, first, second)
		for _, p := range first.owns() {
			first.spread.Avoid(p, true)
			time.Sleep(5 * time.Second)
			b.awaitShares([]int{4, 4}, first, second)
			if slices.Contains(first.owns(), p) {
				t.Errorf("partition %d has not moved: the first owns %v, the second %v", p, first.owns(), second.owns())
			}
		}
		owned := second.owns()
		time.Sleep(20 * time.Second)
		if now := second.owns(); !slices.Equal(now, owned) {
			t.Errorf("20 s later the second owns %v, want %v", now, owned)
		}
		// With nobody to take it, the partition stays.
		first.stop()
		b.awaitShares([]int{8}, second)
		second.spread.Avoid(0, true)
		time.Sleep(20 * time.Second)
		b.awaitShares([]int{8}, second)
		rows()
		second.stop()
	})
}

// TestADrainedPartitionStaysAway drains partitions of a replica, one after the other, and has others come and go: none
// comes back while another replica serves it, however uneven the shares. The last one left has them all.
func TestADrainedPartitionStaysAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		first, second := b.mate("first", unhurried()), b.mate("second", unhurried())
		b.awaitEach([]int{4, 4}, first, second)
		drained := map[int]bool{}
		keepsAway := func(when string) {
			t.Helper()
			for _, p := range first.owns() {
				if drained[p] {
					t.Errorf("%s: the first owns partition %d, which it was drained of", when, p)
				}
			}
		}
		for i, want := range [][]int{{4, 4}, {4, 4}, {4, 4}, {4, 4}, {3, 5}, {2, 6}} {
			p := first.owns()[0]
			drained[p] = true
			first.spread.Avoid(p, true)
			b.await(fmt.Sprintf("partition %d to move", p), func() bool { return slices.Contains(second.owns(), p) })
			b.awaitEach(want, first, second)
			keepsAway(fmt.Sprint("drained of ", i+1))
		}
		time.Sleep(20 * time.Second)
		b.awaitEach([]int{2, 6}, first, second)
		keepsAway("20 s later")
		third := b.mate("third", unhurried())
		b.awaitEach([]int{2, 3, 3}, first, second, third)
		keepsAway("with a third")
		second.kill()
		b.awaitEach([]int{2, 6}, first, third)
		keepsAway("when the second was killed")
		third.stop()
		b.awaitEach([]int{8}, first) // nobody else serves them
		fourth := b.mate("fourth", unhurried())
		b.awaitEach([]int{2, 6}, first, fourth)
		keepsAway("with a fourth")
		for p := range drained {
			first.spread.Avoid(p, false)
		}
		b.awaitEach([]int{4, 4}, first, fourth)
		rows()
		first.stop()
		fourth.stop()
	})
}

// TestAReplicaThatFellSilentIsLostForAMinute kills a replica and stops another, and the same with two that are drained.
func TestAReplicaThatFellSilentIsLostForAMinute(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		mates := []*crewMate{b.mate("first", &sleeper{}), b.mate("second", &sleeper{}), b.mate("third", &sleeper{})}
		drained, ended := b.mate("drained", &sleeper{}), b.mate("ended", &sleeper{})
		drained.spread.Leave(true)
		ended.spread.Leave(true)
		time.Sleep(5 * time.Second)
		mates[0].kill()
		mates[1].stop()
		drained.kill()
		ended.stop()
		time.Sleep(10 * time.Second)
		lost := mates[2].spread.Lost()
		if got := slices.Sorted(maps.Keys(lost)); !slices.Equal(got, []string{"drained", "first"}) {
			t.Errorf("ten seconds later %v are lost, want the two that were killed", got)
		}
		time.Sleep(time.Minute)
		if lost := mates[2].spread.Lost(); len(lost) > 0 {
			t.Errorf("a minute later %v are lost, want none", lost)
		}
		mates[2].stop()
	})
}

// TestAHeldPartitionStartsNoRow holds a partition with calls in flight and rows in the queue behind them, twice, and lets
// it go on: each row is called once, in order. What it holds when it stops is served by the next one.
func TestAHeldPartitionStartsNoRow(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		exec := newQueuer(t, 2, func() time.Duration { return time.Second })
		r := b.start("held", exec)
		b.load(20)
		time.Sleep(2500 * time.Millisecond)
		for i := range 2 {
			r.Pause(true)
			time.Sleep(1500 * time.Millisecond)
			made, stored := exec.made(), b.stored("RESULTS", streams.ResultSubject("results", "stage", 0))
			if made != stored || made == 0 || made == 20 {
				t.Errorf("a second after it was held: %d calls, %d results, want equally many", made, stored)
			}
			b.loadFrom(20+3*i, 3)
			time.Sleep(time.Minute)
			if now := exec.made(); now != made || !r.Status().Paused || r.Status().Role != consumer.Owner {
				t.Errorf("a minute later: %d calls, want %d; status %+v", now, made, r.Status())
			}
			r.Pause(false)
			time.Sleep(500 * time.Millisecond)
		}
		b.until(26)
		if got := exec.made(); got != 26 {
			t.Errorf("%d calls for 26 rows", got)
		}
		b.loadFrom(26, 14)
		time.Sleep(2500 * time.Millisecond)
		r.Pause(true)
		time.Sleep(time.Minute)
		r.stop(t)
		b.start("next", newQueuer(t, 2, func() time.Duration { return time.Second }))
		b.until(40)
		b.check(40)
	})
}

// TestAReplicaThatStandsAsideHandsOver has the owner of the only partition stand aside: the standby owns it, until it is
// killed. Then rows wait, and the first takes the partition back.
func TestAReplicaThatStandsAsideHandsOver(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		sleeps := func() *queuer { return newQueuer(t, 2, func() time.Duration { return time.Second }) }
		first := b.start("first", sleeps())
		b.load(10)
		first.awaitOwner(b)
		second := b.start("second", sleeps())
		time.Sleep(3 * time.Second)
		first.StandAside(true)
		second.awaitOwner(b)
		if got := first.Status().Role; got != consumer.Standby || !first.StandsAside() {
			t.Errorf("the first is %s, aside %v", got, first.StandsAside())
		}
		b.loadFrom(10, 20)
		time.Sleep(time.Second)
		second.kill()
		b.until(30)
		if got := first.Status().Role; got != consumer.Owner || first.StandsAside() {
			t.Errorf("after the second was killed the first is %s, aside %v", got, first.StandsAside())
		}
		b.check(30)
	})
}

// TestAPartitionIsNotTakenBackFromWhoAsksForIt takes the pin from a replica whose window is full of calls that take
// minutes, as a new leader of the durable consumer does: nobody is pinned then, and no row is left that would bring the
// pin back. The replica that stands aside goes on doing so.
func TestAPartitionIsNotTakenBackFromWhoAsksForIt(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		first := b.start("first", newQueuer(t, 2, func() time.Duration { return time.Second }))
		b.load(2)
		first.awaitOwner(b)
		second := b.start("second", newQueuer(t, 1, func() time.Duration { return 10 * time.Minute }))
		time.Sleep(3 * time.Second)
		first.StandAside(true)
		time.Sleep(3 * time.Second)
		b.loadFrom(2, 200)
		b.await("a full window", func() bool { return second.Status().Window == 64 })
		owner := second.Status().Owner
		b.unpin()
		time.Sleep(time.Minute)
		if got := second.Status(); !first.StandsAside() || got.Role != consumer.Owner || got.Owner != owner {
			t.Errorf("a minute later the first stands aside: %v; the second is %s by %s, want owner by %s", first.StandsAside(), got.Role, got.Owner, owner)
		}
		second.kill()
		first.awaitOwner(b)
		first.kill()
	})
}
