package pool

// haltOrder is what [Pool.Halt] and [Pool.Continue] ask for.
type haltOrder struct{ why error } // nil: continue

// Halt holds all jobs and refuses single attempts until [Pool.Continue], and returns at once. Calls in flight go on, and
// their jobs wait where another attempt is needed. Nothing probes, deadlines stand still, and an outage fails no job
// meanwhile. Why is the error of the pause, of kind [Operator], that Stats reports. A pool that is halted stays so, with
// the error that it has.
func (p *Pool[In, Out]) Halt(why error) { p.sched.inbox.steer(&haltOrder{why}) }

// Continue ends what [Pool.Halt] began, and has a pool that is paused for another reason probe at once. It returns at
// once.
func (p *Pool[In, Out]) Continue() { p.sched.inbox.steer(&haltOrder{}) }

// Probe has the next probe of each pause or outage go at once, or with the next job if none waits. While a probe is in
// flight that is the next one. It returns at once, and does nothing while the pool is halted, or not paused.
func (p *Pool[In, Out]) Probe() {
	b := p.sched.inbox
	b.mu.Lock()
	b.probe = true
	b.mu.Unlock()
	b.signal()
}

// steer passes an order to the scheduler. Of several that it has not yet acted on the last one counts.
func (b *inbox) steer(o *haltOrder) {
	b.mu.Lock()
	b.halt = o
	b.mu.Unlock()
	b.signal()
}

// halted reports whether an operator holds the jobs.
func (s *scheduler) halted() bool { return s.halt.Kind != NotPaused }

// setHalt halts the pool, with the error why, or ends that.
func (s *scheduler) setHalt(why error) {
	switch {
	case why == nil:
		if s.halted() {
			for i := range s.servers { // a row that an outage has held for long gets the probe that goes now
				s.servers[i].checked = s.tick
			}
		}
		s.halt = Pause{}
		s.probeNow()
	case !s.halted():
		s.halt = Pause{Kind: Operator, Err: why, Since: s.tick}
	}
}

// probeNow makes the next probe of each open breaker due.
func (s *scheduler) probeNow() {
	if s.halted() {
		return
	}
	if s.pause.isOpen() {
		s.pause.Next = s.tick
	}
	for i := range s.servers {
		if b := &s.servers[i].breaker; b.isOpen() {
			b.Next = s.tick
		}
	}
}
