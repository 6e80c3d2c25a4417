package health

import (
	"math"
	"slices"
	"time"
)

// A refusal for lack of capacity is about the server, so the job that met it goes first
// once there is capacity again, and the law slows down. But some refusals are about one
// job: a limit of its model, its customer, its content. Such a job would be first for
// ever. Every attempt that the law allows would be its own, and each refusal would make
// those rarer. So
//
//   - when vainRetries retries in a row were refused, every other attempt is a new job's, and
//     those retries go first that were refused least often;
//   - the law does not learn of a refusal that is contradicted: since the job's last one, a call
//     that went later and weighs no less got through;
//   - a job that met more of these than chance explains is singled out: its waits grow, and the
//     law does not learn of its refusals at all. The same holds from then on for jobs of its key
//     that are refused. If no other job was refused, the law has learned nothing true, and starts
//     again.
//
// A call that weighs more may well be refused where others are not: a limiter of tokens
// has no room left for it.

const (
	// vainRetries is enough at a server that accepts some calls. Before it has accepted
	// any, one refused retry is enough.
	vainRetries = several
	// singledOutChance is the probability below which a job is singled out: that a job
	// meets by chance as many refusals, given how seldom others are refused. For example,
	// where one call in twenty is refused, four contradicted refusals are enough: 0.05⁴ is
	// below 1e-4, and 0.05³ is not.
	singledOutChance = 1e-4
	// weighsNoLess is the share of another call's weight from which on a call counts as no
	// lighter than it, because estimates of tokens are rough.
	weighsNoLess = 0.5
	// singledOutWait is the first wait of a job that is singled out. Each further wait is
	// twice the one before.
	singledOutWait = time.Second
)

// refused counts the refusals of a server, and what it accepted beside them. Single attempts
// and probes are left out.
type refused struct {
	accepted int    // attempts that succeeded
	rejected int    // attempts that were refused, of jobs that are not singled out
	jobs     []*Job // those with refusals.run > 0
	vain     int    // retries refused since one succeeded
	retried  bool   // the latest call was a retry, of whatever job
}

// refusals is what is known of the refusals of one job at its server. It is the zero value
// if the last attempt of the job was not refused.
type refusals struct {
	run    int   // refusals in a row
	weight int64 // of its calls

	// These are refused.accepted and refused.rejected as they were when the run began.
	accepted, rejected int

	since        uint64 // the number of the latest call when the run began, or was contradicted last
	contradicted bool   // a call that went after that one has got through
	counted      int    // refusals that were contradicted

	singledOut int  // refusals since the job has been singled out
	spared     bool // the law does not learn of the last one
}

// learn acts on the end of a call for a job that waits at this server, before the law
// does. It reports whether the job turns out to be the only one that is refused.
func (s *Server) learn(j *Job) (only bool) {
	if j.Single || j.call.probe {
		return false
	}
	r, retry := &s.refusals, j.tries > 1
	switch j.last.Sign { //nolint:exhaustive // the others are not about capacity
	case Refused:
		only = s.refuse(j)
		switch {
		case !retry || j.refusals.singledOut > 0:
		case r.accepted == 0: // nothing shows yet that the server accepts calls like this one
			r.vain = vainRetries
		default:
			r.vain++
		}
	case Success:
		r.accepted++
		s.contradict(j)
		if retry {
			r.vain = 0
		}
		r.forgive(j)
	default:
		r.forgive(j)
	}
	return only
}

// contradict notes that the success of a job contradicts the refusals of others.
func (s *Server) contradict(j *Job) {
	if len(s.refusals.jobs) == 0 {
		return
	}
	weight := float64(j.Owner.Weight(s.index))
	for _, other := range s.refusals.jobs {
		r := &other.refusals
		r.contradicted = r.contradicted ||
			j.call.number > r.since && weight >= weighsNoLess*float64(r.weight)
	}
}

// refuse records a refusal of a job, and reports whether no other job was refused
// although this one is singled out now.
func (s *Server) refuse(j *Job) (only bool) {
	r, all := &j.refusals, &s.refusals
	if r.run++; r.run == 1 {
		if all.ofKey(j) {
			r.singledOut = 1
		}
		all.jobs = append(all.jobs, j)
		r.weight, r.since = j.Owner.Weight(s.index), s.calls
		r.accepted, r.rejected = all.accepted, all.rejected
	} else if r.singledOut > 0 {
		r.singledOut++
	}
	r.spared = r.singledOut > 0 || r.contradicted
	if r.singledOut > 0 {
		return false
	}
	all.rejected++
	r.rejected++ // its own does not count
	if !r.contradicted {
		return false
	}
	r.contradicted, r.since = false, s.calls
	r.counted++
	accepted, rejected := float64(all.accepted-r.accepted), float64(max(0, all.rejected-r.rejected))
	others := (rejected + 1) / (accepted + rejected + 2) // the share that is refused
	if math.Pow(others, float64(r.counted)) >= singledOutChance {
		return false
	}
	r.singledOut = 1
	all.rejected -= r.run
	return rejected == 0
}

// ofKey reports whether a job of the same key has been singled out.
func (r *refused) ofKey(j *Job) bool {
	return j.Key != "" && slices.ContainsFunc(r.jobs, func(other *Job) bool {
		return other.refusals.singledOut > 0 && other.Key == j.Key
	})
}

// forgive forgets the refusals of a job: it met something else, ends, or goes to another
// server.
func (r *refused) forgive(j *Job) {
	if j.refusals.run > 0 {
		r.jobs = slices.DeleteFunc(r.jobs, func(other *Job) bool { return other == j })
		j.refusals = refusals{}
	}
}

// RefusedWait returns how long a job that was refused waits for its next attempt, besides
// the wait that the server asked for.
func (j *Job) RefusedWait(most time.Duration) time.Duration {
	if j.refusals.singledOut == 0 {
		return 0
	}
	return min(most, singledOutWait<<min(j.refusals.singledOut-1, 20))
}

// RetriesInVain reports whether so many retries were refused in a row that those go first
// that were refused least often, see [Job.Refusals].
func (s *Server) RetriesInVain() bool { return s.refusals.vain >= vainRetries }

// Yields reports whether a new job takes precedence over a retry at the next attempt.
func (s *Server) Yields() bool { return s.RetriesInVain() && s.refusals.retried }

// Refusals returns how many attempts of the job at its server were refused in a row.
func (j *Job) Refusals() int { return j.refusals.run }
