package status

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/terminal"
)

// otherKind replaces the kinds beyond a bound.
const otherKind = "other"

// Bounds of what an activity keeps.
const (
	latenciesMax  = 2048 // of calls, for the percentiles
	latencyWindow = time.Minute
	noticesMax    = 100
	// mergeWithin is how old the last notice like a new one may be for the new one to be
	// counted, not listed.
	mergeWithin     = 10 * time.Second
	recentCallsMax  = 24
	errorKindsMax   = 64   // kinds of errors counted separately; the rest are other
	causesMax       = 1024 // failed rows whose event has not come yet
	payloadShownMax = 2000
	// The provider counts as starved after so many rejections since the last success, and
	// so long after the first of them.
	starvedRejections = 3
	starvedAfter      = 10 * time.Second
)

// Activity is the recent activity of a stage, for the dashboard: calls, errors,
// latencies, notices. It learns of them from audit events. It is created by [NewActivity],
// and safe for concurrent use. Noting a call takes 0.1 µs, and a failed one 1 µs.
type Activity struct {
	Payloads bool // keep the contents of rows, requests and replies; set before use

	mu         sync.Mutex
	latencies  ring[timedLatency]
	notices    ring[Notice]
	lastID     uint64 // of a notice
	calls      ring[recentCall]
	rowErrors  map[string]*rowErrorReport // by reason
	causes     ring[rowCause]             // of the rows that failed last: their events come later
	callFails  map[callErrorKey]uint64
	refusal    *RefusalReport
	rejected   int       // calls since the last one that succeeded
	rejectedAt time.Time // the first of them
}

// rowCause is why a row failed.
type rowCause struct {
	sequence uint64
	text     string
}

// timedLatency is the latency of one call.
type timedLatency struct {
	at   time.Time
	took time.Duration
}

// callErrorKey is a kind of failed calls.
type callErrorKey struct {
	provider, model, class string
	status                 int
}

// Notice is an event for the list of recent events. Events like it that follow within ten
// seconds are counted, and not listed.
type Notice struct {
	ID       uint64    `json:"id"`
	Time     time.Time `json:"time"`
	Last     time.Time `json:"last"`  // time of the last one like it
	Count    uint64    `json:"count"` // of all like it
	Level    string    `json:"level"` // info, warn or error
	Kind     string    `json:"kind"`  // call, row or run
	Sequence uint64    `json:"sequence"`
	Text     string    `json:"text"`

	key any // equal for notices of one kind that are alike
}

// recentCall is one call. Row, Request and Response are empty unless
// STAGE_DASHBOARD_PAYLOADS is set.
type recentCall struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Sequence uint64    `json:"sequence"`
	Item     *int      `json:"item,omitempty"` // of the row, from 0, where each element is a call
	// Rows is how many rows the call served, if more than one. Sequence and Item then name
	// the first.
	Rows       int     `json:"rows,omitempty"`
	Call       int     `json:"call"` // number of the call among those of the row, from 1
	Provider   string  `json:"provider"`
	Model      string  `json:"model"`
	Status     string  `json:"status"`
	StatusCode int     `json:"status_code"`
	ErrorClass string  `json:"error_class"`
	LatencyMS  float64 `json:"latency_ms"`
	DelayMS    float64 `json:"dispatch_delay_ms"`
	Tokens     *int64  `json:"total_tokens"`
	Row        string  `json:"row,omitempty"`
	Request    string  `json:"request,omitempty"`
	Response   string  `json:"response,omitempty"`
}

// NewActivity returns an activity without any events. With payloads it keeps the contents
// of rows, requests and replies (STAGE_DASHBOARD_PAYLOADS).
func NewActivity(payloads bool) *Activity {
	return &Activity{
		Payloads: payloads, latencies: newRing[timedLatency](latenciesMax), notices: newRing[Notice](noticesMax),
		calls: newRing[recentCall](recentCallsMax), rowErrors: make(map[string]*rowErrorReport), causes: newRing[rowCause](causesMax),
		callFails: make(map[callErrorKey]uint64),
	}
}

// Note adds an audit event.
func (a *Activity) Note(e auditlog.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case e.Call != nil:
		a.call(e.Call)
	case e.Row != nil && e.Row.Status != auditlog.RowSuccess:
		a.row(e.Row)
	case e.Run != nil:
		a.run(e.Run)
	}
}

// NoteCause adds why a row fails, before its event. text holds nothing of the row. It is
// empty if the cause is unknown.
func (a *Activity) NoteCause(sequence uint64, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.causes.add(rowCause{sequence, text})
}

