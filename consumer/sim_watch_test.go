package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/stagetest"
)

const (
	// simLook is how often the watcher looks.
	simLook = 250 * time.Millisecond
	// simStill is how long a partition may stand still while rows wait, a healthy replica lives and nothing is wrong.
	simStill = 5 * time.Second
	// simSoft is how long a soft stop may take where nothing is stuck: the longest call that a drain waits for, and a
	// hand-over. simHard is how long a hard one may take whatever is stuck.
	simSoft = simSlow + 3*time.Second
	simHard = 5 * time.Second
	// simEven is after how long without a change the shares must be even.
	simEven = 10 * time.Second
)

// simWatch looks at the replicas while they run.
type simWatch struct {
	s       *sim
	over    chan struct{}
	looking sync.WaitGroup
	emitted []int
	since   []time.Time // by partition, when it last moved, or had a reason not to
	still   []bool
	said    map[string]bool // what is reported once for a process
	starve  *simStarve
}

func (s *sim) watch() {
	w := &simWatch{
		s: s, over: make(chan struct{}), emitted: make([]int, s.partitions), since: make([]time.Time, s.partitions),
		still: make([]bool, s.partitions), said: make(map[string]bool), starve: s.newStarve(),
	}
	for p := range w.since {
		w.since[p] = time.Now()
	}
	s.watcher = w
	w.looking.Go(func() {
		for {
			select {
			case <-w.over:
				return
			case <-time.After(simLook):
				w.look()
			}
		}
	})
}

func (s *sim) unwatch() {
	if w := s.watcher; w != nil {
		close(w.over)
		w.looking.Wait()
		s.watcher = nil
	}
}

