package stored

import (
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestTheIDOfAnEventNamesItsRow(t *testing.T) {
	row := auditlog.StateID("stage", "ROWS", 3, 47)
	for _, tt := range []struct {
		what, id string
		rows     string // of the call of several rows
		is       bool   // of row 47
	}{
		{"a row", (&auditlog.Row{StateID: row, Owner: "run.a"}).MsgID(), "", true},
		{"a call", (&auditlog.Call{StateID: row, Owner: "run.a", CallIndex: 2}).MsgID(), "", true},
		{"a call for an element", (&auditlog.Call{StateID: auditlog.ItemStateID(row, 5), Owner: "run.a"}).MsgID(), "", true},
		{"a call of the batch lane", (&auditlog.Call{StateID: row, Owner: "run.a", Lane: auditlog.LaneBatch, CallID: "c"}).MsgID(), "", true},
		{"another row", (&auditlog.Row{StateID: auditlog.StateID("stage", "ROWS", 47, 4), Owner: "47"}).MsgID(), "", false},
		{"a call of a batched request", (&auditlog.Call{BatchID: "b", Owner: "run.a", CallIndex: 47}).MsgID(), "", false},
		{"an event without an id", "", "", true},
		{"an id of a stranger", "47", "", false},
		{"a call of several rows", (&auditlog.Call{StateID: auditlog.StateID("stage", "ROWS", 3, 12), Owner: "run.a"}).MsgID(), "12-47", true},
		{"a call of several others", (&auditlog.Call{StateID: row, Owner: "run.a"}).MsgID(), "48-90", false},
	} {
		if got := mayBeOf(nats.Header{jetstream.MsgIDHeader: {tt.id}, streams.HeaderRows: {tt.rows}}, func(from, to uint64) bool { return from <= 47 && 47 <= to }); got != tt.is {
			t.Errorf("%s, %s: got %v", tt.what, tt.id, got)
		}
	}
}
