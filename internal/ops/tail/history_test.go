package tail

import (
	"bufio"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// plantedRow is a row as a stage has stored it: finished so many seconds after the test
// began, which stores its event, and emitted later, or 0 if it is not.
type plantedRow struct {
	seq               uint64
	key               string
	finished, emitted int
	low               uint64
}

// plant stores the events and the results of rows. Of those that are emitted at the same
// time the first one comes first.
func plant(b *stagetest.Bench, order streams.Order, rows []plantedRow) {
	b.T.Helper()
	begun := time.Now()
	for second := 1; second <= 60; second++ {
		time.Sleep(time.Until(begun.Add(time.Duration(second) * time.Second)))
		for _, r := range rows {
			if r.finished == second {
				e := &auditlog.Row{
					Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, Owner: "run.a", Sequence: r.seq, Status: auditlog.RowSuccess,
					Source: auditlog.SourceCall, Attempts: 1, QueuedAt: begun, FinishedAt: time.Now(),
				}
				if order == streams.OrderKey {
					e.Key = &r.key
				}
				b.Publish(&nats.Msg{Subject: "audit.stage.0.row", Data: e.AppendJSON(nil, auditlog.PayloadsFull, 0)})
			}
		}
		for _, r := range rows {
			if r.emitted == second {
				b.Publish(resultOf(order, r))
			}
		}
	}
}

func resultOf(order streams.Order, r plantedRow) *nats.Msg {
	h := nats.Header{
		streams.HeaderSourceSeq: {strconv.FormatUint(r.seq, 10)}, streams.HeaderOwner: {"run.a"}, streams.HeaderStatus: {auditlog.RowSuccess},
	}
	if order != streams.OrderStream {
		h.Set(streams.HeaderLow, strconv.FormatUint(r.low, 10))
	}
	if order == streams.OrderKey {
		h.Set(streams.HeaderKey, r.key)
	}
	return &nats.Msg{Subject: "results.stage.0.rows", Header: h}
}

// historyText is the history of a row without its times; the error of one that has no event.
func historyText(b *stagetest.Bench, seq uint64) string {
	b.T.Helper()
	var text strings.Builder
	out := bufio.NewWriter(&text)
	stagetest.Must(b.T, History(b.T.Context(), b.JS, b.Cfg, out, Options{Row: seq}))
	stagetest.Must(b.T, out.Flush())
	return regexp.MustCompile(`(?m)^ +[0-9:.]+ +(\+\S+ s)? +`).ReplaceAllString(text.String(), "")
}

// Row 1 is slow, and rows 3 and 4 have its key.
func TestAHistoryKnowsTheOrderOfTheResults(t *testing.T) {
	inStream := []plantedRow{{1, "", 50, 50, 0}, {2, "", 10, 50, 0}, {3, "", 20, 50, 0}, {4, "", 30, 50, 0}}
	byKey := []plantedRow{{2, "y", 10, 10, 0}, {5, "", 40, 40, 0}, {1, "x", 50, 50, 2}, {3, "x", 20, 50, 3}, {4, "x", 30, 50, 5}}
	inNone := []plantedRow{{2, "", 10, 10, 0}, {3, "", 20, 20, 0}, {4, "", 30, 30, 0}, {1, "", 50, 50, 4}}
	for _, tt := range []struct {
		order streams.Order
		rows  []plantedRow
		row   uint64
		key   string // in the first line
		want  string // after the line of the row's end
	}{
		{streams.OrderStream, inStream, 1, "", "waited for no earlier row\nemitted: result 1 "},
		{streams.OrderStream, inStream, 3, "", "waited 30.00 s for row 1\nemitted: result 3 "},
		{streams.OrderKey, byKey, 1, ", key x", "waited for no earlier row of its key\nemitted: result 3 "},
		{streams.OrderKey, byKey, 2, ", key y", "waited for no earlier row of its key\nemitted: result 1 "},
		{streams.OrderKey, byKey, 3, ", key x", "waited 30.00 s for row 1 of its key\nemitted: result 4 "},
		{streams.OrderKey, byKey, 4, ", key x", "waited 20.00 s for row 1 of its key\nemitted: result 5 "},
		{streams.OrderKey, byKey, 5, ", no key", "waited for no earlier row of its key\nemitted: result 2 "},
		{streams.OrderNone, inNone, 1, "", "waited for no other row\nemitted: result 4 "},
		{streams.OrderNone, inNone, 3, "", "waited for no other row\nemitted: result 2 "},
	} {
		t.Run(fmt.Sprintf("%s, row %d", tt.order, tt.row), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				plant(b, tt.order, tt.rows)
				got := historyText(b, tt.row)
				if !strings.Contains(got, "finished: success, answered, 1 call\n"+tt.want) {
					t.Errorf("got\n%s\nwant it to contain\n%s", got, tt.want)
				}
				head := fmt.Sprintf("row %d of stream ROWS, partition 0%s\n", tt.row, tt.key)
				if !strings.HasPrefix(got, head) {
					t.Errorf("got\n%s\nwant it to begin with %s", got, head)
				}
			})
		})
	}
}

