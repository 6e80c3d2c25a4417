package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// The messages. Anybody who may publish on their subjects can send any message. So a
// member ignores every message that is out of bounds; the others can only cost
// efficiency.

const (
	curveStep  = 0.1  // seconds between two points of a plan's curve
	curveSteps = 10   // points
	rateMost   = 1e6  // calls per second; more is a lie
	turnsMost  = 1e15 // turns that a plan may count: each term goes on from the last
	membersMax = 1e5  // members of one fleet
	termLeap   = 1e6  // a term further ahead than this is a lie, else one message could end all elections
	reportMost = 64   // refusals in one report
	waitMost   = 3600 // seconds that a plan may pause
	metAgoMost = 1e8  // seconds since a limit was met
	hintMost   = 60   // seconds that a reported refusal may pause; if the report is true, the next call is refused as well
)

// plan is what the leader tells all members, twice a second and when something changes.
type plan struct {
	Plan   int     `json:"plan"` // version of the format, 1
	Term   uint64  `json:"term"`
	Leader string  `json:"leader"`
	Seq    uint64  `json:"seq"`
	Sent   float64 `json:"sent"` // seconds by the leader's clock, which begins anywhere

	// Turns is how many turns had come due when it was sent, over all members; Curve how
	// many more will have by each of the next steps of 0.1 s; Then is the rate from there
	// on.
	Turns float64   `json:"turns"`
	Epoch int       `json:"epoch"` // counts the refusals that changed the rate; one of a turn of an earlier epoch doesn't
	Curve []float64 `json:"curve"`
	Then  float64   `json:"then"`

	Rate     float64          `json:"rate"`            // calls per second at present
	Estimate float64          `json:"estimate"`        // that a new leader would begin at, or 0
	Pause    float64          `json:"pause,omitempty"` // seconds until the pause that the server asked for ends; 0 means none
	Reason   aimd.PauseReason `json:"reason,omitempty"`
	Belief   *belief          `json:"belief,omitempty"` // nil: the leader is of an earlier version

	Count  int     `json:"members"`
	Ring   uint64  `json:"ring"`             // version of Places
	Slots  bool    `json:"slots,omitempty"`  // the account limits calls in flight, see place.Slots
	Places []place `json:"places,omitempty"` // left out while nothing has changed
	Bye    bool    `json:"bye,omitempty"`    // the leader is leaving

	Limits // of the whole
}

// belief is what the leader's law believes about the server, for people: see
// [aimd.Belief].
type belief struct {
	Limit    float64 `json:"limit,omitempty"`
	Low      float64 `json:"low,omitempty"`
	High     float64 `json:"high,omitempty"`
	MetAgo   float64 `json:"met_ago,omitempty"` // seconds before the plan was sent; 0 means not known
	InFlight int     `json:"in_flight,omitempty"`
	Random   float64 `json:"random,omitempty"`
}

// beliefOf returns what a law believes now, as it is sent.
func beliefOf(b aimd.Belief, now time.Time) *belief {
	sent := &belief{
		Limit: min(b.Limit, rateLimit), Low: min(b.Low, rateLimit), High: min(b.High, rateLimit), InFlight: b.InFlight, Random: b.Random,
	}
	if !b.Met.IsZero() {
		sent.MetAgo = min(max(now.Sub(b.Met).Seconds(), 1e-3), metAgoMost)
	}
	return sent
}

func (b *belief) valid() bool {
	return b == nil || within(b.Limit, 0, rateMost) && within(b.Low, 0, rateMost) && within(b.High, 0, rateMost) &&
		within(b.MetAgo, 0, metAgoMost) && within(b.Random, 0, 1) && b.InFlight >= 0
}

// place is a member's part of a plan. It has a turn whenever offset + share × turns
// passes a whole number.
type place struct {
	ID     string  `json:"id"`
	Share  float32 `json:"s"`
	Offset float32 `json:"o"`
	Slots  int     `json:"n,omitempty"` // calls in flight, with plan.Slots
}

// at returns the turns that have come due when age seconds have passed since the plan was
// sent.
func (p *plan) at(age float64) float64 {
	turns := p.Turns
	if age <= 0 {
		return turns
	}
	before := 0.0
	for i, due := range p.Curve {
		if end := curveStep * float64(i+1); age < end {
			return turns + before + (due-before)*(age-end+curveStep)/curveStep
		}
		before = due
	}
	return turns + before + p.Then*(min(age, silentSec)-curveStep*curveSteps)
}

// reach returns the age at which so many turns have come due; infinite: none that the
// plan tells.
func (p *plan) reach(turns float64) float64 {
	left := turns - p.Turns
	if left <= 0 {
		return 0
	}
	before := 0.0
	for i, due := range p.Curve {
		if left <= due && due > before {
			return curveStep * (float64(i) + (left-before)/(due-before))
		}
		before = due
	}
	if p.Then <= 0 {
		return math.Inf(1)
	}
	if age := curveStep*curveSteps + (left-before)/p.Then; age <= silentSec {
		return age
	}
	return math.Inf(1)
}