// row adds a failed row. The lock is held.
func (a *Activity) row(r *auditlog.Row) {
	// An error of an earlier stage has no reason of ours.
	reason, cause := cmp.Or(r.Reason, r.Source), ""
	for c := range a.causes.newest() {
		if c.sequence == r.Sequence {
			cause = c.text
			break
		}
	}
	kind := reason
	if a.rowErrors[kind] == nil && len(a.rowErrors) >= errorKindsMax {
		kind = otherKind
	}
	if a.rowErrors[kind] == nil {
		a.rowErrors[kind] = &rowErrorReport{Reason: kind}
	}
	report := a.rowErrors[kind]
	report.Rows++
	report.Sequence, report.Error = r.Sequence, cause
	a.notice("error", Notice{Kind: "row", Sequence: r.Sequence, Time: r.Time, key: reason}, func() string {
		if cause == "" {
			return "failed: " + reason
		}
		return "failed: " + reason + ": " + cause
	})
}

// NoteRow adds the body of a row to a recent call, if payloads are kept.
func (a *Activity) NoteRow(callID string, body []byte) {
	if !a.Payloads {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.calls.newest() {
		if c.ID == callID {
			c.Row = preview(body)
			return
		}
	}
}

// call adds a call. The lock is held.
func (a *Activity) call(c *auditlog.Call) {
	r := recentCall{
		ID: c.CallID, Time: c.Time.UTC(), Sequence: c.Sequence, Item: c.Item, Rows: len(c.Rows), Call: c.CallIndex + 1, Provider: c.Provider, Model: c.Model,
		Status: string(c.Status), StatusCode: c.StatusCode, ErrorClass: c.ErrorClass, LatencyMS: terminal.Milliseconds(c.Latency), DelayMS: terminal.Milliseconds(c.DispatchDelay),
	}
	if c.Usage != nil {
		tokens := c.Usage.TotalTokens
		r.Tokens = &tokens
	}
	if a.Payloads {
		r.Request, r.Response = preview(c.Request), preview(c.Response)
	}
	a.calls.add(r)
	if c.Status == auditlog.CallSuccess {
		a.rejected = 0
		a.latencies.add(timedLatency{c.Time, c.Latency})
		return
	}
	key := callErrorKey{c.Provider, c.Model, c.ErrorClass, c.StatusCode}
	countBounded(a.callFails, key, callErrorKey{provider: otherKind, model: otherKind, class: otherKind})
	level := "warn"
	if c.Status == auditlog.CallCapacityRetry {
		if a.rejected++; a.rejected == 1 {
			a.rejectedAt = c.Time
		}
	} else if c.ErrorClass != "transient" {
		level = "error"
	}
	a.notice(level, Notice{Kind: "call", Sequence: c.Sequence, Time: c.Time, key: key}, func() string { return a.callText(c) })
}

// callText describes how a call failed. The server's message is a payload: it may quote
// the request.
func (a *Activity) callText(c *auditlog.Call) string {
	text := c.Model + " of " + c.Provider + ": "
	if c.Model == c.Provider {
		text = c.Model + ": "
	}
	switch c.Status {
	case auditlog.CallCapacityRetry:
		text += "no capacity"
	case auditlog.CallUnknown:
		text += "cut off, outcome unknown"
	case auditlog.CallFailure, auditlog.CallSuccess:
		text += c.ErrorClass + " error"
	}
	if c.StatusCode != 0 {
		text += fmt.Sprintf(", status %d", c.StatusCode)
	}
	if c.RetryAfter > 0 {
		text += ", asked to wait " + terminal.Duration(c.RetryAfter)
	}
	if a.Payloads && c.Status != auditlog.CallCapacityRetry {
		text += ": " + preview([]byte(c.Error))
	}
	return text
}

// run adds an event of the run. The lock is held.
func (a *Activity) run(r *auditlog.Run) {
	level := map[auditlog.Phase]string{auditlog.PhasePause: "error", auditlog.PhaseFenced: "warn", auditlog.PhaseAlone: "warn"}[r.Phase]
	text := string(r.Phase)
	if r.Partition != auditlog.All {
		text += " of partition " + r.Partition.String()
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	a.notice(cmp.Or(level, "info"), Notice{Kind: "run", Time: r.Time, key: text}, func() string { return text })
}

// Notice adds a notice for which there is no audit event. level is info, warn or error.
func (a *Activity) Notice(level, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notice(level, Notice{Kind: "run", Time: time.Now(), key: text}, func() string { return text })
}

// notice lists a notice, or counts it if a recent one has the same kind and key. The text
// of the first one stays, except that rows get the text of the last. The lock is held.
func (a *Activity) notice(level string, n Notice, text func() string) {
	n.Time = n.Time.UTC()
	for e := range a.notices.newest() {
		if n.Time.Sub(e.Time) > mergeWithin {
			break
		}
		if e.Kind == n.Kind && e.key == n.key {
			e.Count++
			e.Last, e.Sequence = n.Time, n.Sequence
			if n.Kind == "row" { // the cause is that of the last one
				e.Text = text()
			}
			return
		}
	}
	a.lastID++
	n.ID, n.Last, n.Count, n.Level, n.Text = a.lastID, n.Time, 1, level, text()
	a.notices.add(n)
}

// NoteRefusal notes what a provider said when it refused a call.
func (a *Activity) NoteRefusal(r RefusalReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.Time = r.Time.UTC()
	a.refusal = &r
}

// Report adds the activity to a report: latency, errors, notices, recent calls.
func (a *Activity) Report(r *Report, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest := r.Latency.OldestInFlightS
	r.Latency = a.latency(now)
	r.Latency.OldestInFlightS, r.LastRefusal = oldest, a.refusal
	r.RowErrors, r.CallErrors, r.Events, r.Calls = []rowErrorReport{}, []callErrorReport{}, []Notice{}, []recentCall{}
	for _, kind := range a.rowErrors {
		r.RowErrors = append(r.RowErrors, *kind)
	}
	slices.SortFunc(r.RowErrors, func(a, b rowErrorReport) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), strings.Compare(a.Reason, b.Reason))
	})
	for k, calls := range a.callFails {
		r.CallErrors = append(r.CallErrors, callErrorReport{k.provider, k.model, k.class, k.status, calls})
	}
	slices.SortFunc(r.CallErrors, func(a, b callErrorReport) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Class, b.Class), cmp.Compare(a.StatusCode, b.StatusCode), strings.Compare(a.Model, b.Model))
	})
	for e := range a.notices.newest() {
		r.Events = append(r.Events, *e)
	}
	// A notice that was counted again has the time of the last one like it, so it moves up.
	// So does a notice that was noted late.
	slices.SortStableFunc(r.Events, func(a, b Notice) int { return b.Last.Compare(a.Last) })
	for c := range a.calls.newest() {
		r.Calls = append(r.Calls, *c)
	}
}

