package status

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// activityReport is the report of an activity after these events.
func activityReport(a *Activity, now time.Time, events ...auditlog.Event) *Report {
	for _, e := range events {
		a.Note(e)
	}
	var r Report
	a.Report(&r, now)
	return &r
}

// callAt is the event of a call that ended at that offset.
func callAt(after time.Duration, status auditlog.CallStatus, code int, class string) auditlog.Event {
	return auditlog.Event{Kind: auditlog.KindCall, Call: &auditlog.Call{
		Header: auditlog.Header{Time: epoch.Add(after)}, CallID: fmt.Sprint("c", after), Sequence: 7, Provider: "openai", Model: "large",
		Status: status, StatusCode: code, ErrorClass: class, Latency: after, Error: "the prompt 'secret text' is bad",
		Request: []byte(`{"messages":"secret text"}`), Response: []byte(`{"error":"secret text"}`),
	}}
}

func TestLatencyIsOfTheSuccessfulCallsOfTheLastMinute(t *testing.T) {
	a := NewActivity(false)
	for i := range 100 {
		a.Note(callAt(time.Duration(i+1)*time.Second, auditlog.CallSuccess, 200, ""))
		a.Note(callAt(time.Duration(i+1)*time.Second, auditlog.CallCapacityRetry, 429, "capacity"))
	}
	got := activityReport(a, epoch.Add(100*time.Second)).Latency
	if got.Calls != 61 || *got.P50MS != 70e3 || *got.P90MS != 94e3 || *got.P99MS != 99e3 {
		t.Errorf("got %d calls, %v, %v, %v: want those that ended 40 to 100 s after the start, which took as long", got.Calls, *got.P50MS, *got.P90MS, *got.P99MS)
	}
	if got := activityReport(a, epoch.Add(time.Hour)).Latency; got.Calls != 0 || got.P50MS != nil {
		t.Errorf("an hour later: %+v, want none", got)
	}
}

// Of a row that fans out several calls are in flight, and each names its element: also
// the first, which is 0. A call of several rows says how many there are.
func TestACallNamesItsElement(t *testing.T) {
	element, whole, shared := callAt(0, auditlog.CallSuccess, 200, ""), callAt(time.Second, auditlog.CallSuccess, 200, ""), callAt(2*time.Second, auditlog.CallSuccess, 200, "")
	element.Call.Item = new(0)
	shared.Call.Sequence, shared.Call.Rows = 8, []uint64{8, 9, 10}
	text, err := json.Marshal(activityReport(NewActivity(false), epoch, element, whole, shared).Calls)
	if err != nil || strings.Count(string(text), `"sequence":7`) != 2 || strings.Count(string(text), `"item":0`) != 1 {
		t.Errorf("got %s, %v: want one of two calls of row 7 to be for element 0", text, err)
	}
	if strings.Count(string(text), `"rows":`) != 1 || !strings.Contains(string(text), `"sequence":8,"rows":3`) {
		t.Errorf("got %s: want that of row 8 to be for three", text)
	}
}