// beats reports whether members should follow p rather than another leader of that term
// and name.
func (p *plan) beats(term uint64, leader string) bool {
	return p.Term > term || p.Term == term && p.Leader < leader
}

// report is what a member tells the leader, twice a second and at a refusal that is news.
type report struct {
	Report int     `json:"report"` // version of the format, 1
	ID     string  `json:"id"`
	Seq    uint64  `json:"seq"`
	Weight float64 `json:"weight"`
	Ring   uint64  `json:"ring"` // the version that it goes by

	// Since the member began.
	Sent     uint64 `json:"sent"`
	Accepted uint64 `json:"accepted"`
	Refused  uint64 `json:"refused"`

	InFlight int     `json:"in_flight"`
	Pool     int     `json:"pool"`
	Want     float64 `json:"want"` // calls per second
	Hungry   bool    `json:"hungry,omitempty"`
	// Refusals holds the latest refusals, and before them once more those that were new in
	// the previous report, which may have been lost. News counts all that were ever listed.
	Refusals []refusal `json:"refusals,omitempty"`
	News     uint64    `json:"news,omitempty"`

	Limits // of the member

	Bye     bool `json:"bye,omitempty"`
	Restart bool `json:"restart,omitempty"`
}

// refusal is a turn at which the server refused the call.
type refusal struct {
	Turn       float64 `json:"turn"`
	Epoch      int     `json:"epoch"`
	Term       uint64  `json:"term"`
	RetryAfter float64 `json:"retry_after,omitempty"` // seconds, as the rest
	Reset      float64 `json:"reset,omitempty"`       // with no requests remaining; 0 means not reported
}

func (r *refusal) hint() aimd.Hint {
	sec := func(s float64) time.Duration { return time.Duration(min(max(s, 0), hintMost) * 1e9) }
	return aimd.Hint{RetryAfter: sec(r.RetryAfter), Remaining0: r.Reset > 0, Reset: sec(r.Reset)}
}

// hello asks the leader for its plan. Its sender knows by the echo that it is connected.
type hello struct {
	Hello int    `json:"hello"` // version of the format, 1
	ID    string `json:"id"`
	Ring  uint64 `json:"ring"` // the version that it has, or 0
}

// IsReport reports whether a message is for the leader alone.
func IsReport(body []byte) bool { return bytes.HasPrefix(body, []byte(`{"report"`)) }

func encode(m any) []byte {
	body, err := json.Marshal(m)
	if err != nil {
		panic("fleet: " + err.Error()) // a number that is none
	}
	return body
}

var errBounds = errors.New("out of bounds")

// decode returns the plan, report or hello that a message is.
func decode(body []byte) (m any, err error) {
	var kind struct{ Plan, Report, Hello int }
	if err := json.Unmarshal(body, &kind); err != nil {
		return nil, fmt.Errorf("neither plan nor report: %w", err)
	}
	var msg interface{ valid() bool }
	switch {
	case kind.Plan == 1:
		msg = new(plan)
	case kind.Report == 1:
		msg = new(report)
	case kind.Hello == 1:
		msg = new(hello)
	default:
		return nil, fmt.Errorf("plan, report and hello have no version that is known: %w", errBounds)
	}
	if err := json.Unmarshal(body, msg); err != nil {
		return nil, err
	}
	if !msg.valid() {
		return nil, errBounds
	}
	return msg, nil
}

func (h *hello) valid() bool { return h.ID != "" }

func (p *plan) valid() bool {
	ok := p.Leader != "" && len(p.Curve) == curveSteps && p.Count >= 0 && p.Count <= membersMax && len(p.Places) <= membersMax &&
		within(p.Turns, 0, turnsMost) && within(p.Sent, -1e12, 1e12) && within(p.Then, 0, rateMost) && within(p.Rate, 0, rateMost) &&
		within(p.Estimate, 0, rateMost) && within(p.Pause, 0, waitMost) && p.Belief.valid() &&
		p.Limits.valid()
	before := 0.0
	for _, due := range p.Curve {
		ok = ok && within(due, before, before+rateMost*curveStep)
		before = due
	}
	for _, m := range p.Places {
		ok = ok && within(float64(m.Share), 0, 1) && within(float64(m.Offset), -1, 1) && m.Slots >= 0
	}
	return ok
}

func (r *report) valid() bool {
	ok := r.ID != "" && within(r.Weight, weightLeast, weightMost) && within(r.Want, 0, rateMost) &&
		r.InFlight >= 0 && r.Pool >= 0 && r.InFlight <= membersMax && r.Pool <= membersMax &&
		r.Limits.valid() && len(r.Refusals) <= reportMost
	for _, f := range r.Refusals {
		ok = ok && within(f.Turn, 0, turnsMost) && within(f.RetryAfter, 0, 1e9) && within(f.Reset, 0, 1e9)
	}
	return ok
}

func (l *Limits) valid() bool { return l.RPM >= 0 && l.TPM >= 0 && l.Concurrency >= 0 }

func within(x, least, most float64) bool { return x >= least && x <= most }
