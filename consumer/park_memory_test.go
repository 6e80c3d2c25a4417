package consumer

import (
	"runtime"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/sequencer"
)

// TestAParkedRowTakesLittleMemory counts what a term holds of many parked rows: the place in the order, the numbers
// of the ack, and where the journal has the replies. The lane itself has 20 bytes more.
func TestAParkedRowTakesLittleMemory(t *testing.T) {
	const rows = 250_000
	limits := sequencer.Limits{Rows: 1024, Bytes: 1 << 28, Parked: rows}
	most := map[string]float64{"stream": 130, "key": 170}
	for name, line := range map[string]func() (open func(seq uint64) error, buf lineup){
		"stream": func() (func(uint64) error, lineup) {
			b := stagetest.Value(sequencer.New[place](limits))(t)
			return func(seq uint64) error { _, err := b.Open(seq, 2048); return err }, b
		},
		"key": func() (func(uint64) error, lineup) {
			b := stagetest.Value(sequencer.NewKeyed[place](limits, rows+1024, 0, nil))(t)
			keys := []string{"a", "b", "c"}
			return func(seq uint64) error { _, err := b.Open(seq, keys[seq%3], 2048); return err }, b
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			open, buf := line()
			var live []journalRef
			for seq := uint64(1); seq <= rows; seq++ {
				stagetest.Must(t, open(seq))
				if err := buf.Park(seq, place{parkedRow: parkedRow{entry: seq}}, seq > 1); err != nil { // all wait for the first
					t.Fatal(err)
				}
				live = append(live, journalRef{entry: seq, row: seq})
			}
			bytes := float64(heap()-before) / rows
			runtime.KeepAlive(buf)
			runtime.KeepAlive(live)
			t.Logf("%.0f bytes a row", bytes)
			if bytes > most[name] {
				t.Errorf("%.0f bytes a row, want at most %.0f", bytes, most[name])
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
