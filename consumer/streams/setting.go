package streams

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Field names a setting in an error. Most are the fields of [Config] and [DurableConfig]
// of that name; what people set is known to the code that fills these, see [Explain].
type Field string

// Fields that errors name.
const (
	FieldName              Field = "Name"
	FieldInputStream       Field = "InputStream"
	FieldInputSubject      Field = "InputSubject"
	FieldResultStream      Field = "ResultStream"
	FieldResultSubject     Field = "ResultSubject"
	FieldResultBucket      Field = "ResultBucket"
	FieldAuditStream       Field = "AuditStream"
	FieldAuditSubject      Field = "AuditSubject"
	FieldJournalStream     Field = "JournalStream"
	FieldLaneStream        Field = "LaneStream"
	FieldLaneRows          Field = "LaneRows"
	FieldBatchStream       Field = "BatchStream"
	FieldDeadLetterSubject Field = "DeadLetterSubject"
	FieldPartitions        Field = "Partitions"
	FieldCreate            Field = "Create"
	FieldWindowRows        Field = "WindowRows"
	FieldOrder             Field = "Order"
	FieldOrderKey          Field = "OrderKey"    // of the consumer
	FieldInboxPrefix       Field = "InboxPrefix" // of the connection
	FieldNewInput          Field = "NewInput"    // of the consumer
)

// SettingError is a problem that a change of a setting solves.
type SettingError struct {
	// Field is the setting, or the first of several.
	Field Field

	format string
	args   []any // [Explain] names the ones of type Field
	err    error // by the fields' own names
}

// NewSettingError returns an error about a field. The format may name more fields by
// arguments of type [Field], and wrap errors by %w.
func NewSettingError(field Field, format string, args ...any) *SettingError {
	return &SettingError{Field: field, format: format, args: args, err: fmt.Errorf(format, args...)}
}

// Error names fields as they are called here.
func (e *SettingError) Error() string { return e.err.Error() }

// Unwrap returns the error with what it wraps.
func (e *SettingError) Unwrap() error { return e.err }

func (e *SettingError) explain(name func(Field) string) string {
	args := slices.Clone(e.args)
	for i, arg := range args {
		switch arg := arg.(type) {
		case Field:
			args[i] = name(arg)
		case error:
			args[i] = errors.New(Explain(arg, name))
		}
	}
	return fmt.Errorf(e.format, args...).Error()
}

// Explain returns the text of err for people: each [SettingError] that it wraps names
// settings as name does, by variables for example, and what the server or its client says
// in codes is a sentence.
func Explain(err error, name func(Field) string) string {
	if text, ok := sentence(err); ok {
		return text
	}
	if e, is := any(err).(*SettingError); is { // this very error: those that it wraps come further down
		return e.explain(name)
	}
	if e, is := any(err).(*locatedError); is {
		return strings.ReplaceAll(Explain(e.err, name), noJetStream, noJetStreamAt(e.prefix))
	}
	text := err.Error()
	for _, inner := range wrapped(err) {
		text = strings.Replace(text, inner.Error(), Explain(inner, name), 1)
	}
	return text
}

// wrapped are the errors that err wraps itself.
func wrapped(err error) []error {
	switch e := any(err).(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return []error{inner}
		}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// findings lists the problems of one stream.
type findings []error

func (f *findings) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (f *findings) addSetting(field Field, format string, args ...any) {
	*f = append(*f, NewSettingError(field, format, args...))
}

// Error lists them all.
func (f findings) Error() string {
	list := make([]string, len(f))
	for i, err := range f {
		list[i] = err.Error()
	}
	return strings.Join(list, "; ")
}

// Unwrap returns them all.
func (f findings) Unwrap() []error { return f }
