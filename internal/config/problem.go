package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/llm-stage/stage/consumer/streams"
)

// problems collects problems, each with how to fix it. A check adds a problem only if the
// variables that it compares have none so far (see none), so no problem follows from
// another: with STAGE_WINDOW=abc, nothing is reported of STAGE_ORDER_SPAN.
type problems struct {
	layers     layers // name the source of a value
	byVariable map[string][]string
}

func newProblems() *problems {
	return &problems{byVariable: make(map[string][]string)}
}

// add reports a problem of one variable.
func (p *problems) add(variable, format string, args ...any) {
	p.byVariable[variable] = append(p.byVariable[variable], fmt.Sprintf(format, args...))
}

// addMore adds the problems that [Source.More] has found. A variable that has a problem
// already gets no second one.
func (p *problems) addMore(more map[string]error) {
	for variable, err := range more {
		if err != nil && p.none(variable) {
			p.add(variable, "%s", err)
		}
	}
}

// none reports whether the variables have no problem so far, so that they can be
// compared.
func (p *problems) none(variables ...string) bool {
	return !slices.ContainsFunc(variables, func(v string) bool { return len(p.byVariable[v]) > 0 })
}

// forgetOpening drops the problems of the login and of the files that settings name, for
// a command that opens neither; see [Source.Offline].
func (p *problems) forgetOpening() {
	for _, f := range Fields() {
		// The kind of a secret is path, too.
		if f.Kind() == "path" || f.Variable == "STAGE_NATS_USER" ||
			f.Variable == "STAGE_NATS_TLS_FIRST" {
			delete(p.byVariable, f.Variable)
			delete(p.byVariable, f.Variable+FileSuffix)
		}
	}
}

// join returns all problems: those of fields first, in the order of the fields, then the
// others by name. It removes secrets from the texts, since a problem quotes values, and
// the key may have been set as the value of another variable, such as STAGE_LLM_PROVIDER.
func (p *problems) join(secrets *Secrets) error {
	var all []error
	take := func(variable string) {
		name := p.layers.name(variable)
		for _, text := range p.byVariable[variable] {
			all = append(all, fmt.Errorf("%s: %s", name, secrets.Redact([]byte(text))))
		}
		delete(p.byVariable, variable)
	}
	for _, f := range Fields() {
		take(f.Variable)
		if f.Secret {
			take(f.Variable + FileSuffix)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(p.byVariable)) {
		take(variable)
	}
	return errors.Join(all...)
}

// Error is an error in how the program was called or configured: only the user can fix
// it, so a retry fails again. Its text explains what is wrong and how to fix it.
type Error struct{ Err error }

// Error returns the text of the problem.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the problem.
func (e *Error) Unwrap() error { return e.Err }

// Invalid returns err as an [*Error]. It returns nil for nil.
func Invalid(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err}
}

// IsInvalid reports whether err has an [*Error] in its chain.
func IsInvalid(err error) bool {
	_, is := errors.AsType[*Error](err)
	return is
}

// settings has the variable or flag that sets each field which errors of the consumer
// name. The consumer is a library, and does not know how this program calls its fields.
var settings = map[streams.Field]string{
	streams.FieldName:              "STAGE_NAME",
	streams.FieldInputStream:       "STAGE_INPUT_STREAM",
	streams.FieldInputSubject:      "STAGE_INPUT_SUBJECT",
	streams.FieldResultStream:      "STAGE_RESULT_STREAM",
	streams.FieldResultSubject:     "STAGE_RESULT_SUBJECT",
	streams.FieldResultBucket:      "STAGE_RESULT_BUCKET",
	streams.FieldAuditStream:       "STAGE_AUDIT_STREAM",
	streams.FieldAuditSubject:      "STAGE_AUDIT_SUBJECT",
	streams.FieldJournalStream:     "STAGE_JOURNAL_STREAM",
	streams.FieldLaneStream:        "STAGE_LANE_STREAM",
	streams.FieldBatchStream:       "STAGE_BATCH_STREAM",
	streams.FieldLaneRows:          "STAGE_LANE_ROWS",
	streams.FieldDeadLetterSubject: "STAGE_DEAD_LETTER_SUBJECT",
	streams.FieldPartitions:        "STAGE_PARTITIONS",
	streams.FieldCreate:            "STAGE_CREATE_STREAMS",
	streams.FieldWindowRows:        "STAGE_WINDOW",
	streams.FieldOrder:             "STAGE_ORDER",
	streams.FieldOrderKey:          "STAGE_ORDER_KEY",
	streams.FieldInboxPrefix:       "STAGE_NATS_INBOX_PREFIX",
	streams.FieldNewInput:          "--new-input",
}

// Explain returns the text of err with the variable or flag in place of each field of the
// consumer.
func Explain(err error) string {
	return streams.Explain(err, func(f streams.Field) string { return settings[f] })
}

// Explained wraps err in an error with the text of [Explain]. It returns nil for nil.
func Explained(err error) error {
	if err == nil {
		return nil
	}
	return &explained{err: err, text: Explain(err)}
}

// explained is an error with another text. It wraps the original, so that [errors.Is] and
// [errors.As] find the same as before.
type explained struct {
	err  error
	text string
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() error { return e.err }
