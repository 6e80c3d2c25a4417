package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

// What can block a partition until it passes or a person fixes it.
const (
	problemConnection  = "connection"
	problemOwnership   = "ownership"
	problemResults     = "results"
	problemDeadLetter  = "dead letter"
	problemUndelivered = "rows"           // the durable consumer delivers none
	problemUnread      = "rows set aside" // or parked, which can't be read again
	problemPut         = "large results"
	problemGet         = "large rows" // or kept replies
)

// problems holds what blocks the partition at the moment, for /readyz and the log. Safe
// for concurrent use.
type problems struct {
	log     *slog.Logger
	explain func(error) string

	mu  sync.Mutex
	why map[string]problem // by area
}

// problem is why an area is blocked, and since when.
type problem struct {
	why   string
	since time.Time
}

// set notes a problem and logs it when it is new.
func (p *problems) set(area string, err error) {
	why := p.explain(err)
	p.mu.Lock()
	was, known := p.why[area]
	fresh := was.why != why
	if !known {
		was.since = time.Now()
	}
	p.why[area] = problem{why, was.since}
	p.mu.Unlock()
	if fresh {
		p.log.Warn("blocked, retrying", slog.String("area", area), slog.String("reason", why))
	}
}

func (p *problems) clear(area string) {
	p.mu.Lock()
	_, was := p.why[area]
	delete(p.why, area)
	p.mu.Unlock()
	if was {
		p.log.Info("recovered", slog.String("area", area))
	}
}

// forget drops problems of a term that is over; the next one finds out whether they are
// solved.
func (p *problems) forget(areas ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, area := range areas {
		delete(p.why, area)
	}
}

// String lists the problems in one line. It is empty when there are none.
func (p *problems) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]string, 0, len(p.why))
	for _, area := range slices.Sorted(maps.Keys(p.why)) {
		list = append(list, fmt.Sprintf("%s: %s", area, p.why[area].why))
	}
	return strings.Join(list, "; ")
}

// fatalError ends [Consumer.Run]: trying again would not help, a person must decide.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

func fatal(err error) error { return fatalError{err} }

// unfit ends [Consumer.Run] only at its start, see isFatal.
func unfit(err error) error { return &streams.UnfitError{Err: err} }

// isFatal reports whether err ends [Consumer.Run]. What a person can fix from outside ends
// it only before it has started, so that it is seen at once, see Consumer.started. Later
// it is waited for.
func isFatal(err error, started bool) bool {
	_, always := errors.AsType[fatalError](err)
	_, unfit := errors.AsType[*streams.UnfitError](err)
	return always || unfit && !started
}
