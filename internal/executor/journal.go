package executor

import (
	"bytes"
	"fmt"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// The values of [consumer.Reply.Form] for a success: what its field holds. A JSON string
// may be either.
const (
	formText  = "text"  // the reply, unchanged
	formValue = "value" // the value in the reply that satisfied the schema
)

// form is the [consumer.Reply.Form] of a success.
func (p *Prompt) form() string {
	if p.schema != nil {
		return formValue
	}
	return formText
}

// errorForm is the [consumer.Reply.Form] of an error: the setting without which the reply
// might have been a success. Empty: none, the error does not depend on a setting.
func (e *Executor) errorForm(row *consumer.Row, reason llm.Reason) string {
	switch reason { //nolint:exhaustive // the others depend on no setting
	case llm.ReasonResultTooLarge:
		return fmt.Sprintf("room=%d", row.MaxBodyBytes-e.prompt.format.Overhead())
	case llm.ReasonSchemaValidationFailed:
		return "schema=" + e.prompt.schemaHash()
	case llm.ReasonTruncated:
		return fmt.Sprintf("accept_truncated=%t", e.cfg.LLM.AcceptTruncated)
	case llm.ReasonResponseTooLarge:
		return fmt.Sprintf("max_reply_bytes=%d", e.cfg.LLM.MaxReplyBytes)
	default:
		return ""
	}
}

// schemaHash identifies the response schema, or empty.
func (p *Prompt) schemaHash() string {
	if p.schema == nil {
		return ""
	}
	return llm.Hash(p.schema.Source())
}

// restore answers the job with the reply that an earlier term of ownership kept in the
// journal for the same request. Its result may have been made with other settings:
// another field, schema, template or largest message. So the result is always made again
// with the present ones, which gives the same bytes if they are the same. It reports
// false if no reply is kept, or if the kept one cannot be used with the present settings:
// then the call is made, and paid for, again.
func (e *Executor) restore(j *job) bool {
	kept := j.kept()
	if kept == nil || kept.RequestHash != j.key {
		return false
	}
	reply := consumer.Reply{Event: kept.Reply.Event, RequestHash: j.key}
	if e.Lanes != nil && reply.Event.RunID == e.caller.RunID() {
		reply.RequestHash = "" // behind the lane every reply waits in the journal: nothing was lost, and it is there
	} else {
		reply.Event.Source = auditlog.SourceJournal
	}
	reply.Event.TemplateHash, reply.Event.VariablesHash = e.prompt.templateHash(), j.vars
	var ok bool
	if kept.Reply.Failed {
		ok = e.restoreError(j, &reply)
	} else {
		ok = e.restoreSuccess(j, &reply)
	}
	if !ok {
		return false
	}
	if bytes.Equal(reply.Body, kept.Reply.Body) {
		reply.Body = kept.Reply.Body // the journal holds it until the row is emitted: no second copy
	}
	e.answer(j, reply)
	return true
}

// kept is the reply that an earlier term kept for the job, or nil.
func (j *job) kept() *consumer.Kept {
	if j.fan != nil {
		return j.row.KeptItems[j.index]
	}
	return j.row.Kept
}

// restoreError makes the body of a kept error again.
func (e *Executor) restoreError(j *job, reply *consumer.Reply) (ok bool) {
	kept := &j.kept().Reply
	if kept.Form != e.errorForm(j.row, llm.Reason(kept.Event.Reason)) {
		return false
	}
	reply.Failed = true
	reply.Body, ok = e.prompt.format.AppendErrorAgain(nil, j.parsed, kept.Body, attemptsOf(kept.Event.Errors), j.row.MaxBodyBytes)
	return ok
}

// restoreSuccess makes the body of a kept success again, or an error result if it no
// longer fits.
func (e *Executor) restoreSuccess(j *job, reply *consumer.Reply) bool {
	kept := &j.kept().Reply
	a, ok := row.ReadAnswer(kept.Body, kept.Form == formValue)
	switch {
	case !ok:
		return false
	case kept.Form == formText: // any settings can use it
	case kept.Form == formValue && e.prompt.schema != nil:
		a.Text = string(a.Value)
	default: // the text that the value was read from is gone, or an older version did not record which of the two it is
		return false
	}
	body, tooLarge, err := e.prompt.result(j, &answer{Text: a.Text, Model: a.Model, Usage: a.Usage})
	if err != nil {
		return false
	}
	if tooLarge != nil {
		reply.Failed, reply.Event.Reason = true, string(tooLarge.Reason)
		reply.Event.Errors = withCause(kept.Event.Errors, tooLarge)
		body = e.prompt.errorBody(j.parsed, j.row, tooLarge, attemptsOf(kept.Event.Errors))
	}
	reply.Body = body
	return true
}