// A row that has no result leaves its order to what else is stored of it, and to the
// settings. Row 4 waits for row 2, which is still called.
func TestAHistoryWithoutAResult(t *testing.T) {
	for _, tt := range []struct {
		order, set streams.Order
		row        uint64
		want       string
	}{
		{streams.OrderStream, streams.OrderStream, 3, "waited 30.00 s for row 1\nnot emitted yet, or"},
		{streams.OrderStream, streams.OrderStream, 4, "waited 20.00 s for row 1\nnot emitted yet, or"},
		{streams.OrderKey, streams.OrderStream, 3, "1 call\nnot emitted yet: an earlier row of its key"},
		{streams.OrderKey, streams.OrderKey, 4, "1 call\nnot emitted yet: an earlier row of its key"},
		{streams.OrderNone, streams.OrderNone, 3, "waited for no other row\nnot emitted yet, or"},
	} {
		t.Run(fmt.Sprintf("%s, row %d", tt.order, tt.row), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				b.Cfg = stagetest.Config(t, "STAGE_ORDER", string(tt.set))
				plant(b, tt.order, []plantedRow{{1, "x", 50, 50, 0}, {3, "x", 20, 0, 0}, {4, "y", 30, 0, 0}})
				if got := historyText(b, tt.row); !strings.Contains(got, tt.want) {
					t.Errorf("got\n%s\nwant it to contain\n%s", got, tt.want)
				}
			})
		})
	}
}

// The stage's clock is far ahead of the server's, so that no result seems to be younger
// than the row's events.
func TestAResultIsFoundThoughClocksDisagree(t *testing.T) {
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone} {
		t.Run(string(order), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				plant(b, order, []plantedRow{{1, "x", 1, 1, 1}, {2, "y", 2, 2, 2}})
				first := &auditlog.Event{Header: auditlog.Header{Time: time.Now().Add(time.Hour)}}
				for seq, at := range []uint64{1: 1, 2: 2, 3: 0} {
					search := &search{js: b.JS, cfg: b.Cfg, row: uint64(seq)}
					got, err := search.result(t.Context(), first)
					if seq > 0 && (err != nil || (got == nil) != (at == 0) || got != nil && got.at != at) {
						t.Errorf("row %d: got %+v, %v, want result %d", seq, got, err, at)
					}
				}
			})
		})
	}
}

// Of a row that fans out one element can be asked for: its own calls, and what became of the row.
func TestAHistoryOfOneElement(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		for i, item := range []int{0, 1, 1} {
			c := &auditlog.Call{
				Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, Owner: "run.a", Sequence: 1, CallIndex: i, Item: &item, Provider: "mock",
				Model: "mock", Status: auditlog.CallSuccess,
			}
			b.Publish(&nats.Msg{Subject: "audit.stage.0.call", Data: c.AppendJSON(nil, auditlog.PayloadsFull, 0)})
		}
		plant(b, streams.OrderStream, []plantedRow{{1, "", 1, 1, 0}})
		var text strings.Builder
		out := bufio.NewWriter(&text)
		stagetest.Must(t, History(t.Context(), b.JS, b.Cfg, out, Options{Row: 1, Item: new(1)}))
		stagetest.Must(t, out.Flush())
		lines := []string{`^row 1#1 of stream ROWS`, `queued`, `#1   call 2: mock, ok`, `#1   call 3: mock, ok`, `finished: success`, `waited for no earlier row`, `emitted: result 1`}
		got := strings.Split(strings.TrimSpace(text.String()), "\n")
		for i, line := range lines {
			if len(got) != len(lines) || !regexp.MustCompile(line).MatchString(got[i]) {
				t.Fatalf("got\n%s\nwant %q", &text, lines)
			}
		}
		if err := History(t.Context(), b.JS, b.Cfg, out, Options{Row: 1, Item: new(2)}); !IsNoEvent(err) || !strings.Contains(err.Error(), "element 2 of row 1 has no call") {
			t.Errorf("element 2: got %v", err)
		}
	})
}
