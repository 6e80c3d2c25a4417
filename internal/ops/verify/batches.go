package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/seqset"
)

const (
	// batchesKept is how many batches that are over are held, in case an answer of theirs
	// was recorded once more by a later owner. It is far above what may be open.
	batchesKept = 4096
	// batchSettles is how long the last call events of a batch may come after its end.
	batchSettles = time.Minute
	// batchesNamed is how many open batches a note names.
	batchesNamed = 10
)

// batchVerifier adds up each batch of a provider's Batch API. It checks that
//
//   - what was answered had been submitted, and what was submitted had an intent;
//   - answered + failed + lapsed + missing = rows of the batch;
//   - each answer has its call event, unless its row went live and did not use it;
//   - no row was answered, and so paid for, by two batches.
//
// A batch that is over is checked when it leaves, and batchesKept of them stay meanwhile.
// So memory is bounded by the open batches, these, and sets of the rows that they answered.
type batchVerifier struct {
	report *Report
	began  time.Time // of the check
	// auditLost and resultsLost say that messages of these streams are gone.
	auditLost, resultsLost bool

	records map[string]*batchRecord // by token
	closed  []string                // tokens of those that are over, oldest first
	paid    map[int]*paidRows       // by partition
	live    map[int]*seqset.Set     // by partition: rows that were called live
	dropped map[int]int             // by partition
	unused  []unusedAnswers         // of batches
	// uncheck counts the batches that were not compared, since events of the audit are
	// gone.
	uncheck int
	// settling counts the batches that ended a moment ago, so that not all events of their
	// calls are there.
	settling int
	forgot   bool              // a batch was dropped from records
	usage    auditlog.UsageSum // billed, of all batches
	stats    verifiedBatches
}

// batchRecord is what the audit says of one batch.
type batchRecord struct {
	token, id         string // id: the provider's
	partition, rows   int
	intent, submitted bool
	end               *auditlog.Batch // ended, cancelled, expired or abandoned; or nil while open

	calls seqset.Set // rows with a call event
	count int        // of calls
	late  int        // of them unused
	usage auditlog.UsageSum
}

// unusedAnswers are answers of a batch that no call event names. Their rows had gone
// live, or the events are missing.
type unusedAnswers struct {
	token                             string
	partition, answers, dropped, rows int // rows: with call events
}

// paidRows are the rows of one partition and input stream that a batch has answered.
type paidRows struct {
	epoch int
	rows  seqset.Set
}

// verifiedBatches counts the batches that were submitted, their answers and their bill.
type verifiedBatches struct {
	// Batches counts all batches that the audit names. Undecided ones have an intent alone,
	// Open ones were submitted, and the others are over.
	Batches   int `json:"batches"`
	Undecided int `json:"undecided"`
	Open      int `json:"open"`
	Ended     int `json:"ended"`
	Cancelled int `json:"cancelled"`
	Expired   int `json:"expired"`
	Abandoned int `json:"abandoned"`
	Adopted   int `json:"adopted"` // of Batches: found at the provider after a crash
	Doubled   int `json:"doubled"` // of Abandoned: turned up at the provider all the same

	// RowsSubmitted counts the rows of batches that the provider had, open ones included.
	// The counts below are about batches that are over.
	RowsSubmitted int `json:"rows_submitted"`
	Answered      int `json:"answered"`
	Failed        int `json:"failed"`
	Lapsed        int `json:"lapsed"`
	Missing       int `json:"missing"`
	Foreign       int `json:"foreign"`
	Dropped       int `json:"dropped"`
	// Unused counts further answers without a call. Their rows had gone live before a
	// crash.
	Unused int `json:"unused"`

	// Calls counts the answers in the audit, each once, including answers that no row took.
	// CallsAgain counts further events of the same answers.
	Calls      int `json:"calls"`
	CallsAgain int `json:"calls_recorded_again"`

	// Tokens and CostUSD were billed. They are nil if the bill is unknown.
	Tokens  *int64   `json:"tokens"`
	CostUSD *float64 `json:"cost_usd"`
}

