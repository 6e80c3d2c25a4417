package pool

import (
	"math"
	"slices"
	"time"
)

// A capacity error is about the server, so the job that met it goes first once there is capacity again, and the law
// slows down. Some are about the job alone: a limit of its model, its customer, its content. Such a job would be first
// for ever: every attempt that the law allows would be its own, and each refusal would make those rarer. So
//
//   - when some retries in a row were refused, every other attempt is a new job's, if any waits, and those retries go
//     first that were refused least often;
//   - the law does not learn of a refusal that is contradicted: since the job's last one, a call that went later and
//     weighs no less got through;
//   - a job that met more of these than chance explains is refused alone: its waits grow, and the law does not learn of
//     its refusals at all. The same holds from then on for those of its key that are refused. Where no other job was, what
//     the law has learned of the server is void.
//
// A call that weighs more may well be refused where others are not: a limiter of tokens has no more room for it.

const (
	// So many retries in a row are refused before new jobs have every other attempt; one as long as no call got through.
	vainRetries = 5
	// Refusals are a job's own if others are refused so seldom that chance would refuse it as often once in ten thousand.
	aloneChance = 1e-4
	// A call counts as no lighter than another if it weighs this share of it: estimates of tokens are rough.
	weighsNoLess = 0.5
	// The first wait of a job that is refused alone; each is twice the one before, at most [Config.ProbeInterval].
	aloneWait = time.Second
)

// refusals is what is known of a job's capacity errors at its server. The zero value: its last attempt met none.
type refusals struct {
	run    int // in a row; as long as it is not 0 the job is in server.refused
	weight int64

	accepted, rejected int // attempts of others until the first of them, by server.accepted and rejected

	since        uint64 // task.seq of the latest attempt that went before the last refusal that counted
	contradicted bool   // a later one has got through
	counted      int    // refusals that were contradicted

	alone  int  // refusals since it is known to be refused alone
	spared bool // the law does not learn of the last one
}

// learn acts on the verdict on an attempt of t, which waits for this server, before the law does. It reports whether t
// turns out to be refused alone while no other job was refused.
func (v *server) learn(t *task) (isolated bool) {
	if t.once || t.att.Probe {
		return false
	}
	retry := t.att.Number > 1
	switch t.verdict.Class { //nolint:exhaustive // the others are not about capacity
	case Capacity:
		isolated = v.refuse(t)
		switch {
		case !retry || t.refusals.alone > 0:
		case v.accepted == 0: // nothing shows yet that the server accepts calls like this one at all
			v.vain = vainRetries
		default:
			v.vain++
		}
	case OK:
		v.accepted++
		v.contradict(t)
		if retry {
			v.vain = 0
		}
		v.forgive(t)
	default: // not about capacity
		v.forgive(t)
	}
	return isolated
}

// contradict notes that t, which succeeded, contradicts the refusals of other jobs.
func (v *server) contradict(t *task) {
	if len(v.refused) == 0 {
		return
	}
	weight := float64(t.work.weight(t.att.Server))
	for _, other := range v.refused {
		r := &other.refusals
		r.contradicted = r.contradicted || t.seq > r.since && weight >= weighsNoLess*float64(r.weight)
	}
}

func (v *server) refuse(t *task) (isolated bool) {
	r := &t.refusals
	if r.run++; r.run == 1 {
		if v.refusesKey(t) {
			r.alone = 1
		}
		v.refused = append(v.refused, t)
		r.weight, r.since = t.work.weight(t.att.Server), v.attempts
		r.accepted, r.rejected = v.accepted, v.rejected
	} else if r.alone > 0 {
		r.alone++
	}
	r.spared = r.alone > 0 || r.contradicted
	if r.alone > 0 {
		return false
	}
	v.rejected++
	r.rejected++ // its own does not count
	if !r.contradicted {
		return false
	}
	r.contradicted, r.since = false, v.attempts
	r.counted++
	accepted, rejected := float64(v.accepted-r.accepted), float64(max(0, v.rejected-r.rejected))
	others := (rejected + 1) / (accepted + rejected + 2) // the share that is refused
	if math.Pow(others, float64(r.counted)) >= aloneChance {
		return false
	}
	r.alone = 1
	v.rejected -= r.run
	return rejected == 0
}

// refusesKey reports whether a job of the same key is refused alone.
func (v *server) refusesKey(t *task) bool {
	return t.key != "" && slices.ContainsFunc(v.refused, func(other *task) bool {
		return other.refusals.alone > 0 && other.key == t.key && other.lane == t.lane
	})
}

// forgive forgets the refusals of t: it met something else, ends, or goes to another server.
func (v *server) forgive(t *task) {
	if t.refusals.run > 0 {
		v.refused = slices.DeleteFunc(v.refused, func(other *task) bool { return other == t })
		t.refusals = refusals{}
	}
}

// wait returns how long a job that was refused waits for its next attempt besides what the server asks for.
func (r *refusals) wait(most time.Duration) time.Duration {
	if r.alone == 0 {
		return 0
	}
	return min(most, aloneWait<<min(r.alone-1, 20))
}

// firstReady returns the job of those that may have their next attempt which goes first.
func (v *server) firstReady() *task {
	if v.vain < vainRetries {
		return v.ready.first()
	}
	var least *task
	for _, t := range v.ready.tasks {
		if least == nil || t.refusals.run < least.refusals.run || t.refusals.run == least.refusals.run && older(t, least) {
			least = t
		}
	}
	return least
}

// yields reports whether the next attempt is a new job's, if there is one.
func (v *server) yields() bool { return v.vain >= vainRetries && v.retried }
