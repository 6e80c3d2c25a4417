package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestThePageOfSettingsIsCurrent fails when a variable was added or changed and `make docs`
// was not run.
func TestThePageOfSettingsIsCurrent(t *testing.T) {
	page := stagetest.Value(os.ReadFile("../../../docs/settings.md"))(t)
	_, rest, ok := strings.Cut(string(page), "<!-- configuration: begin, written by make docs -->\n")
	table, _, closed := strings.Cut(rest, "<!-- configuration: end -->")
	if !ok || !closed {
		t.Fatal("docs/settings.md: the marks of the table are missing")
	}
	var want strings.Builder
	stagetest.Must(t, config.WriteMarkdown(&want))
	if table != want.String() {
		t.Error("docs/settings.md: the table is not that of stage config --markdown: run make docs")
	}
}

func TestExamplePromptRendersEveryReviewOfTheExample(t *testing.T) {
	readme := stagetest.Value(os.ReadFile("../../../README.md"))(t)
	for _, file := range []string{"examples/reviews.jsonl", "examples/prompt.jinja", "examples/labels.yaml"} {
		if !strings.Contains(string(readme), " "+file) {
			t.Errorf("README.md does not use %s", file)
		}
	}
	t.Chdir("../../../examples")
	var out, errs strings.Builder
	env := &Env{Args: []string{
		"process", "reviews.jsonl", "--dry-run", "--llm-provider=mock", "--template-file=prompt.jinja", "--lookup-file=labels.yaml",
	}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
	if code := Main(t.Context(), env); code != exitDone || !strings.Contains(out.String()+errs.String(), "200 rows, 0 of them would fail before any call") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	for _, want := range []string{"our kettle.", "- mixed: praise", "Known issues, which should not surprise you: a plastic taste", "gave 1 of 5 stars"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the first prompts:\n%s", want, out.String())
		}
	}
}
