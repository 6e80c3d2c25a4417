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
	"github.com/llm-stage/stage/internal/stored"
)

// appendGroup is the most results that are stored at once: so many may be there that the process never knew of, since the
// answer to its last append did not come.
const appendGroup = 1000

// runVerifier compares the summaries that processes leave at their end with what the streams hold of them.
type runVerifier struct {
	runs map[string]*runRecord // those that the audit tells of
	used verifiedAudit
}

// runRecord is one process.
type runRecord struct {
	id       string
	settings map[string]string // nil: its start is not in the audit any more
	ended    time.Time
	summary  *auditlog.Summary // nil: it was killed, or it is running
	cut      bool              // the summary has no usage by model

	calls             callTotals
	capacity          uint64
	models            map[cost.ModelKey]*callTotals
	succeeded, failed uint64 // results
}

// callTotals is what the call events of a process add up to.
type callTotals struct {
	calls uint64
	usage auditlog.UsageSum
}

func newRunVerifier() *runVerifier { return &runVerifier{runs: make(map[string]*runRecord)} }

// run takes a run event; all of them come before the other events.
func (v *runVerifier) run(e *auditlog.Run) {
	r := v.runs[e.RunID]
	if r == nil {
		r = &runRecord{id: e.RunID, models: make(map[cost.ModelKey]*callTotals)}
		v.runs[e.RunID] = r
	}
	switch e.Phase {
	case auditlog.PhaseStart:
		r.settings = e.Settings
		if r.settings == nil { // left out because the event was too large
			r.settings = map[string]string{}
		}
	case auditlog.PhaseEnd:
		r.ended, r.summary, r.cut = e.Time, e.Summary, e.Truncated
	case auditlog.PhaseClaim, auditlog.PhaseFenced, auditlog.PhasePause, auditlog.PhaseResume:
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

// call takes a call event.
func (v *runVerifier) call(e *auditlog.Call) {
	retry := e.Status == auditlog.CallCapacityRetry
	v.used.Calls++
	if e.BatchID != "" {
		v.used.Batched++
	}
	v.used.usage.Add(e.Usage, e.Unpriced())
	if retry {
		v.used.CapacityRetries++
	}
	r := v.runs[e.RunID]
	if r == nil || r.summary == nil {
		return
	}
	if retry {
		r.capacity++
	}
	key := cost.ModelKey{Provider: e.Provider, Model: e.Model}
	m := r.models[key]
	if m == nil {
		m = new(callTotals)
		r.models[key] = m
	}
	for _, t := range []*callTotals{&r.calls, m} {
		t.calls++
		t.usage.Add(e.Usage, e.Unpriced())
	}
}

// result takes a result.
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

// started tells whether the audit holds the start of the process that an owner belongs to.
func (v *runVerifier) started(owner string) bool {
	r := v.runs[processOf(owner)]
	return r != nil && r.settings != nil
}

// processOf is the run that a term belongs to; empty: the owner names none.
func processOf(owner string) string { return owner[:max(0, strings.LastIndexByte(owner, '.'))] }

// finish compares the summaries, as far as the streams have what they count.
func (v *runVerifier) finish(report *Report, partitions int, audit, results *streamLoss) {
	report.Audit = v.used
	report.Audit.Runs = len(v.runs)
	for _, r := range slices.SortedFunc(maps.Values(v.runs), func(a, b *runRecord) int { return a.ended.Compare(b.ended) }) {
		if r.summary == nil {
			continue
		}
		switch {
		case r.settings == nil && audit.front > 0 && !audit.canExpire():
			report.cannot("run %s: its beginning is no longer in the audit and can't have expired, its summary was not compared", r.id)
			continue
		case r.settings == nil && audit.any():
			report.note("run %s: its beginning is no longer in the audit, its summary was not compared", r.id)
			continue
		}
		report.Audit.RunsChecked++
		r.check(report, partitions, audit, results)
	}
}

// check compares the summary of one run.
func (r *runRecord) check(report *Report, partitions int, audit, results *streamLoss) {
	violate := func(format string, args ...any) {
		report.violate(violationRun, wholeStage, 0, "run %s: "+format, append([]any{r.id}, args...)...)
	}
	s := r.summary
	said := s.RowsSucceeded + s.RowsFailed
	found := r.succeeded + r.failed
	switch p, err := strconv.Atoi(r.settings["STAGE_PARTITIONS"]); {
	case err == nil && p != partitions:
		report.note("run %s: it served %d partitions and STAGE_PARTITIONS is %d, so its results were not compared", r.id, p, partitions)
	case found < said && results.any():
		report.cannot("run %s: %d results are left, its summary says %d", r.id, found, said)
	case found < said && r.ended.Before(results.info.Created): // that stream was another
		report.note("run %s: %d results are left, its summary says %d", r.id, found, said)
	case found < said || found > said+appendGroup*uint64(max(1, partitions)): //nolint:gosec // few
		violate("%d results are stored, its summary says %d", found, said)
	case found == said && (r.succeeded != s.RowsSucceeded || r.failed != s.RowsFailed):
		violate("%d rows succeeded and %d failed, its summary says %d and %d", r.succeeded, r.failed, s.RowsSucceeded, s.RowsFailed)
	}
	if r.calls.calls < s.Total.Calls && audit.inside > 0 {
		report.cannot("run %s: %d call events are left, its summary says %d calls", r.id, r.calls.calls, s.Total.Calls)
		return
	}
	if r.calls.calls != s.Total.Calls {
		violate("%d call events, its summary says %d calls", r.calls.calls, s.Total.Calls)
		return
	}
	if r.capacity != s.CapacityRetries {
		violate("%d capacity retries in the call events, its summary says %d", r.capacity, s.CapacityRetries)
	}
	if d := usageDiffers(r.calls.usage, s.Total.Usage); d != nil {
		violate("%s in its summary", d.text)
	}
	if !r.cut {
		r.checkModels(violate)
	}
}

// checkModels compares the usage by provider and model.
func (r *runRecord) checkModels(violate func(string, ...any)) {
	said := make(map[cost.ModelKey]auditlog.Totals, len(r.summary.Usage))
	for _, m := range r.summary.Usage {
		said[cost.ModelKey{Provider: m.Provider, Model: m.Model}] = m.Totals
	}
	for key := range r.models {
		if _, ok := said[key]; !ok {
			said[key] = auditlog.Totals{}
		}
	}
	keys := slices.SortedFunc(maps.Keys(said), func(a, b cost.ModelKey) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model))
	})
	for _, key := range keys {
		var found callTotals
		if m := r.models[key]; m != nil {
			found = *m
		}
		if found.calls != said[key].Calls {
			violate("%s %s: %d call events, its summary says %d calls", key.Provider, key.Model, found.calls, said[key].Calls)
		} else if d := usageDiffers(found.usage, said[key].Usage); d != nil {
			violate("%s %s: %s in its summary", key.Provider, key.Model, d.text)
		}
	}
}
