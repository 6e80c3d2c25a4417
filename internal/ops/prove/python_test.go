package prove

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// The program in docs/proof.md accepts what stage prove prints, and nothing that was changed.
func TestTheProgramOfTheDocsChecksAProof(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("%v: install python3, as .ci/run does", err)
	}
	docs := string(stagetest.Value(os.ReadFile("../../../docs/proof.md"))(t))
	_, program, _ := strings.Cut(docs, "```python\n")
	program, _, found := strings.Cut(program, "```\n")
	if !found {
		t.Fatal("docs/proof.md has no program")
	}
	dir := t.TempDir()
	script, file := filepath.Join(dir, "check.py"), filepath.Join(dir, "proof.json")
	stagetest.Must(t, os.WriteFile(script, []byte(program), 0o600))
	check := func(text string) (string, error) {
		stagetest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := exec.CommandContext(t.Context(), python, script, file).CombinedOutput()
		return string(out), err
	}
	b := stagetest.NewBench(t, nil)
	chained(b)
	for _, row := range []uint64{1, 6, 20} {
		proof, text := prove(b, Options{Row: row})
		if out, err := check(string(text)); err != nil || strings.TrimSpace(out) != proof.Root.String() {
			t.Errorf("row %d: %v\n%s", row, err, out)
		}
	}
	_, text := prove(b, Options{Row: 6})
	for _, member := range []string{`"previous":"`, `"body":"`, `"steps":["`, `"chain":"`, `"Stage-Event":["`, `"Stage-Status":["`, `"row_event":{"data":"`, `"events":[{"data":"`, `"row":`} {
		before, after, found := strings.Cut(string(text), member)
		if !found {
			t.Errorf("the proof has no %s", member)
			continue
		}
		other := "B"
		if after[0] >= '0' && after[0] <= '9' || after[0] >= 'a' && after[0] <= 'f' {
			other = string('0' + (after[0]+1)%10)
			if other == after[:1] {
				other = "9"
			}
		}
		if out, err := check(before + member + other + after[1:]); err == nil {
			t.Errorf("a changed %s passes: %s", member, out)
		}
	}
}
