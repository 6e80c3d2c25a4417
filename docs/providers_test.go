// Package docs_test checks the examples of the documents that lie beside it.
package docs_test

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/cmd/stage/cli"
	"github.com/llm-stage/stage/llm"
)

// example is a block of shell in providers.md.
type example struct {
	section   string
	variables map[string]string
	command   []string // after the program's name
}

var (
	export = regexp.MustCompile(`^export ([A-Z_]+)=(?:'([^']*)'|([^'"\s]*))$`)
	inline = regexp.MustCompile("`(STAGE_[A-Z_]+)='([^']*)'`")
)

func TestEveryExampleOfAProviderWorks(t *testing.T) {
	examples := examples(t)
	var sections []string
	for _, e := range examples {
		sections = append(sections, e.section)
	}
	if want := []string{
		"OpenAI", "OpenAI responses", "OpenRouter", "Azure OpenAI", "Azure OpenAI", "Anthropic", "Gemini", "Amazon Bedrock", "Vertex AI", "Ollama", "vLLM", "llama.cpp",
		"Without keys: a cloud's identity", "Without keys: a cloud's identity",
	}; !slices.Equal(sections, want) {
		t.Errorf("examples of %q, want %q", sections, want)
	}
	for _, e := range examples {
		t.Run(e.section, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("reviews.jsonl", []byte(`{"id": 1, "text": "Arrived late."}`), 0o600); err != nil {
				t.Fatal(err)
			}
			e.run(t, "config", "--check")
			out := e.run(t, append(e.command, "--dry-run")...)
			if want := "--- line 1\nIn one word, is this review good or bad? Arrived late.\n"; !strings.Contains(out, want) {
				t.Errorf("the dry run prints %q, want %q in it", out, want)
			}
		})
	}
}

// TestEveryExtraBodyOfAProviderIsAccepted checks the settings that the text names in passing.
func TestEveryExtraBodyOfAProviderIsAccepted(t *testing.T) {
	var text []byte
	for _, page := range []string{"providers.md", "requests.md", "replies.md"} {
		page, err := os.ReadFile(page) //nolint:gosec // of the repository
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, page...)
	}
	found := inline.FindAllSubmatch(text, -1)
	if len(found) < 5 {
		t.Fatalf("%d settings in the text: the test no longer finds them", len(found))
	}
	for _, m := range found {
		e := example{variables: map[string]string{
			"STAGE_LLM_PROVIDER": llm.Mock, "STAGE_TEMPLATE": "x", string(m[1]): string(m[2]),
		}}
		e.run(t, "config", "--check")
	}
}

// Each line of the table of providers has an example here, with its address.
func TestEveryProviderOfTheTableIsDocumented(t *testing.T) {
	text, err := os.ReadFile("providers.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := examples(t)
	for _, name := range llm.Providers() {
		if name == llm.Mock {
			continue // built in: the demo has it
		}
		provider, _ := llm.LookupProvider(name)
		if !slices.ContainsFunc(examples, func(e example) bool { return e.variables["STAGE_LLM_PROVIDER"] == name }) {
			t.Errorf("no example sets STAGE_LLM_PROVIDER to %s", name)
		}
		if !strings.Contains(string(text), provider.BaseURL) {
			t.Errorf("the address of %s is not in the text: %s", name, provider.BaseURL)
		}
	}
}

// run runs the program with the variables of the example.
func (e *example) run(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	env := &cli.Env{Args: args, Environ: e.variables, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
	if code := cli.Main(t.Context(), env); code != 0 {
		t.Errorf("%v with %v: exit code %d\n%s", args, e.variables, code, &errs)
	}
	return out.String()
}

// examples finds the examples. The block before the first section has the command, and the variables that all have.
func examples(t *testing.T) []example {
	t.Helper()
	text, err := os.ReadFile("providers.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples []example
	var section string
	var inside bool
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		title, isTitle := strings.CutPrefix(line, "## ")
		switch {
		case inside && line == "```":
			inside = false
		case inside:
			e := &examples[len(examples)-1]
			if m := export.FindStringSubmatch(line); m != nil {
				e.variables[m[1]] = m[2] + m[3]
			} else if command, ok := strings.CutPrefix(line, "stage "); ok && section == "" {
				e.command = strings.Fields(command)
			} else {
				t.Fatalf("%s: line %q is neither a variable nor a command", section, line)
			}
		case isTitle:
			section = title
		case line == "```sh":
			inside = true
			examples = append(examples, example{section: section, variables: map[string]string{}})
		}
	}
	if len(examples) == 0 || examples[0].command == nil {
		t.Fatal("no command stands before the first section")
	}
	common := examples[0]
	examples = examples[1:]
	for i := range examples {
		e := &examples[i]
		e.command = common.command
		for name, value := range common.variables {
			if _, own := e.variables[name]; !own {
				e.variables[name] = value
			}
		}
	}
	return examples
}
