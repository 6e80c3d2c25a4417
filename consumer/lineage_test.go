package consumer_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// The room for a result is counted with its origin, which is no header of the row that is passed on.
func TestAResultNamesTheFirstRowOfItsChain(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.largestResult(8000)
		stream := strings.Repeat("C", 250)
		first := nats.Header{streams.HeaderStateID: {"map/CHUNKS/0/41"}, streams.HeaderSourceStream: {"CHUNKS"}, streams.HeaderSourceSeq: {"41"}}
		later := nats.Header{
			streams.HeaderStateID: {"map/A/0/41"}, streams.HeaderSourceStream: {"A"}, streams.HeaderSourceSeq: {"41"},
			streams.HeaderOriginStream: {stream}, streams.HeaderOriginSeq: {"18446744073709551615"},
			"X-Dropped": {strings.Repeat("x", 7000)},
		}
		forged := nats.Header{streams.HeaderOriginStream: {"CHUNKS"}, streams.HeaderOriginSeq: {"41"}}
		results := b.answered(b.config("run", roomy{}), nil, first, later, forged)
		for i, want := range [][2]string{{}, {"CHUNKS", "41"}, {stream, "18446744073709551615"}, {}} {
			m := results[i]
			h := m.Headers()
			if got := [2]string{h.Get(streams.HeaderOriginStream), h.Get(streams.HeaderOriginSeq)}; got != want {
				t.Errorf("row %d: origin %s, want %s", i+1, got, want)
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
