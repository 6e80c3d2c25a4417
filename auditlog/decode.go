package auditlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Errors of [Decode], to be matched with [errors.Is].
var (
	// ErrKind means that the message is an event of an unknown kind, or no event at all.
	ErrKind = errors.New("not an audit event of kind call, row, run or batch")
	// ErrSchemaVersion means that the event was written by a later stage, whose fields
	// may have other meanings.
	ErrSchemaVersion = errors.New("audit event of an unknown schema version: read it with the stage that wrote it, or a newer one")
)

// Event is one event as a reader meets it.
type Event struct {
	// SchemaVersion is the version that the writer has.
	SchemaVersion int
	// Kind is which of Call, Row, Run and Batch is set.
	Kind Kind
	// Header is the header of the event, for readers who need no more.
	Header
	// Exactly one of Call, Row, Run and Batch is not nil.
	Call  *Call
	Row   *Row
	Run   *Run
	Batch *Batch
}

// Decode reads an event of any kind. Null and absent fields become zero values, unknown
// fields are ignored, times are in UTC. The event keeps no reference to data.
//
// It returns [ErrSchemaVersion], [ErrKind], or an error that names the field.
func Decode(data []byte) (*Event, error) {
	e, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("decode audit event: %w", err)
	}
	return e, nil
}

func decode(data []byte) (*Event, error) {
	if !jsonbytes.Valid(data) {
		return nil, json.Unmarshal(data, new(json.RawMessage)) // the error says where
	}
	e := new(Event)
	if err := e.readKind(data); err != nil {
		return nil, err
	}
	var err error
	switch e.Kind {
	case KindCall:
		e.Call = new(Call)
		err = e.read(data, e.Call, callLayout, &e.Call.Header)
	case KindRow:
		e.Row = new(Row)
		err = e.read(data, e.Row, rowLayout, &e.Row.Header)
	case KindRun:
		e.Run = new(Run)
		err = e.read(data, e.Run, runLayout, &e.Run.Header)
	case KindBatch:
		e.Batch = new(Batch)
		err = e.read(data, e.Batch, batchLayout, &e.Batch.Header)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// readKind reads the two members that say how to read the others. They are the first ones
// of an event, which may be a megabyte of bodies, so it stops as soon as it has them.
func (e *Event) readKind(data []byte) error {
	for name, value := range jsonbytes.Members(data) {
		var err error
		switch string(name) {
		case "schema_version":
			err = json.Unmarshal(value, &e.SchemaVersion)
		case "event":
			err = json.Unmarshal(value, &e.Kind)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if e.SchemaVersion != 0 && e.Kind != "" {
			break
		}
	}
	switch {
	case e.Kind != KindCall && e.Kind != KindRow && e.Kind != KindRun && e.Kind != KindBatch:
		return fmt.Errorf("%.40q: %w", e.Kind, ErrKind)
	case e.SchemaVersion != SchemaVersion:
		return fmt.Errorf("version %d: %w", e.SchemaVersion, ErrSchemaVersion)
	}
	return nil
}

// read reads the fields of an event. event points to a struct of this layout, and header
// to the header inside it.
func (e *Event) read(data []byte, event any, l *layout, header *Header) error {
	_, err := l.read(reflect.ValueOf(event).Elem(), data)
	e.Header = *header
	return err
}
