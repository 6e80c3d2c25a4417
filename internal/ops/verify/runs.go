package verify

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// appendGroup is the most results of one append: a process has not counted them if the
// answer to its last append was lost.
const appendGroup = 1000

// runVerifier compares the summaries that processes leave at their end with what the
// streams hold of them.
type runVerifier struct {
	runs map[string]*runRecord // those in the audit, by id
	sum  verifiedAudit         // of all call events

	// dropped results were too old. The last of them was stored at droppedTo.
	dropped   uint64
	droppedTo time.Time
}

// runRecord is one process.
type runRecord struct {
	id string

	settings map[string]string // at its start, or nil if the audit no longer holds that event

	// unclaimed is set when the process has answered rows in a term without a claim in
	// the log.
	unclaimed bool

	began time.Time // zero if unknown

	// These are about its end. If it has no summary, because it was killed or is still
	// running, nothing is compared.
	ended   time.Time
	summary *auditlog.Summary
	cut     bool // the summary has no usage by model

	// Sums over the streams, which are compared with the summary. calls has the calls of
	// each model, and under allModels the calls of all models.
	calls             map[cost.ModelKey]callTotals
	capacity          uint64
	succeeded, failed uint64 // results
	dropped           uint64 // results that are gone for their age
}

// allModels is the key of the totals over all models.
var allModels cost.ModelKey

// callTotals is what the call events of a process add up to.
type callTotals struct {
	calls uint64
	usage auditlog.UsageSum
}

// newRunVerifier returns one that knows no run.
func newRunVerifier() *runVerifier { return &runVerifier{runs: make(map[string]*runRecord)} }

// run adds a run event; all of them come before the other events.
func (v *runVerifier) run(e *auditlog.Run) {
	r := v.runs[e.RunID]
	if r == nil && e.Phase == auditlog.PhaseControl {
		return // of a command, such as erase, which is no process of the stage
	}
	if r == nil {
		r = &runRecord{id: e.RunID, calls: make(map[cost.ModelKey]callTotals)}
		v.runs[e.RunID] = r
	}
	switch e.Phase {
	case auditlog.PhaseStart:
		r.settings, r.began = e.Settings, e.Time
		if r.settings == nil { // left out because the event was too large
			r.settings = map[string]string{}
		}
	case auditlog.PhaseEnd:
		r.ended, r.summary, r.cut = e.Time, e.Summary, e.Truncated
	case auditlog.PhaseClaim, auditlog.PhaseFenced, auditlog.PhasePause, auditlog.PhaseResume,
		auditlog.PhaseJoined, auditlog.PhaseLeads, auditlog.PhaseAlone, auditlog.PhaseControl:
	}
}

// number returns the largest value that any run had for a setting, at least atLeast.
func (v *runVerifier) number(variable string, atLeast int) int {
	for _, r := range v.runs {
		if n, err := strconv.Atoi(r.settings[variable]); err == nil {
			atLeast = max(atLeast, n)
		}
	}
	return atLeast
}

// call adds a call event. One that is not fresh is another event of the same call; the
// usage of a lane is added by its batches.
func (v *runVerifier) call(e *auditlog.Call, fresh bool) {
	retry := e.Status == auditlog.CallCapacityRetry
	if fresh {
		v.sum.Calls++
	}
	if e.BatchID != "" && e.Lane == "" {
		v.sum.Batched++
	}
	if e.Lane == "" {
		v.sum.usage.Add(e.Usage, e.Unpriced())
	}
	if retry && fresh {
		v.sum.CapacityRetries++
	}
	r := v.runs[e.RunID]
	if r == nil || r.summary == nil {
		return
	}
	if retry {
		r.capacity++
	}
	for _, key := range []cost.ModelKey{allModels, {Provider: e.Provider, Model: e.Model}} {
		t := r.calls[key]
		t.calls++
		t.usage.Add(e.Usage, e.Unpriced())
		r.calls[key] = t
	}
}

// result counts a result.
func (v *runVerifier) result(row *stored.ResultRow) {
	r := v.runs[processOf(row.Owner)]
	switch {
	case r == nil:
	case row.Status == auditlog.RowError:
		r.failed++
	default:
		r.succeeded++
	}
}

// unclaimed notes that a process has answered a row in a term whose claim is not in the
// log.
func (v *runVerifier) unclaimed(run string) {
	if r := v.runs[run]; r != nil {
		r.unclaimed = true
	}
}

// started reports whether the audit holds the start of the process that an owner belongs
// to.
func (v *runVerifier) started(owner string) bool {
	r := v.runs[processOf(owner)]
	return r != nil && r.settings != nil
}

// known reports whether the audit holds the settings of the process that an owner belongs
// to.
func (v *runVerifier) known(owner string) bool {
	r := v.runs[processOf(owner)]
	return r != nil && len(r.settings) > 0
}

// unknown reports whether rows may have been answered in the term of a claim by a process
// whose settings the audit does not hold. An erasure claims and answers none.
func (v *runVerifier) unknown(c stored.Claim) bool {
	return !v.known(c.Owner) && !strings.HasPrefix(c.Owner, "erase-")
}

