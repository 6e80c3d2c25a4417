package auditlog

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Phase is the change that a [Run] event reports.
type Phase string

// The values of Phase.
const (
	// PhaseStart is the start of the process. It carries the settings.
	PhaseStart Phase = "start"
	// PhaseClaim is the beginning of a term: the process now owns the partition.
	PhaseClaim Phase = "claim"
	// PhaseFenced is the end of a term that another process ended.
	PhaseFenced Phase = "fenced"
	// PhasePause is the start of a pause, for a reason that a person must fix or an outage; only probes are sent.
	PhasePause Phase = "pause"
	// PhaseResume is the end of a pause.
	PhaseResume Phase = "resume"
	// PhaseControl is what an operator has asked of the process, who that was, and what it did.
	PhaseControl Phase = "control"
	// PhaseJoined, PhaseLeads and PhaseAlone are the process's part in the budget that it shares for one provider: it goes
	// by the plan of another process, makes the plan, or hears nobody and goes by its own throttle. They carry the budget.
	PhaseJoined Phase = "joined"
	PhaseLeads  Phase = "leads"
	PhaseAlone  Phase = "alone"
	// PhaseEnd is the end of the process. It carries the summary.
	PhaseEnd Phase = "end"
)

// Run is the event of a change in the life of a process. Empty strings, a nil map and a nil summary are written as
// null.
type Run struct {
	Header
	// Phase is what happened.
	Phase Phase
	// Reason is the reason of a pause or an end; of a change of the budget it is the facts as a sentence.
	Reason string
	// Owner names the term, for phases of a single partition; empty for those of the process.
	Owner string
	// Settings is the effective configuration by variable, without secrets.
	Settings map[string]string
	// Summary is what the process did; nil but at the end, and nil there too if call events before it could not be stored.
	Summary *Summary
	// Budget is what the process knows of a shared budget; nil for other phases, and then it is not in the JSON.
	Budget *Budget
	// Truncated is set when the settings, or the summary's usage by model, were left out because the event was too large.
	// It is in the JSON only when true.
	Truncated bool
}

// Budget is what a process knows of the budget that it shares with others for one provider.
type Budget struct {
	// Name is that of the budget, Provider what it is for: the provider, with the host where the base URL is set.
	Name, Provider string
	// Mode is leader, member or alone.
	Mode string
	// Members counts the processes that share it, this one included.
	Members int
	// Share is the part of the whole that this process may use, of 1.
	Share float64
	// Rate is how many calls per second the whole may make; alone, the process itself. Nil: no limit is known.
	Rate *float64
	// Leader names the process that leads; empty while alone.
	Leader string
}

// Summary is what a process did from start to end.
type Summary struct {
	// RowsSucceeded and RowsFailed count results emitted, RowsSkipped rows that were seen again after their result.
	RowsSucceeded, RowsFailed, RowsSkipped uint64
	// CapacityRetries counts calls that met a capacity error.
	CapacityRetries uint64
	// PeakDelay is the longest dispatch delay, Throttled the time in which rows were ready and waited for the throttle,
	// Executing the time spent in calls, summed over all of them.
	PeakDelay, Throttled, Executing time.Duration
	// Usage is by provider and model. Never null in JSON.
	Usage []ModelTotals
	// Total is over all of them.
	Total Totals
}

// ModelTotals are the calls and usage of one model of one provider.
type ModelTotals struct {
	Provider, Model string
	Totals
}

// Totals sums calls.
type Totals struct {
	// Calls counts HTTP attempts.
	Calls uint64
	// Usage sums the reported usage; nil: no call reported any, and every number is null in JSON.
	Usage *Usage
}

// MsgID returns the event's id for the Nats-Msg-Id header, see [MsgID]. The run stands in for the row; index counts the
// run events of the process, from 0.
func (r *Run) MsgID(index int) string { return MsgID(r.Stage+"/"+r.RunID, r.Owner, KindRun, index) }

