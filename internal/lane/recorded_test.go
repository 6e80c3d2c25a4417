package lane

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRecordsMakeBatches(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	intent := func(token string, seqs ...uint64) Record {
		return Record{Kind: RecordIntent, Token: token, Time: now.Add(-time.Hour), Provider: "openai", Model: "m", Bytes: 10, Rows: &Rows{Seqs: seqs}}
	}
	all := fold([]Record{
		{Kind: RecordClaim, Owner: "run1"},
		{Kind: RecordSubmitted, Token: "purged", BatchID: "batch_0"}, // its intent is gone
		intent("a1", 3, 4, 9), intent("a2", 5), intent("b1", 6), intent("b2", 7),
		{Kind: RecordSubmitted, Token: "a1", BatchID: "batch_1", Time: now, Adopted: true},
		{Kind: RecordAbandoned, Token: "a2", Reason: "absent"},
		{Kind: RecordClaim, Owner: "run2"},
		{Kind: RecordSubmitted, Token: "b1", BatchID: "batch_2"},
		{Kind: RecordDone, Token: "b1"},
	}, 2, now)
	if len(all) != 4 {
		t.Fatalf("got %+v", all)
	}
	a1 := all[0]
	if a1.State != StateRunning || a1.BatchID != "batch_1" || !a1.Adopted || a1.Rows != 3 || a1.FirstRow != 3 || a1.LastRow != 9 || a1.Partition != 2 || a1.AgeS != 3600 {
		t.Errorf("got %+v", a1)
	}
	var states []string
	for i := range all {
		states = append(states, string(all[i].State))
		if all[i].Open() != (i == 0 || i == 3) {
			t.Errorf("%s in state %s is open: %v", all[i].Token, all[i].State, all[i].Open())
		}
	}
	if got := strings.Join(states, " "); got != "running abandoned done intent" {
		t.Errorf("states %s", got)
	}
	for name, want := range map[string]string{"a1": "a1", "batch_2": "b1", "a": "", "b2": "b2", "c": "", "": ""} {
		b, err := FindBatch(all, name)
		if want == "" && !errors.Is(err, errNoBatch) || want != "" && (err != nil || b.Token != want) {
			t.Errorf("%q: got %v, %v, want %q", name, b, err, want)
		}
	}
}
