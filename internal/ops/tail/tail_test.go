package tail

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
)

// noon is when the events of these tests begin.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

func callEvent(ms int, owner string, index int, status auditlog.CallStatus, code int, class, why string) *auditlog.Event {
	return &auditlog.Event{Kind: auditlog.KindCall, Call: &auditlog.Call{
		Header: auditlog.Header{Time: at(ms), Partition: 0}, Owner: owner, CallIndex: index, Sequence: 4711, Provider: "openai", Model: "large",
		Status: status, StatusCode: code, ErrorClass: class, Error: why, Latency: 812 * time.Millisecond, DispatchDelay: 48 * time.Millisecond,
	}}
}

// itemCall is a call for an element of the row.
func itemCall(ms, index, item int, status auditlog.CallStatus) *auditlog.Event {
	e := callEvent(ms, "a", index, status, 0, "", "")
	e.Call.Item = &item
	return e
}

func rowEvent(seq uint64, owner string, queued, finished int) *auditlog.Event {
	return &auditlog.Event{Kind: auditlog.KindRow, Row: &auditlog.Row{
		Header: auditlog.Header{Time: at(finished), Partition: 0}, Owner: owner, Sequence: seq, Status: auditlog.RowSuccess, Source: auditlog.SourceCall,
		Attempts: 1, CapacityRetries: 1, QueuedAt: at(queued), FinishedAt: at(finished),
	}}
}

