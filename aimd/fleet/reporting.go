package fleet

import (
	"slices"

	"github.com/llm-stage/stage/aimd"
)

const (
	// reportSec is the time between two reports. A refusal that is news goes at once, but
	// no sooner than hastySec after the last report.
	reportSec = 0.5
	// A member is hungry that has waited for its turns for so long since the last report:
	// half of the time between two. One that was not hungry says so at once. Less would
	// be met by chance, whenever the law drains.
	hungrySec = 0.25
	// A member that is not hungry wants so much more than it has sent, and never less
	// than half of what it wanted before.
	wantMore, wantLess = 1.25, 0.5
	// meanSec is over how long the rate of a member is averaged.
	meanSec = 2.0
)

// reporting decides when a member reports, and what of its calls. Each refusal is in two
// reports, since one may be lost. So the list has the refusals that the last report told,
// and behind them the fresh ones, which no report has told yet.
type reporting struct {
	at     float64 // the last report; none means there was none
	seq    uint64
	urgent bool // the leader must hear of something at once

	sent, accepted, refused uint64
	refusals                []refusal
	fresh                   int
	news                    uint64 // refusals that were ever listed; the rest of a burst is only counted

	before  uint64  // sent, at the last report
	rate    float64 // calls per second of late
	want    float64
	hungry  bool // as last reported
	waiting waiting

	restart bool // the server is back from an outage
}

// due reports whether a report must go now.
func (r *reporting) due(sec float64) bool {
	switch {
	case r.at == none || sec-r.at >= reportSec:
		return true
	case sec-r.at < hastySec:
		return false
	}
	return r.urgent || !r.hungry && r.waiting.total(sec) >= hungrySec
}

// refuse notes a refusal for the next report, which goes at once if it is urgent.
func (r *reporting) refuse(f flight, h aimd.Hint, urgent bool) {
	if r.fresh >= reportMost/2 {
		return
	}
	news := refusal{Turn: min(max(0, f.turn), turnsMost), Epoch: f.epoch, Term: f.term, RetryAfter: min(max(0, h.RetryAfter.Seconds()), 1e9)}
	if h.Remaining0 {
		news.Reset = min(max(0, h.Reset.Seconds()), 1e9)
	}
	r.refusals = append(r.refusals, news)
	r.fresh++
	r.news++
	r.urgent = r.urgent || urgent
}

// next returns the report that goes now, without what it says of the member itself.
func (r *reporting) next(sec float64) report {
	elapsed := reportSec
	if r.at != none {
		elapsed = max(sec-r.at, 1e-3)
	}
	r.rate += (float64(r.sent-r.before)/elapsed - r.rate) * min(1, elapsed/meanSec)
	r.hungry = r.waiting.total(sec) >= hungrySec*min(1, elapsed/reportSec)
	r.want = min(max(wantMore*r.rate, wantLess*r.want), rateMost)
	r.seq++
	msg := report{
		Report: 1, Seq: r.seq, Sent: r.sent, Accepted: r.accepted, Refused: r.refused, Want: r.want, Hungry: r.hungry,
		Refusals: slices.Clone(r.refusals), News: r.news, Restart: r.restart,
	}
	r.refusals, r.fresh = slices.Delete(r.refusals, 0, len(r.refusals)-r.fresh), 0
	r.at, r.before, r.urgent, r.restart = sec, r.sent, false, false
	r.waiting.sum, r.waiting.since = 0, sec
	return msg
}

// waiting sums the time that calls have waited for turns since the last report.
type waiting struct {
	sum        float64 // until since
	since, end float64 // the last wait; there is none if end is not after since
}

// total returns the sum until now.
func (w *waiting) total(sec float64) float64 { return w.sum + max(0, min(sec, w.end)-w.since) }

// hold notes that a call waits, from now until the instant at which it may go.
func (w *waiting) hold(sec, end float64) { *w = waiting{sum: w.total(sec), since: sec, end: end} }