// sameArray reports whether the processes that two owners belong to are known to have
// fanned out over the same array.
func (v *runVerifier) sameArray(a, b string) bool {
	const array = "STAGE_FOREACH"
	return v.known(a) && v.known(b) && v.runs[processOf(a)].settings[array] == v.runs[processOf(b)].settings[array] &&
		v.runs[processOf(a)].settings[array] != ""
}

// processOf is the run that a term belongs to, or empty if the owner names none.
func processOf(owner string) string { return owner[:max(0, strings.LastIndexByte(owner, '.'))] }

// finish compares the summaries with the streams, as far as the streams are complete.
func (v *runVerifier) finish(report *Report, partitions int, audit, results *streamLoss) {
	report.Audit = v.sum
	report.Audit.Runs = len(v.runs)
	for _, r := range slices.SortedFunc(maps.Values(v.runs), func(a, b *runRecord) int { return a.ended.Compare(b.ended) }) {
		if r.summary == nil {
			continue
		}
		switch {
		case r.settings == nil && audit.removed():
			report.cannot("run %s: its beginning is no longer in the audit and can't have expired; its "+
				"summary was not compared",
				r.id)
			continue
		case r.settings == nil && audit.any():
			report.note("run %s: its beginning is no longer in the audit; its summary was not compared",
				r.id)
			continue
		}
		report.Audit.RunsChecked++
		v.excuse(r)
		r.check(report, partitions, audit, results)
	}
}

// excuse counts the results that a run lacks as dropped, as far as it can have had so many
// of those.
func (v *runVerifier) excuse(r *runRecord) {
	reported, found := r.summary.RowsSucceeded+r.summary.RowsFailed, r.succeeded+r.failed
	if missing := reported - min(reported, found); missing <= v.dropped && r.began.Before(v.droppedTo.Add(auditSlack)) {
		r.dropped = missing
		v.dropped -= missing
	}
}

// check compares the summary of one run with the streams.
func (r *runRecord) check(report *Report, partitions int, audit, results *streamLoss) {
	violate := func(format string, args ...any) {
		report.violate(violationRun, wholeStage, 0,
			"run %s: "+format, append([]any{r.id}, args...)...)
	}
	differs := violate
	if r.settings == nil { // its first event is missing, so it may not be the only one
		differs = func(format string, args ...any) {
			report.cannot("run %s: "+format+"; its start is not in the audit",
				append([]any{r.id}, args...)...)
		}
	}
	s := r.summary
	reported := s.RowsSucceeded + s.RowsFailed
	found := r.succeeded + r.failed + r.dropped
	switch p, err := strconv.Atoi(r.settings["STAGE_PARTITIONS"]); {
	case err == nil && p != partitions:
		report.note("run %s: it served %d partitions and STAGE_PARTITIONS is %d, so its results were "+
			"not compared",
			r.id, p, partitions)
	case found < reported && results.any():
		report.cannot("run %s: %d results are left, its summary says %d", r.id, found, reported)
	case found < reported && r.ended.Before(results.info.Created): // that stream was another
		report.note("run %s: %d results are left, its summary says %d", r.id, found, reported)
	case found < reported && r.unclaimed:
		// The results stream was created again while the process ran. A term claims
		// before it answers a row, so the claim was in the earlier stream, with the
		// results of that term.
		report.cannot("run %s: %d results are left, its summary says %d, some of which were in an "+
			"earlier stream",
			r.id, found, reported)
	case found < reported || found > reported+appendGroup*uint64(max(1, partitions)): //nolint:gosec // few
		violate("%d results are stored, its summary says %d", found, reported)
	case found == reported && r.dropped == 0 && (r.succeeded != s.RowsSucceeded || r.failed != s.RowsFailed):
		violate("%d rows succeeded and %d failed, its summary says %d and %d", r.succeeded, r.failed, s.RowsSucceeded, s.RowsFailed)
	}
	switch found, reported := r.calls[allModels].calls, s.Total.Calls; {
	case found < reported && audit.inside > 0:
		report.cannot("run %s: %d call events are left, its summary says %d calls", r.id, found, reported)
	case found != reported:
		differs("%d call events, its summary says %d calls", found, reported)
	default:
		r.checkCalls(differs)
	}
}

// checkCalls compares retries and usage, in total and by provider and model, and reports
// each difference.
func (r *runRecord) checkCalls(differs func(string, ...any)) {
	if s := r.summary; r.capacity != s.CapacityRetries {
		differs("%d capacity retries in the call events, its summary says %d", r.capacity, s.CapacityRetries)
	}
	reported := make(map[cost.ModelKey]auditlog.Totals)
	if !r.cut {
		for key := range r.calls {
			reported[key] = auditlog.Totals{}
		}
		for _, m := range r.summary.Usage {
			reported[cost.ModelKey{Provider: m.Provider, Model: m.Model}] = m.Totals
		}
	}
	reported[allModels] = r.summary.Total
	keys := slices.SortedFunc(maps.Keys(reported), func(a, b cost.ModelKey) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model))
	})
	for _, key := range keys {
		of := ""
		if key != allModels {
			of = key.Provider + " " + key.Model + ": "
		}
		found := r.calls[key]
		if found.calls != reported[key].Calls {
			differs("%s%d call events, its summary says %d calls", of, found.calls, reported[key].Calls)
		} else if d := compareUsage(found.usage, reported[key].Usage); d != nil {
			differs("%s%s in its summary", of, d.text)
		}
	}
}