func newBatchVerifier(report *Report) *batchVerifier {
	return &batchVerifier{
		report: report, began: time.Now(), records: make(map[string]*batchRecord),
		paid: make(map[int]*paidRows), live: make(map[int]*seqset.Set), dropped: make(map[int]int),
	}
}

// record returns the record of a batch, and creates it at the first event of the batch.
func (v *batchVerifier) record(token string, partition auditlog.Partition) *batchRecord {
	r := v.records[token]
	if r == nil {
		r = &batchRecord{token: strings.Clone(token), partition: int(partition)}
		v.records[r.token] = r
	}
	return r
}

// event takes a batch event. If a batch has two ends the later one counts: an owner that
// was killed before it was done with the batch leaves its end to be recorded again.
func (v *batchVerifier) event(e *auditlog.Batch) {
	r := v.record(e.Token, e.Partition)
	r.rows, r.id = max(r.rows, e.Rows), cmp.Or(e.BatchID, r.id)
	switch e.Phase {
	case auditlog.BatchIntent:
		r.intent = true
	case auditlog.BatchSubmitted:
		r.submitted = true
	case auditlog.BatchAdopted:
		r.submitted = true
		v.stats.Adopted++
	case auditlog.BatchEnded, auditlog.BatchCancelled, auditlog.BatchExpired, auditlog.BatchAbandoned:
		if r.end != nil && r.end.Phase == auditlog.BatchAbandoned && e.Phase != r.end.Phase {
			v.stats.Doubled++
			return
		}
		if r.end == nil {
			v.closed = append(v.closed, r.token)
		}
		r.end = e
		v.forget()
	}
}

// forget checks and drops the oldest batches that are over, beyond the bound.
func (v *batchVerifier) forget() {
	for ; len(v.closed) > batchesKept; v.closed = v.closed[1:] {
		v.conclude(v.records[v.closed[0]])
		delete(v.records, v.closed[0])
		v.forgot = true
	}
}

// call takes the event of a call that a batch answered, for a row of the input stream of
// an epoch, and reports whether it is new. The answers of a batch are read again after a
// crash, and then the same call has a further event.
func (v *batchVerifier) call(c *auditlog.Call, epoch int) bool {
	at := strings.LastIndexByte(c.CallID, '-')
	seq, err := strconv.ParseUint(c.CallID[at+1:], 10, 64)
	if at < 0 || err != nil || seq != c.Sequence {
		v.report.violate(violationCustomID, int(c.Partition), c.Sequence,
			"row %d was answered by the line %s of batch %s, which is not its own", c.Sequence,
			c.CallID, c.BatchID)
		return true
	}
	r := v.record(c.CallID[:at], c.Partition)
	if !r.calls.Add(seq) {
		v.stats.CallsAgain++
		return false
	}
	r.count++
	v.stats.Calls++
	r.usage.Add(c.Usage, c.Unpriced())
	switch {
	case c.Unused:
		r.late++
	case c.Status == auditlog.CallSuccess:
		v.pay(r, seq, epoch)
	}
	return true
}

// pay notes that a batch has answered a row.
func (v *batchVerifier) pay(r *batchRecord, seq uint64, epoch int) {
	p := v.paid[r.partition]
	if p == nil || p.epoch < epoch {
		p = &paidRows{epoch: epoch}
		v.paid[r.partition] = p
	}
	// With results lost, a row whose result is gone was rightly called again.
	if p.epoch == epoch && !p.rows.Add(seq) && !v.resultsLost {
		v.report.violate(violationPaidTwice, r.partition, seq,
			"row %d was answered by batch %s, and by another batch before", seq, r.token)
	}
}

// wentLive notes that a row was called live.
func (v *batchVerifier) wentLive(c *auditlog.Call) {
	if len(v.records) == 0 {
		return
	}
	set := v.live[int(c.Partition)]
	if set == nil {
		set = new(seqset.Set)
		v.live[int(c.Partition)] = set
	}
	set.Add(c.Sequence)
}

