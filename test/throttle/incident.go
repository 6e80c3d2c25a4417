package throttle

import (
	"errors"
	"sort"

	"github.com/llm-stage/stage/pool"
)

// A failure is the fate of a call that is neither served nor refused for lack of capacity.
type failure struct {
	verdict pool.Verdict
	sec     float64 // from arrival until the caller has the verdict
	// Reached means that a server got the call, which may cost money. Admitted means that
	// it failed on the call after its limiter had admitted it.
	reached, admitted bool
}

// The failures, with the origin that package llm gives them.
var (
	// Refused: nothing listens, or the route is gone.
	refusedConn = &failure{
		verdict: pool.Verdict{Class: pool.Transient, Origin: pool.OfNetwork, Err: errors.New("connection refused")}, sec: 0.001,
	}
	// BadGateway: a gateway answers in the place of the server behind it.
	badGateway = &failure{
		verdict: pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errors.New("502")}, sec: 0.005, reached: true,
	}
	// Unavailable is a lack of capacity to the pool rather than a failure.
	unavailable = &failure{
		verdict: pool.Verdict{Class: pool.Capacity, Err: errors.New("503")}, sec: 0.06, reached: true,
	}
	// ServerError: the server failed on the call.
	serverError = &failure{
		verdict: pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errors.New("500")}, sec: 0.06, reached: true, admitted: true,
	}
	// Silence: the connection stands, and no answer comes until the caller's time-out.
	silence = &failure{
		verdict: pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errors.New("no answer in 10s")}, sec: 10, reached: true,
	}
	// Reset and gatewayReset are what becomes of calls in flight when a server goes down,
	// without a gateway and with one.
	reset = &failure{
		verdict: pool.Verdict{Class: pool.Transient, Origin: pool.OfNetwork, Err: errors.New("connection reset")}, reached: true, admitted: true,
	}
	gatewayReset = &failure{verdict: badGateway.verdict, reached: true, admitted: true}
)

// incident is a time in which calls fail whatever the rate.
type incident struct {
	from, to float64
	fails    *failure // what becomes of a call that arrives
	// Meets reports whether a call fails, the n-th to arrive in the incident; nil means
	// all do.
	meets func(id callID, n int) bool
	// Cuts is what becomes of the calls in flight when the incident begins; nil means
	// that they are served. Those that meet silence end with the time-out.
	cuts *failure
	// Loss is the share of the capacity that is gone.
	loss float64

	arrived int
}

// incidents are in the order of time and do not overlap.
type incidents []*incident

// at returns the incident at instant t, or nil.
func (in incidents) at(t float64) *incident {
	i := sort.Search(len(in), func(i int) bool { return in[i].to > t })
	if i < len(in) && in[i].from <= t {
		return in[i]
	}
	return nil
}

// failure returns what becomes of a call that arrives now; nil means the server decides.
func (in incidents) failure(now float64, id callID) *failure {
	i := in.at(now)
	if i == nil {
		return nil
	}
	i.arrived++
	if i.meets != nil && !i.meets(id, i.arrived) {
		return nil
	}
	return i.fails
}

// cut returns what an incident makes of a call that would be served in [from, to), and
// how long after from; nil: nothing.
func (in incidents) cut(from, to float64) (*failure, float64) {
	for _, i := range in {
		if i.cuts == nil || i.from <= from || i.from >= to {
			continue
		}
		if i.cuts.sec > 0 {
			return i.cuts, i.cuts.sec // since it arrived
		}
		return i.cuts, i.from - from
	}
	return nil, 0
}

// lost returns how many of the calls that the server would admit by then the incidents
// leave none of, where offered returns those it would admit by an instant.
func (in incidents) lost(until float64, offered func(until float64) float64) float64 {
	lost := 0.0
	for _, i := range in {
		if i.from < until {
			lost += i.loss * (offered(min(i.to, until)) - offered(i.from))
		}
	}
	return lost
}

// outages returns when each time begins and ends in which no call is served. Incidents
// that follow one another at once are one outage.
func (in incidents) outages() (list [][2]float64) {
	for n, i := range in {
		switch {
		case i.loss < 1:
		case n > 0 && in[n-1].to == i.from:
			list[len(list)-1][1] = i.to
		default:
			list = append(list, [2]float64{i.from, i.to})
		}
	}
	return list
}