func TestEventsAreOneLineEach(t *testing.T) {
	limited := callEvent(0, "o", 1, auditlog.CallCapacityRetry, 429, "capacity", "openai: 429 slow down")
	limited.Call.RetryAfter, limited.Call.Belief = 2*time.Second, "no limit seen yet"
	ok := callEvent(0, "o", 0, auditlog.CallSuccess, 200, "", "")
	ok.Call.Usage = &auditlog.Usage{PromptTokens: 31, CompletionTokens: 21, TotalTokens: 52}
	batch := callEvent(0, "o", 0, auditlog.CallUnknown, 0, "transient", "connection reset")
	batch.Call.Sequence, batch.Call.BatchID, batch.Call.Model = 0, "b7", "openai"
	failed := rowEvent(4711, "o", 0, 61_250)
	failed.Row.Status, failed.Row.Reason, failed.Row.Source = auditlog.RowError, "row_timeout", ""
	unrendered := rowEvent(4711, "o", 0, 61_250)
	unrendered.Row.Status, unrendered.Row.Reason, unrendered.Row.Source = auditlog.RowError, "template_rendering_failed", ""
	unrendered.Row.Attempts, unrendered.Row.CapacityRetries = 0, 0
	unrendered.Row.Errors = []auditlog.AttemptError{{Error: "undefined: row.text"}}
	retried := rowEvent(4711, "o", 0, 61_250)
	retried.Row.Errors = []auditlog.AttemptError{{Attempt: 1, Error: "slow down"}}
	element, elements := callEvent(0, "o", 0, auditlog.CallSuccess, 200, "", ""), rowEvent(4711, "o", 0, 61_250)
	element.Call.Item = new(3)
	elements.Row.Status, elements.Row.Reason = auditlog.RowError, "foreach_failed"
	elements.Row.Errors = []auditlog.AttemptError{{Attempt: 1, Item: new(3), Error: "slow down"}}
	keyed := rowEvent(4711, "o", 0, 61_250)
	keyed.Row.Key = new("north\x1b[2J")
	lane := callEvent(0, "o", 0, auditlog.CallSuccess, 200, "", "")
	lane.Call.Lane, lane.Call.BatchID = auditlog.LaneBatch, "batch_9"
	shared := callEvent(0, "o", 0, auditlog.CallSuccess, 200, "", "")
	shared.Call.Rows = []uint64{4711, 4712, 4715}
	ofBatch := func(phase auditlog.BatchPhase, change func(*auditlog.Batch)) *auditlog.Event {
		b := auditlog.Batch{Phase: phase, Token: "t7", Provider: "openai", Model: "large", Rows: 10000, Bytes: 7 << 20}
		change(&b)
		return &auditlog.Event{Kind: auditlog.KindBatch, Batch: &b}
	}
	run := func(r auditlog.Run) *auditlog.Event {
		r.Time = at(0)
		return &auditlog.Event{Run: &r}
	}
	for _, tt := range []struct {
		event *auditlog.Event
		tone  tone
		want  string // after the time, blanks squeezed
	}{
		{ok, toneQuiet, "call row 4711 #1 openai large ok 200 812 ms 31+21 tok delay 48 ms"},
		{limited, toneWarn, "call row 4711 #2 openai large no capacity 429 812 ms - delay 48 ms asked to wait 2.00 s [no limit seen yet] openai: 429 slow down"},
		{element, toneQuiet, "call row 4711#3 #1 openai large ok 200 812 ms - delay 48 ms"},
		{elements, toneBad, "row row 4711 answered error 61.25 s - 2 calls, 1 without capacity: foreach_failed: #3: slow down"},
		{callEvent(0, "o", 2, auditlog.CallFailure, 500, "transient", "oops"), toneWarn, "call row 4711 #3 openai large failed 500 812 ms - delay 48 ms oops"},
		{callEvent(0, "o", 0, auditlog.CallFailure, 400, "permanent", "bad"), toneBad, "call row 4711 #1 openai large failed 400 812 ms - delay 48 ms bad"},
		{callEvent(0, "o", 0, auditlog.CallFailure, 401, "fatal", "key"), toneBad, "call row 4711 #1 openai large failed 401 812 ms - delay 48 ms key"},
		{batch, toneWarn, "call batch b7 #1 openai cut off 812 ms - delay 48 ms connection reset"},
		{lane, toneQuiet, "call row 4711 #1 openai large ok 200 812 ms - delay 48 ms batch batch_9"},
		{shared, toneQuiet, "call row 4711 +2 #1 openai large ok 200 812 ms - delay 48 ms"},
		{ofBatch(auditlog.BatchIntent, func(*auditlog.Batch) {}), toneQuiet, "batch intent t7 openai large 10000 rows, 7.0 MiB"},
		{ofBatch(auditlog.BatchAdopted, func(b *auditlog.Batch) { b.BatchID, b.Rows = "batch_9", 1 }), toneTurn, "batch adopted batch_9 openai large 1 row, token t7, 7.0 MiB"},
		{
			ofBatch(auditlog.BatchExpired, func(b *auditlog.Batch) {
				b.BatchID, b.Answered, b.Lapsed, b.Dropped = "batch_9", 9000, 1000, 3
				b.Usage = &auditlog.Usage{PromptTokens: 31, CompletionTokens: 21, CostUSD: new(0.25)}
			}), toneWarn, "batch expired batch_9 openai large 10000 rows, token t7: 9000 answered, 1000 lapsed, 3 dropped, 31+21 tok, $0.250000",
		},
		{
			ofBatch(auditlog.BatchCancelled, func(b *auditlog.Batch) { b.BatchID, b.Reason = "batch_9", "stage lane cancel" }), toneTurn,
			"batch cancelled batch_9 openai large 10000 rows, token t7: 0 answered, -, cost unknown: stage lane cancel",
		},
		{ofBatch(auditlog.BatchAbandoned, func(b *auditlog.Batch) { b.Reason = "absent" }), toneWarn, "batch abandoned t7 openai large 10000 rows, 7.0 MiB: absent"},
		{rowEvent(4711, "o", 0, 61_250), toneQuiet, "row row 4711 answered success 61.25 s - 2 calls, 1 without capacity"},
		{keyed, toneQuiet, "row row 4711 answered success 61.25 s - key north\x1b[2J, 2 calls, 1 without capacity"}, // see printLine
		{failed, toneBad, "row row 4711 not called error 61.25 s - 2 calls, 1 without capacity: row_timeout"},
		{unrendered, toneBad, "row row 4711 not called error 61.25 s - 0 calls: template_rendering_failed: undefined: row.text"},
		{retried, toneQuiet, "row row 4711 answered success 61.25 s - 2 calls, 1 without capacity"},
		{run(auditlog.Run{Phase: auditlog.PhaseClaim, Owner: "run.term"}), toneTurn, "run claim partition 0 as run.term"},
		{run(auditlog.Run{Header: auditlog.Header{Partition: auditlog.All}, Phase: auditlog.PhasePause, Reason: "no credit"}), toneBad, "run pause: no credit"},
		{
			run(auditlog.Run{Header: auditlog.Header{Partition: auditlog.All}, Phase: auditlog.PhaseJoined, Reason: "budget team for openai: 3 processes", Budget: &auditlog.Budget{}}),
			toneTurn, "run joined: budget team for openai: 3 processes",
		},
		{run(auditlog.Run{Header: auditlog.Header{Partition: auditlog.All}, Phase: auditlog.PhaseAlone, Reason: "budget team for openai"}), toneWarn, "run alone: budget team for openai"},
		{run(auditlog.Run{Phase: auditlog.PhaseFenced, Owner: "o"}), toneWarn, "run fenced partition 0 as o"},
		{
			run(auditlog.Run{Header: auditlog.Header{Partition: auditlog.All}, Phase: auditlog.PhaseEnd, Summary: &auditlog.Summary{RowsSucceeded: 1, RowsFailed: 2, CapacityRetries: 3, Total: auditlog.Totals{Calls: 6}, Belief: "limit about 20/s (18-22)"}}),
			toneTurn, "run end: 1 row succeeded, 2 failed, 6 calls, 3 without capacity, limit about 20/s (18-22)",
		},
	} {
		tt.event.Time = at(0) // as Decode does
		got := strings.Join(strings.Fields(eventLine(tt.event)), " ")
		if want := clockOf(at(0)) + " " + tt.want; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got := toneOf(tt.event); got != tt.tone {
			t.Errorf("%s: got tone %d, want %d", tt.want, got, tt.tone)
		}
		if got := didFail(tt.event); got != (tt.tone >= toneWarn) {
			t.Errorf("%s: shown with --failed is %v", tt.want, got)
		}
	}
}