func (w *simWatch) look() {
	emitted, err := w.s.emittedBy() // before what it is compared with
	w.s.mu.Lock()
	keyed := w.s.keyed()
	w.s.mu.Unlock()
	if err == nil && keyed && !slices.Equal(emitted, w.starve.emitted) {
		if err = w.starve.follow(); err == nil {
			w.starve.emitted = emitted
		}
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	var lives []*life
	healthy := false
	for _, l := range w.s.lives {
		if l.running() {
			lives = append(lives, l)
			healthy = healthy || w.s.healthy(l)
			w.lookAtStop(l)
			w.lookAtGauges(l)
		}
	}
	for p := range w.emitted {
		switch wrong := err != nil || !healthy || w.s.ongoing > 0; {
		case w.s.keyed():
			w.starve.look(p, wrong, lives)
			w.moved(p)
		case wrong:
			w.moved(p)
		default:
			w.lookAtProgress(p, emitted[p], lives)
		}
	}
}

// healthy reports whether a process can be expected to serve. sim.mu is held.
func (s *sim) healthy(l *life) bool {
	now := time.Now()
	return l.stopping.IsZero() && !slices.ContainsFunc(l.troubled, func(t span) bool { return !now.Before(t.from) && !now.After(t.to) })
}

func (w *simWatch) moved(p int) {
	if now := time.Now(); w.still[p] {
		w.still[p] = false
		w.s.t.Logf("%v partition %d moves again after %v", w.s.clock(), p, now.Sub(w.since[p]))
	}
	w.since[p] = time.Now()
}

// lookAtProgress checks that no partition stands still for long without a reason. sim.mu is held.
func (w *simWatch) lookAtProgress(p, emitted int, lives []*life) {
	rows := w.s.rows[p]
	if emitted > w.emitted[p] || emitted == len(rows) || time.Now().Before(w.s.calm) {
		w.emitted[p] = emitted
		w.moved(p)
		return
	}
	for _, l := range lives {
		if l.link.asleepNow() {
			continue
		}
		if l.exec.busyWith(p, rows[emitted]) || l.exec.waitedFor(p) {
			w.moved(p)
			return
		}
	}
	from := w.since[p]
	if w.s.calm.After(from) {
		from = w.s.calm // the latest change restarts the clock
	}
	if still := time.Since(from); still > simStill && !w.still[p] {
		w.still[p] = true
		w.s.t.Errorf("%v PROGRESS: partition %d has stood at %d of %d rows for %v though nothing is wrong (row %d)%s",
			w.s.clock(), p, emitted, len(rows), still, rows[emitted], w.s.state(p))
	}
}

// lookAtStop checks that a stopping process does stop. sim.mu is held.
func (w *simWatch) lookAtStop(l *life) {
	now := time.Now()
	if !l.hardSince.IsZero() {
		if l.link.asleepNow() {
			l.hardSince = now
		}
		if now.Sub(l.hardSince) > simHard {
			w.say(l, "STOP: a hard stop has not ended", now.Sub(l.hardSince))
		}
		return
	}
	if l.stopping.IsZero() || w.s.ongoing > 0 {
		return
	}
	from := l.stopping
	if w.s.calm.After(from) {
		from = w.s.calm
	}
	for _, t := range slices.Concat(l.troubled, w.s.troubled) {
		if to := t.to.Add(simRequest); to.After(from) { // it repeats what got no answer
			from = to
		}
	}
	if now.Sub(from) > simSoft {
		w.say(l, "STOP: a soft stop with nothing stuck has not ended", now.Sub(from))
	}
}

func (w *simWatch) say(l *life, what string, lasts time.Duration) {
	var states strings.Builder
	for p := range w.s.partitions {
		fmt.Fprintf(&states, "; partition %d%s", p, w.s.state(p))
	}
	w.sayOnce(l, what, fmt.Sprintf("after %v, with %d slots taken%s", lasts, l.exec.stuck(), states.String()))
}

// sayOnce reports something once for each process.
func (w *simWatch) sayOnce(l *life, what, how string) {
	if !w.said[l.name+what] {
		w.said[l.name+what] = true
		w.s.t.Errorf("%v %s: %s: %s", w.s.clock(), what, l.name, how)
	}
}

// lookAtGauges checks that a consumer that owns nothing reports an empty window. sim.mu is held.
func (w *simWatch) lookAtGauges(l *life) {
	for p, c := range l.consumers {
		st := c.Status()
		if st.Role == consumer.Owner {
			continue
		}
		if st.KeysWaiting != 0 || st.WaitedFor != 0 || st.WaitedForKey != "" || !st.WaitedForSince.IsZero() {
			w.sayOnce(l, "GAUGES: a consumer that owns nothing reports keys that wait", fmt.Sprintf("%s of partition %d: %d keys, %q for row %d since %v",
				st.Role, p, st.KeysWaiting, st.WaitedForKey, st.WaitedFor, st.WaitedForSince.Sub(w.s.began)))
		}
		if st.Window != 0 || st.Buffered != 0 || st.BufferedBytes != 0 || st.Head != 0 || !st.HeadSince.IsZero() {
			w.sayOnce(l, "GAUGES: a consumer that owns nothing reports a window", fmt.Sprintf("%s of partition %d: window %d, buffered %d (%d bytes), head %d since %v",
				st.Role, p, st.Window, st.Buffered, st.BufferedBytes, st.Head, st.HeadSince.Sub(w.s.began)))
		}
		if st.Pending != 0 {
			w.sayOnce(l, "GAUGES: a consumer that owns nothing reports pending rows", fmt.Sprintf("%s of partition %d: pending %d", st.Role, p, st.Pending))
		}
	}
}

// settle ends all faults, waits as long as the partitions may take to spread, and checks how they are spread.
func (s *sim) settle() {
	s.t.Helper()
	s.quieten()
	s.keepBusy(simEven)
	s.checkShares()
}

// settleBeside leaves some replicas alone with a client that spreads a rumour: each partition must have an owner and
// keep it.
func (s *sim) settleBeside(rumour string) {
	s.t.Helper()
	for _, r := range s.replicas[1+s.rng.IntN(len(s.replicas)-1):] {
		s.stopCleanly(r)
	}
	end := s.spreadRumour(rumour)
	s.disturb(0)
	s.keepBusy(simEven)
	before := s.ownersSoon()
	s.keepBusy(simEven)
	for p, owners := range s.ownersSoon() {
		if len(owners) != 1 || !slices.Equal(owners, before[p]) {
			s.t.Errorf("%v SPREAD: beside the rumour %s partition %d is owned by %v, ten seconds ago by %v; want one, and the same", s.clock(), rumour, p, owners, before[p])
		}
	}
	end()
}

// keepBusy loads a row into each partition now and then. A release that waits for a call counts as a change, for a minute
// at most: then the partitions never come to rest.
func (s *sim) keepBusy(lasts time.Duration) {
	s.t.Helper()
	latest := time.Now().Add(time.Minute)
	for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(simLook) {
		emitted := stagetest.Value(s.emittedBy())(s.t)
		for p, n := range emitted {
			if len(s.rows[p])-n < s.window/4 {
				s.loadInto(p)
			}
		}
		s.mu.Lock()
		for _, l := range s.lives {
			for p := range s.partitions {
				if l.running() && l.exec.waitedFor(p) && time.Now().Before(latest) {
					until = time.Now().Add(lasts)
				}
			}
		}
		s.mu.Unlock()
	}
}

// ownersSoon are the owners once each partition has one, or after some time: one that was given to a replica that does
// not take it is served again after neglectMost of package spread, if rows wait there.
func (s *sim) ownersSoon() (owners [][]string) {
	for range 4 * time.Second / simLook {
		owners = s.owners()
		if !slices.ContainsFunc(owners, func(some []string) bool { return len(some) != 1 }) {
			break
		}
		s.keepBusy(simLook)
	}
	return owners
}

// owners are the processes that own each partition, as they see it.
func (s *sim) owners() [][]string {
	owners := make([][]string, s.partitions)
	for _, r := range s.replicas {
		if !r.alive || !r.running() {
			continue
		}
		for p, c := range r.consumers {
			if c.Status().Role == consumer.Owner {
				owners[p] = append(owners[p], r.name)
			}
		}
	}
	return owners
}

// checkShares checks that each partition has one owner, and the shares differ by one at most.
func (s *sim) checkShares() {
	s.t.Helper()
	shares, alive := make(map[string]int), 0
	for p, owners := range s.owners() {
		if len(owners) != 1 {
			s.t.Errorf("%v SPREAD: partition %d is owned by %v, want one%s", s.clock(), p, owners, s.stateNow(p))
		}
		for _, name := range owners {
			shares[name]++
		}
	}
	for _, r := range s.replicas {
		if !r.alive || !r.running() {
			continue
		}
		alive++
	}
	for _, r := range s.replicas {
		if n := shares[r.name]; r.alive && r.running() && s.partitions > 1 && (n < s.partitions/alive || n > (s.partitions+alive-1)/alive) {
			s.t.Errorf("%v SPREAD: %s owns %d of %d partitions beside %d others, %v", s.clock(), r.name, n, s.partitions, alive-1, s.owners())
		}
	}
}

func (s *sim) stateNow(partition int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state(partition)
}

func (s *sim) ownsAny(r *simReplica) bool {
	return slices.ContainsFunc(r.consumers, func(c *consumer.Consumer) bool { return c.Status().Role == consumer.Owner })
}