func TestEqualEventsOfAWhileAreOneWithACount(t *testing.T) {
	a := NewActivity(false)
	for i := range 25 {
		a.Note(callAt(time.Duration(i)*time.Second, auditlog.CallCapacityRetry, 429, "capacity"))
		a.Note(callAt(time.Duration(i)*time.Second, auditlog.CallFailure, 500, "transient"))
	}
	var got []string
	for _, e := range activityReport(a, epoch).Events {
		got = append(got, fmt.Sprintf("%d %s %d %s", e.ID, e.Level, e.Count, e.Text))
	}
	want := []string{
		"6 warn 3 large of openai: transient error, status 500", "5 warn 3 large of openai: no capacity, status 429",
		"4 warn 11 large of openai: transient error, status 500", "3 warn 11 large of openai: no capacity, status 429",
		"2 warn 11 large of openai: transient error, status 500", "1 warn 11 large of openai: no capacity, status 429",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEventsAreInTheOrderOfTheTimeThatTheyShow(t *testing.T) {
	a := NewActivity(false)
	a.Note(callAt(0, auditlog.CallCapacityRetry, 429, "capacity"))
	a.Note(callAt(2*time.Second, auditlog.CallFailure, 500, "transient"))
	a.Note(callAt(5*time.Second, auditlog.CallCapacityRetry, 429, "capacity")) // counted with the first
	a.Note(callAt(4*time.Second, auditlog.CallFailure, 404, "permanent"))      // noted late
	var got []string
	for _, e := range activityReport(a, epoch).Events {
		got = append(got, fmt.Sprintf("%v %d", e.Last.Sub(epoch), e.Count))
	}
	if want := "5s 2, 4s 1, 2s 1"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}

func TestErrorsAreCountedByReason(t *testing.T) {
	a := NewActivity(false)
	a.NoteCause(3, "no capacity in 5m")
	a.NoteCause(4, "another row")
	row := func(status, reason, source string) auditlog.Event {
		return auditlog.Event{Row: &auditlog.Row{Header: auditlog.Header{Time: epoch}, Sequence: 3, Status: status, Reason: reason, Source: source}}
	}
	r := activityReport(a, epoch,
		row("success", "", "call"), row("error", "row_timeout", "call"), row("error", "refused", "call"), row("error", "row_timeout", ""), row("error", "", "upstream"),
		callAt(0, auditlog.CallCapacityRetry, 429, "capacity"), callAt(0, auditlog.CallCapacityRetry, 503, "capacity"), callAt(0, auditlog.CallCapacityRetry, 429, "capacity"),
		callAt(0, auditlog.CallUnknown, 0, "transient"))
	if got, want := fmt.Sprint(r.RowErrors), "[{row_timeout 2 3 no capacity in 5m} {refused 1 3 no capacity in 5m} {upstream 1 3 no capacity in 5m}]"; got != want {
		t.Errorf("rows: got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(r.CallErrors), "[{openai large capacity 429 2} {openai large capacity 503 1} {openai large transient 0 1}]"; got != want {
		t.Errorf("calls: got %s, want %s", got, want)
	}
}

func TestActivityIsBounded(t *testing.T) {
	a := NewActivity(true)
	for i := range 5000 {
		e := callAt(time.Duration(i)*time.Millisecond, auditlog.CallFailure, 400+i, "permanent")
		e.Call.Request = []byte(strings.Repeat("é", 5000))
		a.Note(e)
		a.Note(callAt(time.Duration(i)*time.Millisecond, auditlog.CallSuccess, 200, ""))
	}
	r := activityReport(a, epoch.Add(5*time.Second))
	if len(r.Events) != noticesMax || len(r.Calls) != recentCallsMax || len(r.CallErrors) != errorKindsMax+1 || r.Latency.Calls != latenciesMax {
		t.Errorf("got %d events, %d calls, %d kinds of errors, %d latencies", len(r.Events), len(r.Calls), len(r.CallErrors), r.Latency.Calls)
	}
	if other := r.CallErrors[0]; other.Class != otherKind || other.Calls != 5000-errorKindsMax {
		t.Errorf("the rest: %+v", other)
	}
	for _, c := range r.Calls {
		if len(c.Request) > payloadShownMax+len("…") || strings.Contains(c.Request, "\ufffd") {
			t.Errorf("a request of %d bytes is shown", len(c.Request))
		}
	}
}

func TestPayloadsAreShownOnlyWhenAsked(t *testing.T) {
	for _, payloads := range []bool{false, true} {
		a := NewActivity(payloads)
		e := callAt(0, auditlog.CallFailure, 400, "permanent")
		a.Note(e)
		a.NoteRow(e.Call.CallID, []byte(`{"text":"secret text"}`))
		r := activityReport(a, epoch)
		if got := strings.Contains(fmt.Sprintf("%+v %+v", r.Events, r.Calls), "secret"); got != payloads {
			t.Errorf("payloads %v: shown is %v: %+v %+v", payloads, got, r.Events, r.Calls)
		}
		if c := r.Calls[0]; payloads && (c.Row != `{"text":"secret text"}` || c.Request == "" || c.Response == "") {
			t.Errorf("got %+v, want row, request and response", c)
		}
	}
}

func TestStarvedIsWhenNothingButRejectionsComeForAWhile(t *testing.T) {
	a := NewActivity(false)
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	note := func(s int, status auditlog.CallStatus) {
		a.Note(callAt(time.Duration(s)*time.Second, status, 429, "capacity"))
	}
	note(0, auditlog.CallCapacityRetry)
	note(1, auditlog.CallCapacityRetry)
	if got := a.StarvedSince(at(60)); !got.IsZero() {
		t.Errorf("two rejections: starved since %v", got)
	}
	note(2, auditlog.CallCapacityRetry)
	if got := a.StarvedSince(at(9)); !got.IsZero() {
		t.Errorf("after 9 s: starved since %v", got)
	}
	if got := a.StarvedSince(at(10)); !got.Equal(at(0)) {
		t.Errorf("after 10 s: starved since %v, want the first rejection", got)
	}
	note(11, auditlog.CallSuccess)
	if got := a.StarvedSince(at(60)); !got.IsZero() {
		t.Errorf("after a success: starved since %v", got)
	}
}

func BenchmarkActivity(b *testing.B) {
	for name, e := range map[string]auditlog.Event{
		"success": callAt(time.Second, auditlog.CallSuccess, 200, ""), "rejection": callAt(time.Second, auditlog.CallCapacityRetry, 429, "capacity"),
	} {
		b.Run("call="+name, func(b *testing.B) {
			a := NewActivity(false)
			b.ReportAllocs()
			for b.Loop() {
				a.Note(e)
			}
		})
	}
}
