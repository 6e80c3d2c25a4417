package stored

import (
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

func TestTheIDOfAnEventNamesItsRow(t *testing.T) {
	row := auditlog.StateID("stage", "ROWS", 3, 47)
	for _, tt := range []struct {
		what, id string
		is       bool // of row 47
	}{
		{"a row", (&auditlog.Row{StateID: row, Owner: "run.a"}).MsgID(), true},
		{"a call", (&auditlog.Call{StateID: row, Owner: "run.a", CallIndex: 2}).MsgID(), true},
		{"a call for an element", (&auditlog.Call{StateID: auditlog.ItemStateID(row, 5), Owner: "run.a"}).MsgID(), true},
		{"a call of the batch lane", (&auditlog.Call{StateID: row, Owner: "run.a", Lane: auditlog.LaneBatch, CallID: "c"}).MsgID(), true},
		{"another row", (&auditlog.Row{StateID: auditlog.StateID("stage", "ROWS", 47, 4), Owner: "47"}).MsgID(), false},
		{"a call of a batched request", (&auditlog.Call{BatchID: "b", Owner: "run.a", CallIndex: 47}).MsgID(), false},
		{"an event without an id", "", true},
		{"an id of a stranger", "47", false},
	} {
		if got := mayBeOf(tt.id, 47); got != tt.is {
			t.Errorf("%s, %s: got %v", tt.what, tt.id, got)
		}
	}
}
