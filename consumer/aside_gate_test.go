package consumer_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// gatedExecutor makes few calls at once and goes by [consumer.Row.MayBegin], as the executor of a stage does.
type gatedExecutor struct {
	*sleeper
	slots chan struct{}
}

func (g *gatedExecutor) Start(row *consumer.Row) {
	g.wg.Go(func() {
		for {
			for !row.MayBegin() {
				time.Sleep(3 * time.Second)
			}
			select {
			case g.slots <- struct{}{}:
			case <-g.over:
				return
			}
			if row.MayBegin() {
				break
			}
			<-g.slots
		}
		g.sleeper.Start(row)
		time.Sleep(g.latency(2))
		<-g.slots
	})
}

// The replies to the rows of one key are large, and the first of them takes long: those that wait must not use up the
// bytes of the window.
func TestLargeRepliesOfAKeyThatWaitsLeaveRoom(t *testing.T) {
	for name, c := range map[string]struct{ row, reply int }{
		"large replies":          {10, 32 << 10},
		"large rows":             {16 << 10, 10},
		"large rows and replies": {16 << 10, 32 << 10},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			rows, others := 0, 0
			publish := func(subject string) {
				rows++
				body := make([]byte, c.row)
				copy(body, strconv.Itoa(rows))
				stagetest.Value(b.js.Publish(b.t.Context(), subject, body))(t)
			}
			for range 60 {
				publish("rows.hot")
			}
			for i := range 60 {
				publish("rows.hot")
				publish("rows.k" + strconv.Itoa(i))
				others++
			}
			exec := &gatedExecutor{sleeper: hotExecutor(1), slots: make(chan struct{}, 8)}
			exec.over = t.Context().Done()
			exec.body = make([]byte, c.reply)
			cfg := b.ordered(streams.OrderKey, "run1", exec)
			cfg.OrderSpan, cfg.WindowBytes = 4096, 512<<10
			r := b.startWith(cfg)
			time.Sleep(5 * time.Minute)
			if got := b.results(); got != others {
				t.Errorf("got %d results while row 1 waits, want %d: %+v", got, others, r.Status())
			}
			if st := r.Status(); st.BufferedBytes > 768<<10 {
				t.Errorf("the window holds %d bytes", st.BufferedBytes)
			}
			r.stopAfter(b, rows)
			b.checkOrder(uint64(rows)) //nolint:gosec // a count
		})
	}
}
