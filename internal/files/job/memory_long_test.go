//go:build long

package job_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// What a job holds for each row that is done must not grow, but for the ids that the server needs
// to know for a while, some 300 bytes. The blocks of the server's files come and go and are not
// counted.
func TestMemoryDoesNotGrowWithTheRows(t *testing.T) {
	for _, order := range []string{"stream", "key"} { // each row has a key of its own
		t.Run(order, func(t *testing.T) { checkMemory(t, order) })
	}
}

func checkMemory(t *testing.T, order string) {
	t.Helper()
	const early, rows, most = 2000, 16000, 800
	dir := stagetest.Dir(t)
	input := filepath.Join(t.TempDir(), "rows.jsonl")
	var text strings.Builder
	for i := range rows {
		fmt.Fprintf(&text, `{"id":%d,"text":%q}`+"\n", i, strings.Repeat("word ", 36))
	}
	stagetest.Must(t, os.WriteFile(input, []byte(text.String()), 0o600))
	cfg := stagetest.ConfigOfCalls(t, "STAGE_LLM_PROVIDER", "mock", "STAGE_TEMPLATE", "Say {{ row.text }}{{ row.id }}", "STAGE_DATA_DIR", dir,
		"STAGE_POOL_SIZE", "32", "STAGE_WINDOW", "256", "STAGE_HTTP_ADDR", "127.0.0.1:0", "STAGE_DATA_SYNC", "1m",
		"STAGE_ORDER", order, "STAGE_ORDER_KEY", "field.id")
	w := &heapAtLines{marks: []int{early, rows - 500}}
	if err := job.Process(t.Context(), t.Context(), job.IO{In: strings.NewReader(""), Out: w, Err: io.Discard}, cfg, input, job.Options{Mock: llmtest.Config{}.Start, Where: func(string) string { return "" }}); err != nil {
		t.Fatal(err)
	}
	if len(w.heaps) != 2 || w.lines != rows {
		t.Fatalf("%d results and %d measures, want %d and 2", w.lines, len(w.heaps), rows)
	}
	perRow := float64(w.heaps[1]-w.heaps[0]) / float64(w.at[1]-w.at[0])
	t.Logf("%d KiB after %d rows, %d KiB after %d: %.0f bytes for each between", w.heaps[0]>>10, w.at[0], w.heaps[1]>>10, w.at[1], perRow)
	if perRow > most {
		t.Errorf("%.0f bytes more in use for each row that is done, want at most %d", perRow, most)
	}
}

// heapAtLines counts lines, and what small objects take in all once there are as many as a mark.
type heapAtLines struct {
	marks []int // ascending
	lines int
	at    []int
	heaps []int64
}

func (w *heapAtLines) Write(p []byte) (int, error) {
	w.lines += bytes.Count(p, []byte{'\n'})
	if len(w.marks) > 0 && w.lines >= w.marks[0] {
		w.marks = w.marks[1:]
		w.at, w.heaps = append(w.at, w.lines), append(w.heaps, smallObjects())
	}
	return len(p), nil
}

// smallObjects returns the bytes in use of objects up to 16 KiB.
func smallObjects() (sum int64) {
	for range 3 { // pools give up what they hold
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for _, class := range m.BySize {
		sum += int64(class.Size) * int64(class.Mallocs-class.Frees) //nolint:gosec // far below 2^63
	}
	return sum
}
