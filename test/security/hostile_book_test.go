package security_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// bookVariable names the file of a book to the processes that fuzz.
const bookVariable = "HOSTILE_BOOK"

// book adds up what the runs of a fuzz target have done. They are made by other processes, whose output is not shown, so
// each run is a line of a file.
type book struct{ path string }

// openBook returns the book of a fuzz target, which prints its sum when it ends.
func openBook(f *testing.F) book {
	f.Helper()
	if path := os.Getenv(bookVariable); path != "" {
		return book{path}
	}
	b := book{filepath.Join(f.TempDir(), "book")}
	f.Setenv(bookVariable, b.path)
	f.Cleanup(func() {
		text, err := os.ReadFile(b.path)
		if err != nil {
			f.Log(err)
			return
		}
		var sum tally
		for line := range bytes.Lines(text) {
			var one tally
			if err := json.Unmarshal(line, &one); err != nil {
				f.Error(err)
			}
			sum.add(one)
		}
		f.Log(sum)
	})
	return b
}

func (b book) add(t *testing.T, one tally) {
	t.Helper()
	line := stagetest.Value(json.Marshal(one))(t)
	file := stagetest.Value(os.OpenFile(b.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))(t)
	defer file.Close() //nolint:errcheck // the write is what counts
	stagetest.Value(file.Write(append(line, '\n')))(t)
}
