package status

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// PauseReasons are the kinds of holds that pause all calls, the labels of
// llm_stage_paused.
var PauseReasons = []hold.Kind{
	hold.Credentials, hold.Billing, hold.Model, hold.Network, hold.CostCeiling, hold.Settings, hold.Outage, hold.Operator, hold.Other,
}

// OfPause returns the hold for a pause of the pool, and whether the pool is paused.
func OfPause(p pool.Pause) (h hold.Hold, paused bool) {
	h = hold.Hold{Scope: hold.Stage, Why: PauseError(p), Since: p.Since, Next: p.Next, Err: p.Err}
	switch p.Kind {
	case pool.NotPaused:
		return hold.Hold{}, false
	case pool.Outage, pool.Shortage:
		h.Kind = hold.Outage
		if !p.Absent.IsZero() {
			h.Kind = hold.Network
		}
	case pool.WrongSettings:
		h.Kind = hold.Settings
	case pool.Operator:
		h.Kind = hold.Operator
	case pool.FatalError:
		h.Kind = FatalKind(p.Err)
	}
	return h, true
}

// FatalKind returns the kind of a pause at a fatal error.
func FatalKind(err error) hold.Kind {
	if errors.Is(err, cost.ErrCeiling) {
		return hold.CostCeiling
	}
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		return hold.Other
	}
	switch {
	case errors.Is(err, llm.ErrNoCredential):
		return hold.Credentials
	case e.Status == 0, e.Status >= 300 && e.Status < 400:
		return hold.Network
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return hold.Credentials
	case e.Status == http.StatusPaymentRequired, e.Status == http.StatusTooManyRequests:
		return hold.Billing
	case e.Status == http.StatusNotFound:
		return hold.Model
	default:
		return hold.Other
	}
}

// PauseText describes a pause: why, since when, when the next probe is, and what becomes of
// the rows. For a fatal error it returns the error alone.
func PauseText(p pool.Pause, rows string, now time.Time) string {
	h, _ := OfPause(p)
	if p.Kind == pool.FatalError {
		return h.Why
	}
	layout := time.TimeOnly
	if now.Sub(p.Since) >= 24*time.Hour {
		layout = time.DateTime
	}
	return fmt.Sprintf("%s since %s UTC, last error: %s; %s; %s",
		h.Kind, p.Since.UTC().Format(layout), h.Why, NextProbe(p.Next, now), rows)
}

// NextProbe describes when the next probe is, as in "next probe in 4 s". A probe that is
// due waits for a row, or for the end of the last probe. at is zero if there is no next
// probe, because an operator has paused the stage.
func NextProbe(at, now time.Time) string {
	switch in := at.Sub(now); {
	case at.IsZero():
		return "not probed: stage resume ends it"
	case in <= 0:
		return "next probe is due"
	case in < time.Second:
		return fmt.Sprintf("next probe in %d ms", in.Milliseconds())
	case in < 100*time.Second:
		return fmt.Sprintf("next probe in %.0f s", in.Seconds())
	default:
		return "next probe in " + in.Round(time.Second).String()
	}
}

// PauseError returns the text of the last error of a pause, or "" if there is none. For
// wrong settings it adds the shape of the request, without its contents.
func PauseError(p pool.Pause) string {
	if p.Err == nil {
		return ""
	}
	e, ok := errors.AsType[shaped](p.Err)
	if !ok || p.Kind != pool.WrongSettings {
		return p.Err.Error()
	}
	return e.Error() + "; the request was " + e.Shape()
}

// shaped is an error with the request that caused it.
type shaped interface {
	error
	Shape() string // of the request, without its contents
}
