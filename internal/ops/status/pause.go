package status

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// PauseReason is why the stage is paused, in one word; empty while it is not. It is the
// label of llm_stage_paused.
type PauseReason string

// Reasons for a pause.
const (
	PauseCredentials PauseReason = "credentials"  // the key is missing, wrong or not allowed
	PauseBilling     PauseReason = "billing"      // no credit, or a quota of money or days is used up
	PauseModel       PauseReason = "model"        // the provider does not know the model
	PauseNetwork     PauseReason = "network"      // unknown host, server not started, untrusted certificate, or a redirect
	PauseCost        PauseReason = "cost_ceiling" // STAGE_MAX_COST_USD is reached
	PauseSettings    PauseReason = "settings"     // the provider refuses every row
	PauseOutage      PauseReason = "outage"       // no connection, every call fails, or this machine is short of a resource
	PauseOperator    PauseReason = "operator"     // somebody asked for it (stage pause)
	PauseOther       PauseReason = "other"        // any other fatal error
)

// PauseReasons are all reasons for a pause.
var PauseReasons = []PauseReason{
	PauseCredentials, PauseBilling, PauseModel, PauseNetwork, PauseCost, PauseSettings, PauseOutage, PauseOperator, PauseOther,
}

// advice is the first step of the runbook, by the reason of a pause.
var advice = map[PauseReason]string{
	PauseCredentials: "correct the key in its file or Secret: it is read again before each probe. One from the environment needs a restart",
	PauseBilling:     "look at the provider's console: add credit, or raise the quota",
	PauseModel:       "correct STAGE_LLM_MODEL, and restart",
	PauseNetwork:     "start the server, or correct STAGE_LLM_BASE_URL, DNS, the certificate or egress rules; a restart only for a changed setting",
	PauseCost:        "raise STAGE_MAX_COST_USD and restart, or leave the stage paused",
	PauseSettings:    "compare the settings and the template with what the provider says, change what is wrong, and restart",
	PauseOutage:      "look at the provider's status page; from here, at DNS, proxy and egress rules. Nothing needs a restart",
	PauseOperator:    "stage resume ends it",
	PauseOther:       "read what the provider says",
}

// Advice is what to do first about a pause; empty without a reason.
func Advice(r PauseReason) string { return advice[r] }

// ReasonOf returns the reason of a pool's pause; empty means that it is not paused.
func ReasonOf(p pool.Pause) PauseReason {
	switch p.Kind {
	case pool.Outage, pool.Shortage:
		if !p.Absent.IsZero() {
			return PauseNetwork
		}
		return PauseOutage
	case pool.WrongSettings:
		return PauseSettings
	case pool.Operator:
		return PauseOperator
	case pool.FatalError:
		return fatalReason(p.Err)
	case pool.NotPaused:
	}
	return ""
}

// fatalReason returns the reason of a pause at a fatal error.
func fatalReason(err error) PauseReason {
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

// NextProbe describes when the next probe is, as in "next probe in 4 s". One that is due
// waits for a row, or for the end of the last one. Zero: there is none, as an operator
// has paused the stage.
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

// PauseError returns the text of the last error of a pause, or empty. For wrong settings
// it adds the shape of the request, without its contents.
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
