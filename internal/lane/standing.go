package lane

import (
	"errors"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/llm"
)

// standing is how the lane stands with the provider's account: why nothing may be sent to
// it or submitted, and how much room its queue has. Three reasons keep batches back, one
// beside the others:
//
//	pause     a request failed in a way that no batch can help, such as a bad key
//	denial    each line of a batch was refused, so the settings may be wrong
//	noBudget  the cost ceiling leaves no money for another batch
//
// A pause ends with any answer that is none of the account's errors. A denial ends with
// the first reply in a line. The lack of money ends with the next reservation that
// succeeds.
type standing struct {
	pause    pause
	denial   denial
	noBudget noBudget
	room     map[string]*capacity // by model
	replied  bool                 // a line was a reply in this term

	// reported says that the log has the pause, and reportedFatal is what Config.Paused
	// was last called for. It is nil when the lane works again.
	reported      bool
	reportedFatal error
}

// capacity returns how much room the provider's queue has for a model.
func (st *standing) capacity(model string) *capacity {
	c := st.room[model]
	if c == nil {
		c = new(capacity)
		st.room[model] = c
	}
	return c
}

// report logs that the lane pauses or goes on, when that changes. It calls paused, unless
// that is nil, when the lane begins to pause for a reason that only somebody's help can
// end.
func (st *standing) report(log *slog.Logger, paused func(why error)) {
	why, fatal := st.pause.why, st.pause.fatal
	if why == "" && st.denial.err != nil {
		why, fatal = st.denial.err.Error(), st.denial.err
	}
	if no := st.noBudget; why == "" && no.err != nil && no.stuck {
		why, fatal = no.err.Error(), no.err
	}
	switch {
	case why == "" && st.reported:
		log.Info("the batch lane goes on")
	case why != "" && !st.reported:
		log.Error("the batch lane is paused; no row is lost", slog.String("error", why))
	}
	st.reported = why != ""
	if fatal != nil && st.reportedFatal == nil && paused != nil {
		paused(fatal)
	}
	st.reportedFatal = fatal
}

// pause is a stop of all requests to the provider, after an error that no batch can help:
// the billing, a bad key. One request is let through at each interval to find out.
type pause struct {
	why     string // empty if there is none
	until   time.Time
	probing bool
	fatal   error // the cause if it cannot pass without somebody's help, or nil
}

// next returns when the next request may be made, zero if at any time.
func (p *pause) next(now time.Time) time.Time {
	switch {
	case p.why == "":
		return time.Time{}
	case p.probing:
		return now.Add(time.Hour) // its end is noticed
	}
	return p.until
}

// begin notes a request and reports whether it is a probe.
func (p *pause) begin() bool {
	p.probing = p.why != ""
	return p.probing
}

// over notes that the request that was let through has an answer.
func (p *pause) over() { p.probing = false }

func (p *pause) set(err error, now time.Time, interval time.Duration) {
	p.why, p.until, p.probing, p.fatal = err.Error(), now.Add(interval), false, nil
	if class, _ := classOf(err); class == llm.Fatal {
		p.fatal = err
	}
}

func (p *pause) clear() { *p = pause{} }

// noBudget is the answer to the last reservation, when there was no money for a batch.
type noBudget struct {
	err   error     // nil when there was
	until time.Time // no batch is sealed before
	// stuck says that no other batch was under way then, so that the end of none could
	// release money.
	stuck bool
}

// denial is what the lane knows of a provider that has refused each line of a batch.
// Batches of one row find out whether it is over.
type denial struct {
	err   error // nil if there is none
	until time.Time
}

func (d *denial) clear() { *d = denial{} }

// classOf returns what an error of the provider means, and 0 if nothing is known of it.
func classOf(err error) (class llm.Class, after time.Duration) {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return e.Class, e.RetryAfter
	}
	return 0, 0
}