// AppendJSON appends the event to dst and returns the extended slice. A run holds no bodies, so payloads makes no
// difference; it is there to treat all kinds alike.
//
// An event that would take more than bytesMax bytes (0 or less: no bound) is written without the settings, and if that
// is not enough without the summary's usage by model, with truncated set. The rest is written whatever it takes.
func (r *Run) AppendJSON(dst []byte, _ Payloads, bytesMax int) []byte {
	start := len(dst)
	dst = r.append(dst)
	over := func() bool { return bytesMax > 0 && len(dst)-start > bytesMax }
	lean := *r
	lean.Truncated = true
	if over() && lean.Settings != nil {
		lean.Settings = nil
		dst = lean.append(dst[:start])
	}
	if over() && lean.Summary != nil && len(lean.Summary.Usage) > 0 {
		summary := *lean.Summary
		summary.Usage, lean.Summary = nil, &summary
		dst = lean.append(dst[:start])
	}
	return dst
}

func (r *Run) append(dst []byte) []byte {
	dst = r.appendHead(dst, KindRun)
	dst = jsonbytes.AppendEscaped(append(dst, `,"phase":`...), string(r.Phase))
	dst = stringOrNull(append(dst, `,"reason":`...), r.Reason)
	dst = stringOrNull(append(dst, `,"owner":`...), r.Owner)
	dst = settings(append(dst, `,"settings":`...), r.Settings)
	dst = append(dst, `,"summary":`...)
	if r.Summary == nil {
		dst = append(dst, "null"...)
	} else {
		dst = r.Summary.append(dst)
	}
	if r.Budget != nil {
		dst = r.Budget.append(append(dst, `,"budget":`...))
	}
	if r.Truncated {
		dst = append(dst, `,"truncated":true`...)
	}
	return append(dst, '}')
}

func (b *Budget) append(dst []byte) []byte {
	dst = jsonbytes.AppendEscaped(append(dst, `{"name":`...), b.Name)
	dst = jsonbytes.AppendEscaped(append(dst, `,"provider":`...), b.Provider)
	dst = jsonbytes.AppendEscaped(append(dst, `,"mode":`...), b.Mode)
	dst = strconv.AppendInt(append(dst, `,"members":`...), int64(b.Members), 10)
	dst = floatOrNull(append(dst, `,"share":`...), &b.Share)
	dst = floatOrNull(append(dst, `,"rate_per_second":`...), b.Rate)
	return append(stringOrNull(append(dst, `,"leader":`...), b.Leader), '}')
}

// settings writes the keys in order, so that equal settings are equal bytes.
func settings(dst []byte, m map[string]string) []byte {
	if m == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '{')
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendEscaped(append(jsonbytes.AppendEscaped(dst, k), ':'), m[k])
	}
	return append(dst, '}')
}

func (s *Summary) append(dst []byte) []byte {
	dst = strconv.AppendUint(append(dst, `{"rows_succeeded":`...), s.RowsSucceeded, 10)
	dst = strconv.AppendUint(append(dst, `,"rows_failed":`...), s.RowsFailed, 10)
	dst = strconv.AppendUint(append(dst, `,"rows_skipped":`...), s.RowsSkipped, 10)
	dst = strconv.AppendUint(append(dst, `,"capacity_retries":`...), s.CapacityRetries, 10)
	dst = millis(append(dst, `,"peak_delay_ms":`...), s.PeakDelay)
	dst = millis(append(dst, `,"throttled_ms":`...), s.Throttled)
	dst = millis(append(dst, `,"executing_ms":`...), s.Executing)
	dst = append(dst, `,"usage":[`...)
	for i := range s.Usage {
		if i > 0 {
			dst = append(dst, ',')
		}
		u := &s.Usage[i]
		dst = stringOrNull(append(dst, `{"provider":`...), u.Provider)
		dst = stringOrNull(append(dst, `,"model":`...), u.Model)
		dst = u.append(append(dst, ','))
		dst = append(dst, '}')
	}
	dst = s.Total.append(append(dst, `],"total":{`...))
	return append(dst, "}}"...)
}

// append writes the members of an object without its braces.
func (t *Totals) append(dst []byte) []byte {
	dst = strconv.AppendUint(append(dst, `"calls":`...), t.Calls, 10)
	return tokens(append(dst, ','), t.Usage)
}
