package executor

import (
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/pool"
)

// job is a row between the queue and its answer. One goroutine at a time works on it.
type job struct {
	prompt *prompt // set if the job is a prompt, and then the rest is not
	group  *group  // set if the job is the call of several others, and then the rest is not
	row    *consumer.Row
	fan    *fan // or nil if the job is for the whole row
	index  int  // of the element of fan
	// skipped is set when the last attempt made no call, because the row fails whatever
	// the reply.
	skipped bool
	away    bool    // in the last attempt the store of its media could not be reached
	found   *answer // stored for an equal request, see sharing.lookUp

	// These are set by render, and key by finish, and stay the same from then on. parsed
	// is what the job's own result is made of: the row, or an empty row for an element. It
	// is nil if the body is no row.
	parsed *row.Row
	vars   string // hash of the template's variables
	model  string // that the row names, or empty for the target's own
	key    string // hash of the request to the first target, see addressFirst; empty before

	// These are the request as it is sent next: prepared holds the bytes of request for
	// target. Both are dropped by done.
	request  llm.Request
	target   int
	prepared *llm.Prepared

	spent
	body     []byte     // of the result, once a call has succeeded
	form     string     // of body, see [consumer.Reply]
	tooLarge *llm.Error // why body does not fit; body is nil then
}

// spent is what the attempts at a row came to so far. It outlives a hand-back, in
// [consumer.Row.Spent]: a process that was starved for a moment hands back rows between
// two attempts and starts them again in the same term. The row event of that term must
// count all calls that the audit holds.
type spent struct {
	// These count what was spent in the starts before this one. The pool counts the
	// attempts of this start.
	attempts, capacityRetries int
	started                   time.Time // or zero if there was no attempt
	calls                     int       // recorded in this term
	hash                      callsHash // of all calls, those of this start included

	live                bool   // it was for the batch lane, and is called live after all
	rejected, complaint string // of the next request, see [llm.Request]

	errors []auditlog.AttemptError
	usage  auditlog.UsageSum
}

// result is the outcome of a job in the pool.
type result = pool.Result[*job, struct{}]

// Traits returns what the pool should know of the job. Elements of one row are a group: the
// row itself may be the reason why they fail.
func (j *job) Traits() pool.Traits {
	if j.prompt != nil {
		return pool.Traits{Single: true}
	}
	if j.group != nil {
		return pool.Traits{Arrived: j.group.jobs[0].row.Taken, Attempts: j.group.attempts}
	}
	traits := pool.Traits{Arrived: j.row.Taken, Key: j.row.Key}
	if j.fan != nil {
		traits.Group = j.fan
	}
	return traits
}

// Weight estimates the tokens of the job's next call: those of the request by its length,
// and as many as the reply may have. It implements [pool.Weighted]; the reply's usage
// corrects it.
func (j *job) Weight(int) int64 {
	if j.prompt != nil {
		return j.prompt.weight()
	}
	if j.group != nil {
		return j.group.weight
	}
	if j.prepared == nil {
		return 0
	}
	return call.EstimateTokens(j.prepared, &j.request)
}

// unwanted reports whether the job is no longer to be called: its row belongs to another
// replica now. A prompt has no row.
func (j *job) unwanted() bool {
	switch {
	case j.prompt != nil:
		return false
	case j.group != nil:
		return !j.group.wanted()
	}
	return !j.row.Wanted()
}

// isFor reports whether the job is for a row, for an element of it, or for several rows of
// which it is one.
func (j *job) isFor(row *consumer.Row) bool {
	return j.row == row || j.group != nil && j.group.has(row)
}

// addressFirst makes the bytes of the request to the first target, and its key. The key is
// that of the request without what a reply was rejected for.
func (j *job) addressFirst(caller *call.Caller) error {
	rejected, complaint := j.rejected, j.complaint
	if j.target == 0 && j.request.Complaint != "" { // its media have been looked up again
		rejected, complaint = j.request.Rejected, j.request.Complaint
	}
	j.request.Rejected, j.request.Complaint = "", ""
	if err := j.address(caller, 0); err != nil {
		return err
	}
	j.key = caller.At(0).Key(j.prepared)
	if complaint == "" {
		return nil
	}
	j.request.Rejected, j.request.Complaint = rejected, complaint
	return j.address(caller, 0)
}

// address makes the bytes that go over the wire to a target. The model that a row names
// is for the first one only: others would not know it.
func (j *job) address(caller *call.Caller, to int) (err error) {
	j.request.Model = caller.At(to).Model()
	if to == 0 && j.model != "" {
		j.request.Model = j.model
	}
	if j.target != to { // another model's rejected reply means nothing to this one
		j.request.Rejected, j.request.Complaint = "", ""
	}
	j.target = to
	j.prepared, err = caller.At(to).Prepare(&j.request)
	return err
}