// finish checks the batches that are left, and reports their sums.
func (v *batchVerifier) finish() {
	tokens := make([]string, 0, len(v.records))
	for token := range v.records {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	var open, undecided []string
	for _, token := range tokens {
		r := v.records[token]
		v.conclude(r)
		name := fmt.Sprintf("%s (%d rows)", cmp.Or(r.id, token), r.rows)
		switch {
		case r.end != nil:
		case r.submitted:
			open = append(open, name)
		case r.intent:
			undecided = append(undecided, name)
		}
	}
	v.checkUnused()
	v.noteOpen(open, "submitted and not over yet")
	v.noteOpen(undecided, "about to be submitted")
	if v.uncheck > 0 {
		v.report.note("%d batches were not compared with their calls: events of the audit are gone",
			v.uncheck)
	}
	if v.settling > 0 {
		v.report.note("%d batches have ended just now, and not all their calls are in the audit yet",
			v.settling)
	}
	if v.stats.Doubled > 0 {
		v.report.note("%d batches turned up at the provider after they had been given up: what they "+
			"answered before they were cancelled was paid for in vain",
			v.stats.Doubled)
	}
	if st := &v.stats; v.usage.Reported == nil && !v.usage.Unpriced && st.Answered+st.Missing+st.Open+st.Undecided+st.Abandoned == 0 {
		// Failed and lapsed lines are not billed.
		v.usage.Reported = &auditlog.Usage{CostUSD: new(float64)}
	}
	if u := v.usage.Total(); u != nil {
		v.stats.Tokens, v.stats.CostUSD = &u.TotalTokens, u.CostUSD
	}
	if v.stats.Batches > 0 {
		v.report.Batches = &v.stats
	}
}

// noteOpen says which batches are not over.
func (v *batchVerifier) noteOpen(names []string, state string) {
	if len(names) == 0 {
		return
	}
	more := ""
	if n := len(names) - batchesNamed; n > 0 {
		names, more = names[:batchesNamed], fmt.Sprintf(" and %d more", n)
	}
	v.report.note("batches %s: %s%s", state, strings.Join(names, ", "), more)
}

// conclude checks a batch that can have no further event, and adds it to the sums.
func (v *batchVerifier) conclude(r *batchRecord) {
	known := r.intent || r.submitted || r.end != nil
	if !known && (v.forgot || v.auditLost) {
		return // the answers were read once more, long after the end of the batch
	}
	v.stats.Batches++
	if r.submitted {
		v.stats.RowsSubmitted += r.rows
	}
	billed := &r.usage
	if e := r.end; e != nil && e.Usage != nil {
		billed = &auditlog.UsageSum{Reported: e.Usage}
	}
	v.usage.Add(billed.Reported, billed.Unpriced)
	v.addEnd(r)
	v.checkPhases(r, known)
	if r.end != nil && r.end.Phase.Over() {
		v.checkEnd(r, r.end)
	}
}

// addEnd adds a batch to the counts.
func (v *batchVerifier) addEnd(r *batchRecord) {
	e := r.end
	if e == nil {
		if r.submitted {
			v.stats.Open++
		} else {
			v.stats.Undecided++
		}
		return
	}
	*map[auditlog.BatchPhase]*int{
		auditlog.BatchEnded: &v.stats.Ended, auditlog.BatchCancelled: &v.stats.Cancelled,
		auditlog.BatchExpired: &v.stats.Expired, auditlog.BatchAbandoned: &v.stats.Abandoned,
	}[e.Phase]++
	v.stats.Answered += e.Answered
	v.stats.Failed += e.Failed
	v.stats.Lapsed += e.Lapsed
	v.stats.Missing += e.Missing
	v.stats.Foreign += e.Foreign
	v.stats.Dropped += e.Dropped
	v.dropped[r.partition] += r.uncalled(e)
}

// checkPhases looks for the events that each batch must have: nothing is submitted
// without an intent, and nothing is answered that was not submitted.
func (v *batchVerifier) checkPhases(r *batchRecord, known bool) {
	missing := ""
	switch {
	case v.auditLost:
	case !known:
		missing = fmt.Sprintf("has %d call events and no event of its own", r.count)
	case !r.intent:
		missing = "has no event of its intent"
	case r.submitted:
	case r.end != nil && r.end.Phase.Over():
		missing = "is over, and has no event that it was submitted or adopted"
	case r.count > 0:
		missing = fmt.Sprintf("has %d call events, and no event that it was submitted or adopted", r.count)
	}
	if missing != "" {
		v.violate(r, "%s", missing)
	}
}

// checkEnd compares what the end of a batch says with its rows and its call events.
func (v *batchVerifier) checkEnd(r *batchRecord, e *auditlog.Batch) {
	if n := e.Answered + e.Failed + e.Lapsed + e.Missing; n != e.Rows {
		v.violate(r,
			"has %d rows; %d are answered, %d failed, %d lapsed and %d missing", e.Rows,
			e.Answered, e.Failed, e.Lapsed, e.Missing)
	}
	answers, dropped := e.Answered+e.Failed, r.uncalled(e)
	most := answers
	if e.Reason == auditlog.ResultsGone {
		most += e.Missing
	}
	switch want := answers - dropped; {
	case r.count > most:
		v.violate(r, "has %d answers and errors, and call events of %d rows", answers, r.count)
	case r.count < want && v.auditLost:
		v.uncheck++
	case r.count < want && v.began.Sub(e.Time) < batchSettles:
		v.settling++
	case r.count < want:
		v.unused = append(v.unused, unusedAnswers{r.token, r.partition, answers, dropped, r.count})
	case r.count == answers: // with fewer events, some answers are billed and have no call
		if d := compareUsage(r.usage, e.Usage); d != nil {
			v.violate(r, "%s in its own", d.text)
		}
	}
}

// uncalled returns how many of the dropped answers have no call event. Older versions of
// the stage recorded none for them.
func (r *batchRecord) uncalled(e *auditlog.Batch) int { return max(0, e.Dropped-r.late) }

// checkUnused looks for answers without a call that cannot be explained by rows that went
// live. An owner that reads the results after a crash does not know all such rows, so only
// their number is compared, in each partition.
func (v *batchVerifier) checkUnused() {
	left := make(map[int]int)
	for partition, rows := range v.live {
		for range rows.All() {
			left[partition]++
		}
	}
	for partition, dropped := range v.dropped {
		left[partition] -= dropped
	}
	for _, u := range v.unused {
		n := u.answers - u.dropped - u.rows
		v.stats.Unused += n
		if left[u.partition] -= n; left[u.partition] < 0 {
			v.report.violate(violationBatch, u.partition, 0,
				"batch %s has %d answers and errors, of them %d dropped, and call events of "+
					"%d rows",
				u.token, u.answers, u.dropped, u.rows)
		}
	}
}

// violate notes a contradiction about a batch.
func (v *batchVerifier) violate(r *batchRecord, format string, args ...any) {
	v.report.violate(violationBatch, r.partition, 0,
		"batch %s "+format, append([]any{r.token}, args...)...)
}

// text is the line of the report.
func (b *verifiedBatches) text() string {
	billed := "unknown tokens"
	if b.Tokens != nil {
		billed = fmt.Sprintf("%d tokens", *b.Tokens)
	}
	billed += ", cost in USD " + cost.Format(&auditlog.Usage{CostUSD: b.CostUSD})
	text := fmt.Sprintf("batches: %d, of them %d ended, %d expired, %d cancelled, %d abandoned, %d open, %d undecided, %d adopted", b.Batches, b.Ended, b.Expired, b.Cancelled,
		b.Abandoned, b.Open, b.Undecided, b.Adopted)
	return text + fmt.Sprintf("; %d rows submitted: %d answered, %d failed, %d lapsed, %d missing, %d dropped; billed %s", b.RowsSubmitted, b.Answered, b.Failed, b.Lapsed,
		b.Missing, b.Dropped, billed)
}
