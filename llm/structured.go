package llm

import (
	"encoding/json"
	"errors"

	"github.com/llm-stage/stage/llm/schema"
)

// ValidateReply is [schema.Schema.Validate] with an [*Error] of class [Transient] and reason
// [ReasonSchemaValidationFailed]: the model may do better when it is called again with a [Complaint].
func ValidateReply(s *schema.Schema, text string) (json.RawMessage, error) {
	value, err := s.Validate(text)
	if err != nil {
		return nil, &Error{Class: Transient, Reason: ReasonSchemaValidationFailed, Alike: string(ReasonSchemaValidationFailed), Err: err}
	}
	return value, nil
}

// Complaint returns the message to the model after [ValidateReply] returned err, for [Request.Complaint].
func Complaint(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		err = e.Err
	}
	return "Your " + err.Error() + ". Answer again with one JSON value that satisfies the schema, and nothing else."
}

// systemPrompt returns the system prompt, with the schema in it where the provider's own member would refuse it.
func (r *Request) systemPrompt(d schema.Dialect) string {
	switch {
	case r.Schema == nil || r.Schema.Within(d):
		return r.System
	case r.System == "":
		return r.Schema.Instruction()
	}
	return r.System + "\n\n" + r.Schema.Instruction()
}
