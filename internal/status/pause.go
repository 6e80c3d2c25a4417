package status

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// PauseReason says in one word why the stage is paused; empty while it is not.
type PauseReason string

// Reasons for a pause.
const (
	PauseCredentials PauseReason = "credentials"  // the key is missing, wrong or not allowed
	PauseBilling     PauseReason = "billing"      // no credit, or a quota of money or days is used up
	PauseModel       PauseReason = "model"        // the provider does not know the model
	PauseNetwork     PauseReason = "network"      // no such host, no trusted certificate, or a redirect
	PauseCost        PauseReason = "cost_ceiling" // STAGE_MAX_COST_USD is reached
	PauseSettings    PauseReason = "settings"     // the provider refuses every row alike
	PauseOutage      PauseReason = "outage"       // no server is reached, every call fails there, or this machine is short of a resource
	PauseOther       PauseReason = "other"
)

var PauseReasons = []PauseReason{
	PauseCredentials, PauseBilling, PauseModel, PauseNetwork, PauseCost, PauseSettings, PauseOutage, PauseOther,
}

// ReasonOf says in one word what holds the pool; empty while nothing does.
func ReasonOf(p pool.Pause) PauseReason {
	switch p.Kind {
	case pool.Outage, pool.Shortage:
		return PauseOutage
	case pool.WrongSettings:
		return PauseSettings
	case pool.FatalError:
		return pauseReasonOf(p.Err)
	case pool.NotPaused:
	}
	return ""
}

// pauseReasonOf sorts a fatal error of a call.
func pauseReasonOf(err error) PauseReason {
	if errors.Is(err, cost.ErrCeiling) {
		return PauseCost
	}
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		return PauseOther
	}
	switch {
	case e.Status == 0, e.Status >= 300 && e.Status < 400:
		return PauseNetwork
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return PauseCredentials
	case e.Status == http.StatusPaymentRequired, e.Status == http.StatusTooManyRequests:
		return PauseBilling
	case e.Status == http.StatusNotFound:
		return PauseModel
	default:
		return PauseOther
	}
}

// NextProbe says when the next probe is. One that is due waits for a row, or for the verdict on the last one.
func NextProbe(at, now time.Time) string {
	switch in := at.Sub(now); {
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

// PauseError is the error of a pause. That of wrong settings shows the request, too, without its contents.
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

// shaped is an error that all rows meet where the settings are wrong, with the request that met it.
type shaped interface {
	error
	Shape() string // of the request, without its contents
}

// Snapshot is what the gauges show at one moment.
type Snapshot struct {
	Pool  pool.Stats
	Pause PauseReason // empty: running
	// PausedSince is when the pause began; it means nothing without one.
	PausedSince time.Time
	Partitions  []consumer.Status
}