// latency returns the percentiles of the last minute's successful calls. The lock is held.
func (a *Activity) latency(now time.Time) LatencyReport {
	took := make([]time.Duration, 0, 256)
	for l := range a.latencies.newest() {
		if now.Sub(l.at) > latencyWindow {
			break
		}
		took = append(took, l.took)
	}
	r := LatencyReport{Calls: len(took)}
	if len(took) == 0 {
		return r
	}
	slices.Sort(took)
	at := func(share float64) *float64 {
		ms := terminal.Milliseconds(took[int(share*float64(len(took)-1)+.5)])
		return &ms
	}
	seconds := func(ms *float64) *float64 { return new(math.Round(1000**ms) / 1e6) }
	r.P50MS, r.P90MS, r.P99MS = at(.5), at(.9), at(.99)
	r.P50, r.P90 = seconds(r.P50MS), seconds(r.P90MS)
	return r
}

// StarvedSince returns the time of the first rejection since the last success. It is zero
// while there are few rejections, or the first is recent.
func (a *Activity) StarvedSince(now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rejected < starvedRejections || now.Sub(a.rejectedAt) < starvedAfter {
		return time.Time{}
	}
	return a.rejectedAt
}

// RefusedSince returns the time of the first refusal since the last success, and how many
// calls were refused since then. Both are zero if none was.
func (a *Activity) RefusedSince() (first time.Time, calls int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rejected == 0 {
		return time.Time{}, 0
	}
	return a.rejectedAt, a.rejected
}

// countBounded counts key, or other if too many keys are counted already.
func countBounded[K comparable](counts map[K]uint64, key, other K) {
	if _, known := counts[key]; !known && len(counts) >= errorKindsMax {
		key = other
	}
	counts[key]++
}

// preview shortens bytes for a page, at the end of a character.
func preview(b []byte) string {
	if len(b) <= payloadShownMax {
		return string(bytes.ToValidUTF8(b, []byte("\ufffd")))
	}
	return string(bytes.ToValidUTF8(b[:payloadShownMax], nil)) + "…"
}
