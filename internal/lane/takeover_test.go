package lane

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

// The clocks of two owners differ: the first one wrote its intent at 12:02 by its own clock, and the next one, a minute
// later, at 12:01. The row is in the batch that was recorded last.
func TestARowIsInTheBatchThatWasRecordedLast(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	l, err := New(Config{
		NC: new(nats.Conn), API: &process{provider: fileProvider()}, Account: func() string { return "one" }, ProbeInterval: time.Minute,
		Settings: config.LaneConfig{Rows: 100, Open: 10, Stream: "LANE", AdoptWait: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	intent := func(token string, at time.Time, seqs ...uint64) Record {
		return Record{Kind: RecordIntent, Token: token, Time: at, Account: "one", Rows: &Rows{Seqs: seqs, Hashes: seqs}}
	}
	k := newKeeper(l, consumer.LaneTerm{Owner: "third"})
	k.recover([]Record{
		intent("old", now.Add(2*time.Minute), 4, 5, 6),
		intent("new", now.Add(time.Minute), 5, 7),
	}, now.Add(3*time.Minute))
	for seq, want := range map[uint64]string{4: "old", 5: "new", 6: "old", 7: "new"} {
		if b, i := k.batches.holder(seq); b.token != want || b.state[i] != rowSubmitted {
			t.Errorf("row %d is in batch %s, want %s", seq, b.token, want)
		}
	}
}
