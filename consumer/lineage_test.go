package consumer_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// The room for a result is counted with its origin, which is no header of the row that is passed on.
func TestAResultNamesTheFirstRowOfItsChain(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.largestResult(8000)
		stream := strings.Repeat("C", 250)
		first := nats.Header{streams.HeaderStateID: {"map/CHUNKS/0/41"}, streams.HeaderSourceStream: {"CHUNKS"}, streams.HeaderSourceSeq: {"41"}}
		later := nats.Header{
			streams.HeaderStateID: {"map/A/0/41"}, streams.HeaderSourceStream: {"A"}, streams.HeaderSourceSeq: {"41"},
			streams.HeaderOriginStream: {stream}, streams.HeaderOriginSeq: {"18446744073709551615"},
			"X-Dropped": {strings.Repeat("x", 7000)},
		}
		rows := []struct {
			header      nats.Header
			stream, seq string
		}{
			{nil, "", ""},
			{first, "CHUNKS", "41"},
			{later, stream, "18446744073709551615"},
			{nats.Header{streams.HeaderOriginStream: {"CHUNKS"}, streams.HeaderOriginSeq: {"41"}}, "", ""},
		}
		for _, row := range rows {
			stagetest.Value(b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "rows.a", Header: row.header, Data: []byte(`{}`)}))(t)
		}
		r := b.startWith(b.config("run", roomy{}))
		b.until(len(rows))
		r.stop(t)
		results := b.read("RESULTS", "results.stage.0.rows")
		for i, m := range results {
			h := m.Headers()
			if stream, seq := h.Get(streams.HeaderOriginStream), h.Get(streams.HeaderOriginSeq); stream != rows[i].stream || seq != rows[i].seq {
				t.Errorf("row %d: origin %s %s, want %s %s", i+1, stream, seq, rows[i].stream, rows[i].seq)
			}
			if h.Get(streams.HeaderStatus) != "success" {
				t.Errorf("row %d: %s: the room was not counted right", i+1, m.Data())
			}
		}
		less := len(results[0].Data()) - len(results[1].Data())
		if want := len("Stage-Origin-Stream: CHUNKS\r\nStage-Origin-Seq: 41\r\n"); less != want {
			t.Errorf("a result with an origin has room for %d bytes less, want %d", less, want)
		}
	})
}
