package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// TestCommandsOfTheDocumentsAreAccepted gives every command line of the documents, and of
// the examples in the help, to the real commands, which check flags and arguments and do
// nothing else.
func TestCommandsOfTheDocumentsAreAccepted(t *testing.T) {
	const root = "../../../"
	files := []string{root + "README.md", root + "CONTRIBUTING.md", root + "SECURITY.md", root + "deploy/helm/llm-stage/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/howto/*.md", "examples/*/README.md"} {
		found := stagetest.Value(filepath.Glob(root + pattern))(t)
		files = append(files, found...)
	}
	checked := 0
	for _, path := range files {
		text, err := os.ReadFile(path) //nolint:gosec // of the repository
		if err != nil {
			t.Fatal(err)
		}
		for _, script := range shellOf(string(text)) {
			checked += checkCommands(t, strings.TrimPrefix(path, root), script)
		}
	}
	for _, cmd := range newRootCommand(&Env{Args: []string{}, Stdout: io.Discard, Stderr: io.Discard}, new(bool)).Commands() {
		checked += checkCommands(t, "help of "+cmd.Name(), cmd.Example)
		for _, sub := range cmd.Commands() {
			checked += checkCommands(t, "help of "+cmd.Name()+" "+sub.Name(), sub.Example)
		}
	}
	if checked < 120 {
		t.Errorf("%d commands: the test no longer finds them", checked)
	}
}

var (
	block    = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	codeSpan = regexp.MustCompile("`((?:[A-Z_]+=\\S+ )?(?:go run \\./cmd/)?stage [^`]+)`")
)

// shellOf returns the blocks of shell of a document, and the commands within its sentences.
func shellOf(document string) (scripts []string) {
	for _, m := range block.FindAllStringSubmatch(document, -1) {
		if m[1] == "sh" || m[1] == "" {
			scripts = append(scripts, m[2])
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(block.ReplaceAllString(document, ""), -1) {
		scripts = append(scripts, m[1])
	}
	return scripts
}

// accepted has the outcome of each command that was checked, by its arguments. Half of the
// commands are in the documents several times, and it takes long to make their flags.
var accepted = map[string]error{}

// checkCommands checks the calls of stage in a script and returns how many there are. A text
// that is no shell has none.
func checkCommands(t *testing.T, where, script string) (n int) {
	t.Helper()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), where)
	if err != nil {
		if strings.Contains(script, "\nstage ") || strings.HasPrefix(script, "stage ") {
			t.Errorf("%s: %v, in:\n%s", where, err, script)
		}
		return 0
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 || !slices.Contains([]string{"stage", "/stage", "go"}, call.Args[0].Lit()) {
			return true
		}
		args, err := expand.Fields(&expand.Config{
			CmdSubst:  func(io.Writer, *syntax.CmdSubst) error { return nil },
			ProcSubst: func(*syntax.ProcSubst) (string, error) { return "file", nil },
		}, call.Args...)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			return true
		}
		if len(args) > 2 && args[0] == "go" && args[1] == "run" && args[2] == "./cmd/stage" {
			args = args[2:]
		}
		if len(args) > 1 && args[0] != "go" {
			n++
			key := strings.Join(args[1:], "\x00")
			err, known := accepted[key]
			if !known {
				err = accept(args[1:])
				accepted[key] = err
			}
			if err != nil {
				t.Errorf("%s: stage %s: %v", where, strings.Join(args[1:], " "), err)
			}
		}
		return true
	})
	return n
}

// accept parses the arguments of a command as the program does. It accepts arguments with …,
// which stands for some that the document leaves out.
func accept(args []string) error {
	given := args[:0:0]
	for _, arg := range args {
		if arg == "…" {
			return nil
		}
		given = append(given, arg)
	}
	root := newRootCommand(&Env{Args: given, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}, new(bool))
	idle(root)
	if len(given) == 1 { // a command is named, not called
		_, _, err := root.Find(given)
		return err
	}
	return root.Execute()
}

// idle lets a command and those below it do nothing.
func idle(cmd *cobra.Command) {
	if cmd.RunE != nil && cmd.Name() != "help" {
		cmd.RunE = func(*cobra.Command, []string) error { return nil }
	}
	for _, sub := range cmd.Commands() {
		idle(sub)
	}
}
