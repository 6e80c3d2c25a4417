package tail

import (
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// planted is when the event and the result of a row were stored.
type planted struct{ event, result time.Time }

// plantPartitions publishes all rows of three partitions at once, then stores each second
// the event of one and two seconds later its result. Of every fifth row nothing is
// stored: a sequence of another subject.
func plantPartitions(b *stagetest.Bench, rows uint64, order streams.Order) map[uint64]planted {
	b.T.Helper()
	for row := range rows {
		b.Publish(&nats.Msg{Subject: fmt.Sprintf("rows.%d.a", (row+1)%3)})
	}
	at := make(map[uint64]planted)
	result := func(row uint64) {
		if row == 0 || row%5 == 0 {
			return
		}
		m := resultOf(order, plantedRow{seq: row, low: row})
		m.Subject = fmt.Sprintf("results.stage.%d.rows", row%3)
		b.Publish(m)
		at[row] = planted{at[row].event, time.Now()}
	}
	for row := uint64(1); row <= rows+2; row++ {
		if row <= rows && row%5 > 0 {
			e := &auditlog.Row{
				Header: auditlog.Header{Time: time.Now(), Stage: "stage", Partition: auditlog.Partition(row % 3)}, Owner: "run.a", Sequence: row, //nolint:gosec // few
				StateID: auditlog.StateID("stage", "ROWS", auditlog.Partition(row%3), row), Status: auditlog.RowSuccess, QueuedAt: time.Now(), FinishedAt: time.Now(), //nolint:gosec // few
			}
			m := &nats.Msg{Subject: fmt.Sprintf("audit.stage.%d.row", row%3), Header: nats.Header{jetstream.MsgIDHeader: {e.MsgID()}}}
			m.Data = e.AppendJSON(nil, auditlog.PayloadsFull, 0)
			b.Publish(m)
			at[row] = planted{event: time.Now()}
		}
		if row > 2 && row <= rows { // the results of the last two rows are still to come
			result(row - 2)
		}
		time.Sleep(time.Second)
	}
	return at
}

// Most of the audit is of other rows, in other partitions, too; the story of a row reads
// the part around it.
func TestAStoryIsLookedForWhereItsResultIs(t *testing.T) {
	const rows, window = 400, 4
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderNone} {
		t.Run(string(order), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				b := stagetest.NewBench(t, nil)
				b.Cfg = stagetest.Config(t, "STAGE_PARTITIONS", "3", "STAGE_INPUT_SUBJECT", "rows.{partition}.>", "STAGE_WINDOW", fmt.Sprint(window), "STAGE_ORDER", string(order))
				began := time.Now()
				stored := plantPartitions(b, rows, order)
				for _, gone := range []bool{false, true} { // whether the rows have left the input
					for _, row := range []uint64{1, 2, 3, 47, 199, 201, 398, 399} {
						source, err := streams.MessageAt(t.Context(), b.NC, "ROWS", row)
						if err != nil || (source == nil) != gone {
							t.Fatal(source, err)
						}
						search := &search{js: b.JS, cfg: b.Cfg, row: row, brief: true}
						where := stagetest.Value(search.locate(t.Context(), source))(t)
						at, emitted := stored[row], !stored[row].result.IsZero()
						if where.since.After(at.event) || emitted && (where.until.IsZero() || where.until.Before(at.result)) {
							t.Errorf("row %d is in %v, looked for in %+v", row, at, where)
						}
						// A row that has no result may be in any partition, where nothing
						// says in which.
						if inOrder := order == streams.OrderStream; row > 150 && inOrder && (emitted || !gone) && at.event.Sub(where.since) > 40*window*time.Second {
							t.Errorf("row %d, %v after the begin, is looked for from %v before it on", row, at.event.Sub(began), at.event.Sub(where.since))
						}
						if emitted && where.until.Sub(at.result) > 20*time.Second {
							t.Errorf("row %d is looked for until %v after its result", row, where.until.Sub(at.result))
						}
						story, err := Tell(t.Context(), b.JS, b.Cfg, StoryOptions{Row: row})
						if err != nil || (story.Steps[len(story.Steps)-1].Kind == StepEmitted) != emitted {
							t.Errorf("row %d: got %+v, %v", row, story, err)
						}
					}
					for _, row := range []uint64{5, 200, 401, 4711} {
						if _, err := Tell(t.Context(), b.JS, b.Cfg, StoryOptions{Row: row}); !IsNoEvent(err) {
							t.Errorf("row %d: got %v", row, err)
						}
					}
					b.Purge("ROWS", 0)
				}
			})
		})
	}
}

// Of a row that is neither in the input nor answered there can be nothing anywhere: the
// whole audit is not read for it.
func TestARowThatIsNowhereIsNotLookedForEverywhere(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		b.Cfg = stagetest.Config(t, "STAGE_WINDOW", "1")
		plantEnd(b, 4711, "") // of an input that was deleted, long ago
		for row := range uint64(20) {
			time.Sleep(time.Minute)
			b.Publish(resultOf(streams.OrderStream, plantedRow{seq: row + 1}))
		}
		if story, err := Tell(t.Context(), b.JS, b.Cfg, StoryOptions{Row: 4711}); !IsNoEvent(err) {
			t.Errorf("got %+v, %v", story, err)
		}
	})
}

// An owner with a larger window has taken the row long before the results that today's
// window goes back to.
func TestAStoryIsLookedForEverywhereIfItMust(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		b.Cfg = stagetest.Config(t, "STAGE_WINDOW", "1")
		plantEnd(b, 200, "")
		for row := range uint64(200) {
			time.Sleep(time.Minute)
			b.Publish(resultOf(streams.OrderStream, plantedRow{seq: row + 1}))
		}
		story, err := Tell(t.Context(), b.JS, b.Cfg, StoryOptions{Row: 200})
		if err != nil || story.Steps[len(story.Steps)-1].Kind != StepEmitted {
			t.Errorf("got %+v, %v", story, err)
		}
	})
}
