package tail

import (
	"bufio"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// plantedRow is a row as a stage has stored it: finished so many seconds after the test began, its row event and its
// result stored at another time.
type plantedRow struct {
	seq             uint64
	key             string
	finished, store int
	low             uint64
}

// plant stores the events and results of rows, in the order in which they are given.
func plant(b *stagetest.Bench, order streams.Order, rows []plantedRow) {
	b.T.Helper()
	begun := time.Now()
	for _, r := range rows {
		time.Sleep(time.Until(begun.Add(time.Duration(r.store) * time.Second)))
		e := &auditlog.Row{
			Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, Owner: "run.a", Sequence: r.seq, Status: auditlog.RowSuccess,
			Source: auditlog.SourceCall, Attempts: 1, QueuedAt: begun, FinishedAt: begun.Add(time.Duration(r.finished) * time.Second),
		}
		m := &nats.Msg{Subject: "results.stage.0.rows", Header: nats.Header{
			streams.HeaderSourceSeq: {strconv.FormatUint(r.seq, 10)}, streams.HeaderOwner: {e.Owner}, streams.HeaderStatus: {e.Status},
		}}
		if order != streams.OrderStream {
			m.Header.Set(streams.HeaderLow, strconv.FormatUint(r.low, 10))
		}
		if order == streams.OrderKey {
			e.Key = &r.key
			m.Header.Set(streams.HeaderKey, r.key)
		}
		b.Publish(&nats.Msg{Subject: "audit.stage.0.row", Data: e.AppendJSON(nil, auditlog.PayloadsFull, 0)})
		b.Publish(m)
	}
}

// historyText is the history of a row without its times; the error of one that has no event.
func historyText(b *stagetest.Bench, seq uint64) string {
	b.T.Helper()
	var text strings.Builder
	out := bufio.NewWriter(&text)
	if err := History(b.T.Context(), b.JS, b.Cfg, out, Options{Row: seq}); err != nil {
		b.T.Fatal(err)
	}
	if err := out.Flush(); err != nil {
		b.T.Fatal(err)
	}
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
		want  string // after the line of the row's end
	}{
		{streams.OrderStream, inStream, 1, "waited for no earlier row\nemitted: result 1 "},
		{streams.OrderStream, inStream, 3, "waited 30.00 s for row 1\nemitted: result 3 "},
		{streams.OrderKey, byKey, 1, "waited for no earlier row of its key\nemitted: result 3 "},
		{streams.OrderKey, byKey, 2, "waited for no earlier row of its key\nemitted: result 1 "},
		{streams.OrderKey, byKey, 3, "waited 30.00 s for row 1 of its key\nemitted: result 4 "},
		{streams.OrderKey, byKey, 4, "waited 20.00 s for row 1 of its key\nemitted: result 5 "},
		{streams.OrderKey, byKey, 5, "waited for no earlier row of its key\nemitted: result 2 "},
		{streams.OrderNone, inNone, 1, "waited for no other row\nemitted: result 4 "},
		{streams.OrderNone, inNone, 3, "waited for no other row\nemitted: result 2 "},
	} {
		t.Run(fmt.Sprintf("%s, row %d", tt.order, tt.row), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				plant(b, tt.order, tt.rows)
				got := historyText(b, tt.row)
				if !strings.Contains(got, "finished: success, answered, 1 call\n"+tt.want) {
					t.Errorf("got\n%s\nwant it to contain\n%s", got, tt.want)
				}
				if _, key, named := strings.Cut(strings.SplitN(got, "\n", 2)[0], ", key "); named != (tt.order == streams.OrderKey) {
					t.Errorf("the first line names key %q: %s", key, got)
				}
			})
		})
	}
}

// A row that has no result yet leaves its order to what else is stored of it, and to the settings.
func TestAHistoryWithoutAResult(t *testing.T) {
	for _, tt := range []struct {
		order, set streams.Order
		want       string
	}{
		{streams.OrderStream, streams.OrderStream, "waited 30.00 s for row 1\nnot emitted yet"},
		{streams.OrderKey, streams.OrderStream, "waited 30.00 s for row 1 of its key\nnot emitted yet"},
		{streams.OrderNone, streams.OrderNone, "waited for no other row\nnot emitted yet"},
	} {
		t.Run(string(tt.order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				b.Cfg = stagetest.Config(t, "STAGE_ORDER", string(tt.set))
				plant(b, tt.order, []plantedRow{{1, "x", 50, 50, 0}, {3, "x", 20, 50, 0}})
				b.Purge("RESULTS", 0)
				if got := historyText(b, 3); !strings.Contains(got, tt.want) {
					t.Errorf("got\n%s\nwant it to contain\n%s", got, tt.want)
				}
			})
		})
	}
}

// The stage's clock is far ahead of the server's, so that no result seems to be younger than the row's events.
func TestAResultIsFoundThoughClocksDisagree(t *testing.T) {
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone} {
		t.Run(string(order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				plant(b, order, []plantedRow{{1, "x", 1, 1, 1}, {2, "y", 2, 2, 2}})
				first := &auditlog.Event{Header: auditlog.Header{Time: time.Now().Add(time.Hour)}}
				for seq, at := range []uint64{1: 1, 2: 2, 3: 0} {
					got, err := findResult(t.Context(), b.JS, b.Cfg, first, uint64(seq))
					if seq > 0 && (err != nil || (got == nil) != (at == 0) || got != nil && got.at != at) {
						t.Errorf("row %d: got %+v, %v, want result %d", seq, got, err, at)
					}
				}
			})
		})
	}
}
