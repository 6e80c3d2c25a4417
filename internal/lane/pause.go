package lane

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/llm"
)

// pause is a stop of all requests to the provider, after an error that no batch can help: the billing, a bad key. One
// request is let through at each interval to find out.
type pause struct {
	why     string // empty: there is none
	until   time.Time
	probing bool
	fatal   error // what cannot pass without somebody's help; nil: it may
}

// next returns when the next request may be made; zero: at any time.
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

func (p *pause) over() { p.probing = false }

func (p *pause) set(err error, now time.Time, interval time.Duration) {
	p.why, p.until, p.probing, p.fatal = err.Error(), now.Add(interval), false, nil
	if class, _ := classOf(err); class == llm.Fatal {
		p.fatal = err
	}
}

func (p *pause) clear() { *p = pause{} }

// tellPause reports that the lane pauses, and that it goes on.
func (t *term) tellPause() {
	why, fatal := t.pause.why, t.pause.fatal
	if why == "" && t.denial.err != nil {
		why, fatal = t.denial.err.Error(), t.denial.err
	}
	if why == "" && t.heldBy != nil && t.heldIdle {
		why, fatal = t.heldBy.Error(), t.heldBy
	}
	switch {
	case why == "" && t.toldPause:
		t.l.log.Info("the batch lane goes on")
	case why != "" && !t.toldPause:
		t.l.log.Error("the batch lane is paused; no row is lost", slog.String("error", why))
	}
	t.toldPause = why != ""
	if fatal != nil && t.toldFatal == nil && t.cfg.Paused != nil {
		t.cfg.Paused(fatal)
	}
	t.toldFatal = fatal
}

// idle reports whether no batch is under way, whose end could release what is reserved for it.
func (t *term) idle() bool {
	return !slices.ContainsFunc(t.batches, func(b *batch) bool { return b.stage != stageClosed })
}

// classOf returns what an error of the provider means; 0: nothing is known of it.
func classOf(err error) (class llm.Class, after time.Duration) {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return e.Class, e.RetryAfter
	}
	return 0, 0
}
