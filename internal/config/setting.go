package config

import "github.com/llm-stage/stage/consumer/streams"

// settings are the variables and flags that set the fields named by errors of the consumer.
var settings = map[streams.Field]string{
	streams.FieldName:              "STAGE_NAME",
	streams.FieldInputStream:       "STAGE_INPUT_STREAM",
	streams.FieldInputSubject:      "STAGE_INPUT_SUBJECT",
	streams.FieldResultStream:      "STAGE_RESULT_STREAM",
	streams.FieldResultSubject:     "STAGE_RESULT_SUBJECT",
	streams.FieldAuditStream:       "STAGE_AUDIT_STREAM",
	streams.FieldAuditSubject:      "STAGE_AUDIT_SUBJECT",
	streams.FieldJournalStream:     "STAGE_JOURNAL_STREAM",
	streams.FieldDeadLetterSubject: "STAGE_DEAD_LETTER_SUBJECT",
	streams.FieldPartitions:        "STAGE_PARTITIONS",
	streams.FieldCreate:            "STAGE_CREATE_STREAMS",
	streams.FieldWindowRows:        "STAGE_WINDOW",
	streams.FieldOrder:             "STAGE_ORDER",
	streams.FieldOrderSpan:         "STAGE_ORDER_SPAN",
	streams.FieldOrderKey:          "STAGE_ORDER_KEY",
	streams.FieldInboxPrefix:       "STAGE_NATS_INBOX_PREFIX",
	streams.FieldNewInput:          "--new-input",
}

// Explain returns the text of err with the variable or flag in place of each field of the consumer.
func Explain(err error) string {
	return streams.Explain(err, func(f streams.Field) string { return settings[f] })
}

// Explained wraps err in an error with the text of [Explain]; nil for nil.
func Explained(err error) error {
	if err == nil {
		return nil
	}
	return &explained{err: err, text: Explain(err)}
}

// explained is an error with another text.
type explained struct {
	err  error
	text string
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() error { return e.err }
