//go:build long

package stage_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

func TestRowsThatAreAddedMeanwhileAreLeftForTheNextRun(t *testing.T) {
	t.Parallel()
	input, dir := writeRows(t, 2), t.TempDir()
	add := func(text string) {
		f, err := os.OpenFile(input, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString(text)
			_ = f.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}
	var once sync.Once
	_, environ := realLLM(t, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step {
		once.Do(func() { add("{\"n\":3}\n{\"n\":") }) // the writer is in the middle of a line
		return nil
	}})
	out := filepath.Join(t.TempDir(), "out.jsonl")
	for _, want := range []struct {
		rows  int
		grown bool
	}{{2, true}, {4, false}} {
		p := runStage(t, dir, environ, "process", input, "-o", out)
		p.ends(0)
		checkRows(t, read(t, out), want.rows)
		if said := strings.Contains(p.stderr.String(), "the input has grown meanwhile: the same command takes the rest"); said != want.grown {
			t.Errorf("%d rows: it says that the input has grown: %v", want.rows, said)
		}
		if want.grown {
			add("4}\n")
		}
	}
}