func TestControlCharactersFromAServerAreRemoved(t *testing.T) {
	for _, colour := range []bool{false, true} {
		var b strings.Builder
		printLine(&b, "failed: \x1b[2J\r\nstage: all is well\x07\u009b31m  ", toneBad, colour)
		want := "failed:  [2J  stage: all is well  31m"
		if colour {
			want = "\x1b[31m" + want + "\x1b[0m"
		}
		if got := b.String(); got != want+"\n" {
			t.Errorf("colour %v: got %q, want %q", colour, got, want)
		}
	}
}

// historyOf prints the history of row 4711, blanks squeezed and times left out.
func historyOf(result *emission, events ...*auditlog.Event) string {
	s := &history{seq: 4711, last: make(map[string]*auditlog.Row)}
	for _, e := range events {
		if e.Row != nil && e.Row.Sequence < s.seq {
			s.before(e.Row)
		} else {
			s.events = append(s.events, e)
		}
	}
	var b strings.Builder
	s.print(&b, &config.Config{Input: config.InputConfig{Stream: "ROWS"}, Result: config.ResultConfig{Stream: "RESULTS"}}, result, false)
	text := regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`).ReplaceAllString(b.String(), "")
	return regexp.MustCompile(` +`).ReplaceAllString(strings.ReplaceAll(text, "\n ", "\n"), " ")
}

func TestTheHistoryOfARowIsPrinted(t *testing.T) {
	refused := callEvent(900, "a", 0, auditlog.CallCapacityRetry, 429, "capacity", "slow down")
	for _, tt := range []struct {
		name   string
		result *emission
		events []*auditlog.Event
		want   string
	}{
		{
			"it waited for an earlier row", &emission{at: 4714, stored: at(2510), owner: "a"},
			[]*auditlog.Event{
				refused, rowEvent(4709, "a", 0, 1500), rowEvent(4710, "a", 0, 2500), rowEvent(4708, "old", 0, 9000),
				callEvent(2000, "a", 1, auditlog.CallSuccess, 200, "", ""), rowEvent(4711, "a", 88, 2000),
			},
			"row 4711 of stream ROWS, partition 0\n queued\n" +
				" +812 ms call 1: openai large, no capacity 429 in 812 ms, delay 48 ms slow down\n" +
				" +1.91 s call 2: openai large, ok 200 in 812 ms, delay 48 ms\n" +
				" +1.91 s finished: success, answered, 2 calls, 1 without capacity\n" +
				" +2.41 s waited 500 ms for row 4710\n +2.42 s emitted: result 4714 of stream RESULTS, owner a\n",
		},
		{
			"it fans out", nil,
			[]*auditlog.Event{
				itemCall(100, 0, 1, auditlog.CallCapacityRetry), itemCall(200, 1, 0, auditlog.CallSuccess), itemCall(300, 2, 10, auditlog.CallSuccess),
				itemCall(400, 3, 1, auditlog.CallSuccess), itemCall(450, 4, 2, auditlog.CallUnknown),
			},
			"row 4711 of stream ROWS, partition 0\n" +
				" #0 call 2: openai large, ok in 812 ms, delay 48 ms\n" +
				" #1 call 1: openai large, no capacity in 812 ms, delay 48 ms\n" +
				" #1 call 4: openai large, ok in 812 ms, delay 48 ms\n" +
				" #2 call 5: openai large, cut off in 812 ms, delay 48 ms\n" +
				" #10 call 3: openai large, ok in 812 ms, delay 48 ms\n" +
				" not finished yet\n",
		},
		{
			"it waited for none", &emission{at: 2, stored: at(2001), owner: "a"},
			[]*auditlog.Event{rowEvent(4710, "a", 0, 1999), rowEvent(4711, "a", 0, 2000)},
			"row 4711 of stream ROWS, partition 0\n queued\n +2.00 s finished: success, answered, 2 calls, 1 without capacity\n" +
				" +2.00 s waited for no earlier row\n +2.00 s emitted: result 2 of stream RESULTS, owner a\n",
		},
		{
			"it is still being called", nil,
			[]*auditlog.Event{refused},
			"row 4711 of stream ROWS, partition 0\n call 1: openai large, no capacity 429 in 812 ms, delay 48 ms slow down\n not finished yet\n",
		},
		{
			"the first term was fenced", &emission{at: 9, stored: at(4000), owner: "b"},
			[]*auditlog.Event{
				rowEvent(4711, "a", 0, 1000), rowEvent(4710, "b", 0, 3500), callEvent(3000, "b", 0, auditlog.CallSuccess, 200, "", ""), rowEvent(4711, "b", 2000, 3000),
			},
			"row 4711 of stream ROWS, partition 0\n queued\n +1.00 s finished: success, answered, 2 calls, 1 without capacity by a\n" +
				" +3.00 s call 1: openai large, ok 200 in 812 ms, delay 48 ms by b\n" +
				" +3.00 s finished: success, answered, 2 calls, 1 without capacity by b\n" +
				" +3.50 s waited 500 ms for row 4710\n +4.00 s emitted: result 9 of stream RESULTS, owner b\n",
		},
		{
			"it is finished and not emitted", nil,
			[]*auditlog.Event{rowEvent(4711, "a", 0, 1000)},
			"row 4711 of stream ROWS, partition 0\n queued\n +1.00 s finished: success, answered, 2 calls, 1 without capacity\n" +
				" +1.00 s not emitted yet, or the result is no longer stored\n",
		},
	} {
		if got := historyOf(tt.result, tt.events...); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

func TestTimesAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0", 0: "0", 300 * time.Microsecond: "0.3 ms", 9 * time.Millisecond: "9.0 ms", 999 * time.Millisecond: "999 ms", 1005 * time.Millisecond: "1.00 s",
		99 * time.Second: "99.00 s", 3*time.Minute + 200*time.Millisecond: "3m0s",
	} {
		if got := terminal.Duration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestOnlyWhatWasAskedForIsPrinted(t *testing.T) {
	failed := rowEvent(1, "o", 0, 1)
	failed.Row.Status, failed.Row.Reason = auditlog.RowError, "refused"
	ok, call := rowEvent(2, "o", 0, 1), callEvent(0, "o", 0, auditlog.CallFailure, 400, "permanent", "bad")
	for _, tt := range []struct {
		name    string
		options Options
		want    [3]bool // of the failed row, the other one, and the failed call
	}{
		{"everything", Options{}, [3]bool{true, true, true}},
		{"failures", Options{Failed: true}, [3]bool{true, false, true}},
		{"one reason", Options{Reason: []string{"row_timeout", "refused"}}, [3]bool{true, false, false}},
		{"another reason", Options{Reason: []string{"row_timeout"}}, [3]bool{}},
	} {
		if got := [3]bool{tt.options.wants(failed), tt.options.wants(ok), tt.options.wants(call)}; got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
