package auditlog

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func decoded(tb testing.TB, e event, payloads Payloads, bytesMax int) *Event {
	tb.Helper()
	got, err := Decode(e.AppendJSON(nil, payloads, bytesMax))
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

func TestPayloadsDecideWhatACallKeeps(t *testing.T) {
	call := samples()["call_success"].(*Call)
	tests := []struct {
		payloads     Payloads
		body, hashed bool
	}{
		{PayloadsFull, true, true},
		{PayloadsHash, false, true},
		{PayloadsNone, false, false},
	}
	for _, tt := range tests {
		got := decoded(t, call, tt.payloads, 0).Call
		if (got.Request != nil) != tt.body || (got.Response != nil) != tt.body {
			t.Errorf("%v: request %s, response %s", tt.payloads, got.Request, got.Response)
		}
		if (got.RequestHash != "") != tt.hashed || (got.ResponseHash != "") != tt.hashed {
			t.Errorf("%v: hashes %q and %q", tt.payloads, got.RequestHash, got.ResponseHash)
		}
		if got.Truncated {
			t.Errorf("%v: truncated, though nothing was too large", tt.payloads)
		}
	}
	if call.Request == nil || call.RequestHash == "" {
		t.Error("encoding changed the event")
	}
}

func TestAnEventAboveTheLimitLosesItsBodiesAndKeepsItsHashes(t *testing.T) {
	call := samples()["call_success"].(*Call)
	size := len(call.AppendJSON(nil, PayloadsFull, 0))
	if got := decoded(t, call, PayloadsFull, size).Call; got.Truncated || got.Request == nil {
		t.Errorf("at exactly the limit of %d: %+v", size, got)
	}
	if got := decoded(t, call, PayloadsFull, -1).Call; got.Truncated || got.Request == nil {
		t.Errorf("without a limit: %+v", got)
	}
	for _, bytesMax := range []int{size - 1, len(call.Request)} {
		got := decoded(t, call, PayloadsFull, bytesMax).Call
		if !got.Truncated || got.Request != nil || got.Response != nil {
			t.Errorf("limit %d: truncated %v, request %s, response %s", bytesMax, got.Truncated, got.Request, got.Response)
		}
		if got.RequestHash != call.RequestHash || got.ResponseHash != call.ResponseHash || !reflect.DeepEqual(got.Usage, call.Usage) {
			t.Errorf("limit %d: more than the bodies is gone: %+v", bytesMax, got)
		}
	}
	// Where bodies are not written they are not too large either.
	if got := decoded(t, call, PayloadsHash, size-1).Call; got.Truncated {
		t.Error("truncated for bodies that were not to be written")
	}
}

func TestALongErrorIsCutWhereDroppingTheBodiesIsNotEnough(t *testing.T) {
	call := *samples()["call_capacity_retry"].(*Call)
	call.Error = strings.Repeat("é\x00\xff", 10_000)
	for bytesMax := 900; bytesMax < 930; bytesMax++ {
		b := call.AppendJSON(nil, PayloadsFull, bytesMax)
		e, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > bytesMax || !e.Call.Truncated || !utf8.Valid(b) {
			t.Fatalf("limit %d: %d bytes, truncated %v", bytesMax, len(b), e.Call.Truncated)
		}
	}
	// Ids and numbers are written whatever they take: an event is never lost.
	if e := decoded(t, &call, PayloadsFull, 1).Call; e.StateID != call.StateID || e.Error != "" {
		t.Errorf("limit 1: %+v", e)
	}
}

func TestARowAboveTheLimitLosesItsOldestErrors(t *testing.T) {
	row := *samples()["row_error"].(*Row)
	row.Errors, row.Attempts = nil, 20
	for i := range 20 {
		row.Errors = append(row.Errors, AttemptError{Attempt: i + 1, Provider: "openai", Error: strings.Repeat("x", 5000)})
	}
	full := len(row.AppendJSON(nil, PayloadsFull, 0))
	bare := row
	bare.Errors = nil
	least := len(bare.AppendJSON(nil, PayloadsFull, 0)) + len(`,"truncated":true`)

	tests := []struct {
		bytesMax, errors, text int
	}{
		{full, 20, 5000},
		{full - 1, 20, errorCut},
		{least + 20*(errorCut+100), 20, errorCut},
		{least + 10*(errorCut+100), 10, errorCut},
		{least + errorCut + 100, 1, errorCut},
		{least + 10, 0, 0},
		{1, 0, 0},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint("limit=", tt.bytesMax), func(t *testing.T) {
			got := decoded(t, &row, PayloadsFull, tt.bytesMax).Row
			if len(got.Errors) != tt.errors || got.Attempts != 20 || got.Truncated != (tt.bytesMax < full) {
				t.Fatalf("%d errors of %d attempts, truncated %v, want %d errors", len(got.Errors), got.Attempts, got.Truncated, tt.errors)
			}
			for i, e := range got.Errors {
				if want := 20 - tt.errors + i + 1; e.Attempt != want || len(e.Error) != tt.text {
					t.Errorf("error %d is of attempt %d and has %d bytes, want attempt %d, %d bytes", i, e.Attempt, len(e.Error), want, tt.text)
				}
			}
		})
	}
	if len(row.Errors) != 20 || len(row.Errors[0].Error) != 5000 {
		t.Error("encoding changed the event")
	}
}

