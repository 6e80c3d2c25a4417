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
	b := stagetest.NewBench(t, nil)
	chained(b)
	var proofs, roots []string
	for _, row := range []uint64{1, 6, 20} {
		proof, text := prove(b, Options{Row: row})
		proofs, roots = append(proofs, string(text)), append(roots, proof.Root.String())
	}
	members := []string{
		`"previous":"`, `"body":"`, `"steps":["`, `"chain":"`, `"Stage-Event":["`, `"Stage-Status":["`, `"row_event":{"data":"`, `"events":[{"data":"`, `"row":`,
	}
	for _, member := range members {
		before, after, found := strings.Cut(proofs[1], member)
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
		proofs, roots = append(proofs, before+member+other+after[1:]), append(roots, "")
	}
	script := filepath.Join(t.TempDir(), "check.py")
	stagetest.Must(t, os.WriteFile(script, []byte(program), 0o600))
	args := []string{"-c", checkAll, script}
	for i, text := range proofs {
		args = append(args, filepath.Join(t.TempDir(), "proof.json"))
		stagetest.Must(t, os.WriteFile(args[3+i], []byte(text), 0o600))
	}
	out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
	printed := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(printed) != len(proofs) {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, got := range printed {
		if i < len(proofs)-len(members) && got != roots[i] {
			t.Errorf("proof %d: got %s, want %s", i, got, roots[i])
		} else if roots[i] == "" && got != "refused" {
			t.Errorf("a changed %s passes: %s", members[i-len(proofs)+len(members)], got)
		}
	}
}

// checkAll runs a program with one file after the other in the same process. It prints a
// line for each: what the program does, or that it has failed.
const checkAll = `
import contextlib, io, runpy, sys
script, files = sys.argv[1], sys.argv[2:]
for file in files:
    sys.argv = [script, file]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        print("refused" if e.code else out.getvalue().strip())
    except Exception:
        print("refused")
    else:
        print(out.getvalue().strip())
`
