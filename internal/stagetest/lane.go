package stagetest

import (
	"fmt"

	"github.com/llm-stage/stage/auditlog"
)

// Batch records a phase of a batch at a provider; change may fill in what it adds.
func (j *Job) Batch(owner, token string, phase auditlog.BatchPhase, rows int, change func(*auditlog.Batch)) {
	b := &auditlog.Batch{
		Header: j.header(RunOf(owner), 0), Owner: owner, Phase: phase, Token: token, BatchID: "batch_" + token, Provider: "mock", Model: "small",
		Rows: rows, Bytes: int64(rows) * 100,
	}
	if phase == auditlog.BatchIntent {
		b.BatchID = ""
	}
	if change != nil {
		change(b)
	}
	j.Steps = append(j.Steps, Step{Batch: b})
}

// Line records the call event of a row that a batch answered.
func (j *Job) Line(owner, token string, seq uint64, status auditlog.CallStatus) {
	j.Call(owner, seq, 0, status)
	c := j.Steps[len(j.Steps)-1].Call
	c.CallID, c.Lane, c.BatchID = fmt.Sprintf("%s-%d", token, seq), auditlog.LaneBatch, "batch_"+token
}

// Billed sums the usage of the lines of a batch so far, those that are recorded again
// left out.
func (j *Job) Billed(token string) (u *auditlog.Usage) {
	seen := make(map[string]bool)
	for _, st := range j.Steps {
		if c := st.Call; c != nil && c.BatchID == "batch_"+token && !seen[c.CallID] {
			seen[c.CallID] = true
			u = u.Plus(c.Usage)
		}
	}
	return u
}
