package tail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// plantEnd stores the event of a row that ended; reason is empty for one that succeeded.
func plantEnd(b *stagetest.Bench, row uint64, reason string) {
	b.T.Helper()
	e := &auditlog.Row{
		Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, StateID: auditlog.StateID("stage", "ROWS", 0, row), Owner: "run.a", Sequence: row,
		Status: auditlog.RowSuccess, Source: auditlog.SourceCall, Attempts: 1, QueuedAt: time.Now(), FinishedAt: time.Now(),
	}
	if reason != "" {
		e.Status, e.Reason, e.Source, e.Attempts = auditlog.RowError, reason, "", 2
		e.Errors = []auditlog.AttemptError{{Attempt: 2, Error: "no: " + strings.Repeat("x", 400)}}
	}
	b.Publish(&nats.Msg{Subject: "audit.stage.0.row", Data: e.AppendJSON(nil, auditlog.PayloadsFull, 0)})
}

// list returns the sequences of a page's rows.
func list(t *testing.T, b *stagetest.Bench, o FailuresOptions) (*Failures, []uint64) {
	t.Helper()
	page := stagetest.Value(ListFailures(t.Context(), b.JS, b.Cfg, o))(t)
	rows := []uint64{}
	for _, r := range page.Rows {
		rows = append(rows, r.Row)
	}
	return page, rows
}

func TestFailuresOfAReasonAreListedNewestFirst(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	if page, rows := list(t, b, FailuresOptions{Limit: 10}); len(rows) > 0 || page.Before != 0 || page.Since != nil {
		t.Errorf("an empty stream: got %+v", page)
	}
	for i := range uint64(30) {
		plantEnd(b, i+1, [...]string{"", "refused", "row_timeout"}[i%3])
		b.Publish(&nats.Msg{Subject: "audit.stage.0.call", Data: []byte(`{"status":"error"}`)})
		b.Publish(&nats.Msg{Subject: "audit.other.0.row", Data: []byte(`{}`)})
	}
	b.Publish(&nats.Msg{Subject: "audit.stage.0.row", Data: []byte(`{"status":"error"}`)}) // no event
	for _, tt := range []struct {
		name string
		o    FailuresOptions
		want []uint64
	}{
		{"a reason", FailuresOptions{Reason: "refused", Limit: 50}, []uint64{29, 26, 23, 20, 17, 14, 11, 8, 5, 2}},
		{"any reason", FailuresOptions{Limit: 4}, []uint64{30, 29, 27, 26}},
		{"an unknown reason", FailuresOptions{Reason: "refuse", Limit: 4}, []uint64{}},
		{"before one", FailuresOptions{Reason: "row_timeout", Before: 1 + 3*8, Limit: 50}, []uint64{6, 3}},
		{"before all", FailuresOptions{Before: 1, Limit: 50}, []uint64{}},
		{"before one that is not there yet", FailuresOptions{Before: 1 << 60, Limit: 1}, []uint64{30}},
	} {
		if _, got := list(t, b, tt.o); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}

	// Page by page, each row once; at the end there is no next page.
	var all []uint64
	for before, pages := uint64(0), 0; ; pages++ {
		page, rows := list(t, b, FailuresOptions{Reason: "refused", Before: before, Limit: 3})
		all = append(all, rows...)
		if before = page.Before; before == 0 {
			break
		}
		if pages > 10 {
			t.Fatal("the pages have no end")
		}
	}
	if want := []uint64{29, 26, 23, 20, 17, 14, 11, 8, 5, 2}; !slices.Equal(all, want) {
		t.Errorf("page by page: got %v, want %v", all, want)
	}

	page, _ := list(t, b, FailuresOptions{Reason: "refused", Limit: 1})
	if r := page.Rows[0]; r.Error != "" || page.Payloads || r.Attempts != 2 || r.Reason != "refused" {
		t.Errorf("without contents: got %+v", r)
	}
	page, _ = list(t, b, FailuresOptions{Reason: "refused", Limit: 1, Payloads: true})
	if r := page.Rows[0]; !strings.HasPrefix(r.Error, "no: xxx") || len(r.Error) > errorMost+len("…") {
		t.Errorf("with contents: got %+v", r)
	}
	b.Drop("AUDIT")
	if _, err := ListFailures(t.Context(), b.JS, b.Cfg, FailuresOptions{Limit: 1}); err == nil {
		t.Error("want an error for a stream that does not exist")
	}
}

// A page reads a bounded number of events, and the next one goes on from there: the only
// row that failed is far back.
func TestAPageOfFailuresReadsABoundedPart(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	plantEnd(b, 1, "refused")
	const others = eventsMost + 3*partFirst
	for range others - 1 {
		stagetest.Must(t, b.NC.Publish("audit.stage.0.row", []byte(`{"status":"success"}`)))
	}
	b.Publish(&nats.Msg{Subject: "audit.stage.0.row", Data: []byte(`{}`)}) // is stored after all of them
	stored, err := b.Stream("AUDIT").Info(t.Context())
	if err != nil || stored.State.Msgs != others+1 {
		t.Fatalf("%+v, %v: want %d events", stored, err, others+1)
	}
	page, rows := list(t, b, FailuresOptions{Reason: "refused", Limit: 50})
	if len(rows) > 0 || page.Before == 0 || page.Since == nil || page.Events < partFirst || page.Events > eventsMost+partFirst {
		t.Fatalf("got %v of %d events, next before %d: want none yet", rows, page.Events, page.Before)
	}
	read := page.Events
	for page.Before > 0 {
		page, rows = list(t, b, FailuresOptions{Reason: "refused", Before: page.Before, Limit: 50})
		read += page.Events
	}
	if !slices.Equal(rows, []uint64{1}) || read != others+1 {
		t.Errorf("got %v after %d events, want row 1 after all %d", rows, read, others+1)
	}
}

// Where the time is up, the page has what was found, and says from where the next one goes on.
func TestAPageOfFailuresThatIsLate(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	gone, end := context.WithCancel(t.Context())
	end()
	now := time.Now()
	for _, tt := range []struct {
		name string
		page Failures
		ctx  context.Context //nolint:containedctx // of the case
		want string
	}{
		{"nothing was read", Failures{}, late, "<nil> late"},
		{"a part was read", Failures{Since: &now}, late, "42 <nil>"},
		{"the client has gone", Failures{Since: &now}, gone, "<nil> late"},
	} {
		page, err := tt.page.partly(tt.ctx, errors.New("late"), 41)
		got := fmt.Sprint(page, err)
		if page != nil {
			got = fmt.Sprint(page.Before, err)
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
