package auditlog

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	id := StateID("stage", "ROWS", 3, 18446744073709551615)
	if want := "stage/ROWS/3/18446744073709551615"; id != want {
		t.Errorf("state id: got %q, want %q", id, want)
	}
	if got, want := StateID("stage", "ROWS", All, 1), "stage/ROWS/all/1"; got != want {
		t.Errorf("state id: got %q, want %q", got, want)
	}
	long := strings.Repeat("x", 300)
	tests := []struct{ got, want string }{
		{MsgID(id, "term1", KindRow, 0), id + "/term1/row/0"},
		{(&Call{StateID: id, Owner: "term1", CallIndex: 12, BatchID: "b"}).MsgID(), id + "/term1/call/12"},
		{(&Call{StateID: id, Owner: "term1", CallID: "t7-41", CallIndex: 3, BatchID: "b", Lane: LaneBatch}).MsgID(), id + "/t7-41/term1/call/0"},
		{(&Call{BatchID: "batch7", CallID: "c9", Owner: "process", CallIndex: 1}).MsgID(), "batch7/c9/process/call/1"},
		{(&Row{StateID: id, Owner: "term1"}).MsgID(), id + "/term1/row/0"},
		{(&Run{Header: Header{Stage: "stage", RunID: "r1"}, Owner: "term1"}).MsgID(4), "stage/r1/term1/run/4"},
		{(&Batch{Header: Header{Stage: "stage"}, Token: "t7", Phase: BatchEnded, Owner: "term1"}).MsgID(), "stage/t7/ended/batch/0"},
		{MsgID(long, long, KindCall, -1), long + "/" + long + "/call/-1"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("message id: got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestPartitionIsANumberOrAll(t *testing.T) {
	tests := []struct {
		json string
		want Partition
		text string
	}{
		{"0", 0, "0"},
		{"12", 12, "12"},
		{`"all"`, All, "all"},
	}
	for _, tt := range tests {
		var p Partition
		if err := json.Unmarshal([]byte(tt.json), &p); err != nil || p != tt.want {
			t.Errorf("read %s: got %d, %v", tt.json, p, err)
		}
		if got, err := json.Marshal(tt.want); err != nil || string(got) != tt.json {
			t.Errorf("write %d: got %s, %v, want %s", tt.want, got, err, tt.json)
		}
		if got := tt.want.String(); got != tt.text {
			t.Errorf("string: got %q, want %q", got, tt.text)
		}
	}
	for _, bad := range []string{"-1", "1.5", `"some"`, `"1"`, "null", "true", "1e3", "99999999999999999999"} {
		var p Partition
		if err := json.Unmarshal([]byte(bad), &p); err == nil {
			t.Errorf("read %s: got %d, want an error", bad, p)
		}
	}
}

func TestPayloadsAreReadAsTheyAreWritten(t *testing.T) {
	for _, p := range []Payloads{PayloadsFull, PayloadsHash, PayloadsNone} {
		text, err := p.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got Payloads
		if err := got.UnmarshalText(text); err != nil || got != p {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	var p Payloads
	if err := p.UnmarshalText([]byte("FULL")); err == nil || !strings.Contains(err.Error(), "full, hash or none") {
		t.Errorf("got %v, want an error with the choices", err)
	}
	if got := Payloads(9).String(); got != "Payloads(9)" {
		t.Errorf("got %q", got)
	}
}
