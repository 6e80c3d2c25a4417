package consumer

import (
	"runtime"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/sequencer"
)

// TestARowAwayTakesLittleMemory counts what a term holds of many parked rows: the place in the order, the numbers of the
// ack, and where the journal has the replies. The lane itself has 20 bytes more.
func TestARowAwayTakesLittleMemory(t *testing.T) {
	const rows, most = 50_000, 130
	for name, keys := range map[string]int{"stream": 1, "key": 3} {
		t.Run(name, func(t *testing.T) {
			limits := sequencer.Limits{Rows: 1024, Bytes: 1 << 28, Span: rows + 1024, Parked: rows, Shared: keys > 1}
			before := heap()
			buf := stagetest.Value(sequencer.New[place](limits, 0, nil))(t)
			var live []keptRef
			for seq := uint64(1); seq <= rows; seq++ {
				key := sequencer.Key{Name: []string{"a", "b", "c"}[seq%uint64(keys)]}
				stagetest.Value(buf.Open(seq, key, 2048))(t)
				stagetest.Must(t, buf.Park(seq, place{awayRow: awayRow{kept: true}}, seq > 1)) // all wait for the first
				live = append(live, keptRef{seq, wholeRow})
			}
			bytes := float64(heap()-before) / rows
			runtime.KeepAlive(buf)
			runtime.KeepAlive(live)
			t.Logf("%.0f bytes a row", bytes)
			if bytes > most {
				t.Errorf("%.0f bytes a row, want at most %d", bytes, most)
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
