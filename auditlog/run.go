package auditlog

import "time"

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
	// PhasePause is the start of a pause: an outage, a reason that a person must fix, a
	// shortage of the machine, or the order of an operator. Probes alone are sent, and
	// none by an operator's order.
	PhasePause Phase = "pause"
	// PhaseResume is the end of a pause.
	PhaseResume Phase = "resume"
	// PhaseControl is what an operator has asked of the process, who that was, and what
	// it did.
	PhaseControl Phase = "control"
	// PhaseJoined, PhaseLeads and PhaseAlone are the process's part in the budget that it
	// shares for one provider: it follows the plan of another process, makes the plan, or
	// hears nobody and follows its own throttle. They carry the budget.
	PhaseJoined Phase = "joined"
	PhaseLeads  Phase = "leads"
	PhaseAlone  Phase = "alone"
	// PhaseEnd is the end of the process. It carries the summary.
	PhaseEnd Phase = "end"
)

// Run is the event of a change in the life of a process.
type Run struct {
	Header
	// Phase is what happened.
	Phase Phase `event:"phase"`
	// Reason is the reason of a pause or an end. In a change of the budget it is the
	// facts as a sentence.
	Reason string `event:"reason,null"`
	// Owner names the term, for phases of a single partition. It is empty for phases of
	// the process.
	Owner string `event:"owner,null"`
	// Settings is the effective configuration by variable, without secrets.
	Settings map[string]string `event:"settings"`
	// Summary is what the process did. It is nil except at the end, and nil there too if
	// call events before it could not be stored.
	Summary *Summary `event:"summary"`
	// Budget is what the process knows of a shared budget, in [PhaseJoined], [PhaseLeads]
	// and [PhaseAlone]. It is nil in other phases.
	Budget *Budget `event:"budget,omit"`
	// Truncated is set when the settings, or the summary's usage by model, were left out
	// because the event was too large.
	Truncated bool `event:"truncated,omit"`
}

// Budget is what a process knows of the budget that it shares with others for one
// provider.
type Budget struct {
	// Name is the name of the budget.
	Name string `event:"name"`
	// Provider is what the budget is for: the provider, with the host where the base URL
	// is set.
	Provider string `event:"provider"`
	// Mode is leader, member or alone.
	Mode string `event:"mode"`
	// Members counts the processes that share it, this one included.
	Members int `event:"members"`
	// Share is the part of the whole that this process may use, from 0 to 1.
	Share float64 `event:"share"`
	// Rate is how many calls per second the whole may make, or the process itself where
	// it is alone. It is nil where no limit is known.
	Rate *float64 `event:"rate_per_second"`
	// Leader names the process that leads. It is empty while the process is alone.
	Leader string `event:"leader,null"`
}

// Summary is what a process did from start to end.
type Summary struct {
	// RowsSucceeded counts the results emitted of rows that succeeded.
	RowsSucceeded uint64 `event:"rows_succeeded"`
	// RowsFailed counts the results emitted of rows that failed.
	RowsFailed uint64 `event:"rows_failed"`
	// RowsSkipped counts the rows that were seen again after their result.
	RowsSkipped uint64 `event:"rows_skipped"`
	// CapacityRetries counts calls that met a capacity error.
	CapacityRetries uint64 `event:"capacity_retries"`
	// PeakDelay is the longest dispatch delay.
	PeakDelay time.Duration `event:"peak_delay_ms"`
	// Throttled is the time in which rows were ready and waited for the throttle.
	Throttled time.Duration `event:"throttled_ms"`
	// Executing is the time spent in calls, summed over all of them.
	Executing time.Duration `event:"executing_ms"`
	// Belief is what the throttle believes about the first provider, in words. It is
	// empty for a throttle that measures nothing.
	Belief string `event:"belief,omit"`
	Pace
	// Usage lists the calls and usage by provider and model. It is never null in JSON.
	Usage []ModelTotals `event:"usage"`
	// Total sums up all entries of Usage.
	Total Totals `event:"total"`
}

// ModelTotals are the calls and usage of one model of one provider.
type ModelTotals struct {
	// Provider is the provider that was called.
	Provider string `event:"provider,null"`
	// Model is the model that was called.
	Model string `event:"model,null"`
	Totals
}

// Totals sums calls.
type Totals struct {
	// Calls counts HTTP attempts.
	Calls uint64 `event:"calls"`
	// Usage sums the reported usage. It is nil where no call reported any, and then every
	// number of it is null in JSON.
	Usage *Usage `event:",inline"`
}

// MsgID returns the event's id for the Nats-Msg-Id header, see [MsgID]. The run stands in
// for the row; index counts the run events of the process, from 0.
func (r *Run) MsgID(index int) string { return MsgID(r.Stage+"/"+r.RunID, r.Owner, KindRun, index) }

// AppendJSON appends the event to dst and returns the extended slice. A run holds no
// bodies, so payloads makes no difference; it is there to treat all kinds alike.
//
// An event that would take more than bytesMax bytes (0 or less means no bound) is written
// without the settings and, if that is not enough, without the summary's usage by model,
// with truncated set. The rest is written even if it takes more.
func (r *Run) AppendJSON(dst []byte, _ Payloads, bytesMax int) []byte {
	start := len(dst)
	dst = runLayout.appendEvent(dst, KindRun, r)
	over := func() bool { return bytesMax > 0 && len(dst)-start > bytesMax }
	lean := *r
	lean.Truncated = true
	if over() && lean.Settings != nil {
		lean.Settings = nil
		dst = runLayout.appendEvent(dst[:start], KindRun, &lean)
	}
	if over() && lean.Summary != nil && len(lean.Summary.Usage) > 0 {
		summary := *lean.Summary
		summary.Usage, lean.Summary = nil, &summary
		dst = runLayout.appendEvent(dst[:start], KindRun, &lean)
	}
	return dst
}
