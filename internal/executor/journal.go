package executor

import (
	"fmt"

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

// form is the [consumer.Reply.Form] of a success. A reply that calls tools is no value.
func (p *Prompt) form(a *answer) string {
	if p.embeds || p.schema != nil && !a.callsTools() {
		return formValue
	}
	return formText
}

// values reports whether replies become values in results, and not texts.
func (p *Prompt) values() bool { return p.embeds || p.schema != nil }

// errorForm is the [consumer.Reply.Form] of an error: the setting without which the reply
// might have been a success. It is empty if the error depends on no setting.
func (p *Prompt) errorForm(row *consumer.Row, reason llm.Reason) string {
	switch reason { //nolint:exhaustive // the others depend on no setting
	case llm.ReasonResultTooLarge:
		return fmt.Sprintf("room=%d", row.MaxBodyBytes-p.format.Overhead())
	case llm.ReasonSchemaValidationFailed:
		return "schema=" + p.schemaHash()
	case llm.ReasonTruncated:
		form := fmt.Sprintf("accept_truncated=%t", p.llm.AcceptTruncated)
		if p.format.Keep.Has(llm.KeepToolCalls) { // a reply that calls tools is complete now
			form += ",tool_calls"
		}
		return form
	case llm.ReasonResponseTooLarge:
		return fmt.Sprintf("max_reply_bytes=%d", p.llm.MaxReplyBytes)
	default:
		return ""
	}
}

// schemaHash identifies the response schema. It is empty if there is none.
func (p *Prompt) schemaHash() string {
	if p.schema == nil {
		return ""
	}
	return llm.Hash(p.schema.Source())
}

// kept returns the reply that an earlier term kept for the job, or nil.
func (j *job) kept() *consumer.Kept {
	if j.fan != nil {
		return j.row.KeptItems[j.index]
	}
	return j.row.Kept
}

// errorAgain makes the body of a kept error again.
func (p *Prompt) errorAgain(j *job, reply *consumer.Reply) (ok bool) {
	kept := &j.kept().Reply
	if kept.Form != p.errorForm(j.row, llm.Reason(kept.Event.Reason)) {
		return false
	}
	reply.Failed = true
	reply.Body, ok = p.format.AppendErrorAgain(nil, j.parsed, kept.Body, attemptsOf(kept.Event.Errors), j.row.MaxBodyBytes)
	return ok
}

// successAgain makes the body of a kept success again, or an error result if it no
// longer fits.
func (p *Prompt) successAgain(j *job, reply *consumer.Reply) bool {
	kept := &j.kept().Reply
	a, ok := row.ReadAnswer(kept.Body, kept.Form == formValue)
	switch {
	case !ok:
		return false
	case kept.Form == formText: // any settings can use it
	case kept.Form == formValue && p.values():
		a.Text = string(a.Value)
	default: // the text that the value was read from is gone, or an older version did not record which of the two it is
		return false
	}
	// A part that was not kept then is null now: the reply is not paid for again.
	body, tooLarge, err := p.result(j, &answer{Text: a.Text, Model: a.Model, Usage: a.Usage, Kept: a.Kept})
	if err != nil {
		return false
	}
	if tooLarge != nil {
		reply.Failed, reply.Event.Reason = true, string(tooLarge.Reason)
		reply.Event.Errors = withCause(kept.Event.Errors, tooLarge)
		body = p.errorBody(j.parsed, j.row, tooLarge, attemptsOf(kept.Event.Errors))
	}
	reply.Body = body
	return true
}