func TestARunAboveTheLimitLosesItsSettingsThenItsUsageByModel(t *testing.T) {
	run := *samples()["run_end"].(*Run)
	run.Settings = map[string]string{"STAGE_TEMPLATE": strings.Repeat("{{ row.text }}", 100)}
	full := len(run.AppendJSON(nil, PayloadsFull, 0))
	tests := []struct {
		bytesMax               int
		settings, usage, total bool
	}{
		{full, true, true, true},
		{full - 1, false, true, true},
		{600, false, false, true},
		{1, false, false, true},
	}
	for _, tt := range tests {
		got := decoded(t, &run, PayloadsFull, tt.bytesMax).Run
		if (got.Settings != nil) != tt.settings || (len(got.Summary.Usage) > 0) != tt.usage || (got.Summary.Total.Usage != nil) != tt.total {
			t.Errorf("limit %d: %+v", tt.bytesMax, got)
		}
		if got.Truncated != (tt.bytesMax < full) {
			t.Errorf("limit %d of %d: truncated %v", tt.bytesMax, full, got.Truncated)
		}
	}
	if run.Settings == nil || len(run.Summary.Usage) != 2 {
		t.Error("encoding changed the event")
	}
}

func TestABatchAboveTheLimitHasItsReasonCut(t *testing.T) {
	b := *samples()["batch_abandoned"].(*Batch)
	b.Reason = strings.Repeat("é", 5000)
	full := len(b.AppendJSON(nil, PayloadsFull, 0))
	for _, bytesMax := range []int{full - 1, 600} {
		if got := decoded(t, &b, PayloadsFull, bytesMax).Batch; !strings.HasSuffix(got.Reason, "é…") || got.Rows != b.Rows {
			t.Errorf("limit %d: %+v", bytesMax, got)
		}
	}
	if got := decoded(t, &b, PayloadsFull, 1).Batch; got.Reason != "" || got.Token != b.Token {
		t.Errorf("limit 1: %+v", got)
	}
}

// Whatever is drawn, the limit holds as soon as ids and numbers fit, and leaving nothing out is not called truncated.
func TestNoEventIsLargerThanItsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent.Draw(t, "event")
		if truncated := reflect.ValueOf(e).Elem().FieldByName("Truncated"); truncated.IsValid() {
			truncated.SetBool(false)
		}
		payloads := rapid.SampledFrom([]Payloads{PayloadsFull, PayloadsHash, PayloadsNone}).Draw(t, "payloads")
		full := len(e.AppendJSON(nil, payloads, 0))
		least := len(e.AppendJSON(nil, payloads, 1))
		bytesMax := rapid.IntRange(1, full).Draw(t, "limit")
		b := e.AppendJSON([]byte("before"), payloads, bytesMax)
		if got := len(b) - len("before"); got > max(bytesMax, least) {
			t.Fatalf("%d bytes, want at most %d (least %d, full %d)", got, bytesMax, least, full)
		}
		if _, err := Decode(b[len("before"):]); err != nil {
			t.Fatal(err)
		}
	})
}
