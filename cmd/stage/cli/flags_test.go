package cli

import (
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/spf13/cobra"
)

// faultyLevel makes the configuration of each command invalid, so that a command lists what
// it refuses and does nothing.
const faultyLevel = "--log-level=nonsense"

// positional are the arguments of the commands that need some. setup and try have a flag
// without which they refuse settings that their help lists.
var positional = map[string][]string{
	"batch": {"-"}, "load": {"rows.jsonl"}, "process": {"rows.jsonl"}, "try": {"rows.jsonl", "--call"}, "show": {"NAME"}, "rm": {"NAME"}, "cancel": {"NAME"}, "get": {"NAME"}, "setup": {"--print-permissions"},
}

// problems are the lines of the error that a command ends with where its configuration is invalid.
func problems(t *testing.T, path, args []string) []string {
	t.Helper()
	all := slices.Concat(path, positional[path[len(path)-1]], args, []string{faultyLevel})
	environ := map[string]string{"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE": "{{ row.n }}"}
	root := newRootCommand(&Env{Args: all, Environ: environ, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}, new(bool))
	root.SetContext(t.Context())
	err := root.Execute()
	if err == nil || !config.IsInvalid(err) {
		t.Fatalf("stage %s: got %v, want that the configuration is invalid", strings.Join(all, " "), err)
	}
	return strings.Split(err.Error(), "\n")[1:]
}

// eachConfigured calls f with each command that takes settings, by its path.
func eachConfigured(cmd *cobra.Command, path []string, f func(cmd *cobra.Command, path []string)) {
	for _, sub := range cmd.Commands() {
		to := append(slices.Clone(path), sub.Name())
		if sub.Runnable() && !sub.Hidden && sub.Flags().Lookup("log-level") != nil {
			f(sub, to)
		}
		eachConfigured(sub, to, f)
	}
}

// TestTheHelpOfACommandListsTheSettingsThatItTakes: one that is listed is no problem with
// its own default, and one that is not listed is refused, unless it is deprecated.
func TestTheHelpOfACommandListsTheSettingsThatItTakes(t *testing.T) {
	t.Chdir(t.TempDir())
	defaults := make(map[string]string) // by flag
	deprecated := make(map[string]bool)
	for _, f := range config.Fields() {
		for _, variable := range f.FlagVariables() {
			defaults[config.FlagName(variable)] = ""
			deprecated[config.FlagName(variable)] = f.Deprecated != ""
			if variable == f.Variable {
				defaults[config.FlagName(variable)] = f.Fallback
			}
		}
	}
	defaults["llm-provider"], defaults["template"] = "mock", "{{ row.n }}" // as in the environment
	checked := 0
	root := newRootCommand(&Env{Args: []string{}, Stdout: io.Discard, Stderr: io.Discard}, new(bool))
	eachConfigured(root, nil, func(cmd *cobra.Command, path []string) {
		without := problems(t, path, nil)
		var listed, hidden []string // all at once: a configuration lists each of its problems
		for _, name := range slices.Sorted(maps.Keys(defaults)) {
			flag := cmd.Flags().Lookup(name)
			switch {
			case flag == nil || name == "log-level" || flag.Annotations[flagGroup] == nil:
			case flag.Hidden:
				hidden = append(hidden, name)
			default:
				listed = append(listed, name)
			}
		}
		var args []string
		for _, name := range listed {
			args = append(args, "--"+name+"="+defaults[name])
		}
		if with := problems(t, path, args); !slices.Equal(with, without) {
			t.Errorf("stage %s lists what it refuses:\n%s", strings.Join(path, " "), strings.Join(with, "\n"))
		}
		args = nil
		for _, name := range hidden {
			args = append(args, "--"+name+"="+defaults[name])
		}
		with := strings.Join(problems(t, path, args), "\n")
		for _, name := range hidden {
			if !deprecated[name] && !strings.Contains(with, "--"+name+": ") {
				t.Errorf("stage %s takes --%s and does not list it", strings.Join(path, " "), name)
			}
		}
		checked += len(listed) + len(hidden)
	})
	if checked < 1000 {
		t.Errorf("%d flags: the test no longer finds them", checked)
	}
}

// TestReadersTakeAnyNumberOfPartitions: they read no input, so its subject need not have a
// place for the partition.
func TestReadersTakeAnyNumberOfPartitions(t *testing.T) {
	for _, name := range []string{"results", "tail", "usage"} {
		path := []string{name}
		if with, without := problems(t, path, []string{"--partitions=4"}), problems(t, path, nil); !slices.Equal(with, without) {
			t.Errorf("stage %s --partitions 4: %s", name, strings.Join(with, "\n"))
		}
	}
	if with := strings.Join(problems(t, []string{"run"}, []string{"--partitions=4"}), "\n"); !strings.Contains(with, "STAGE_INPUT_SUBJECT") {
		t.Errorf("stage run, which reads the input, says: %s", with)
	}
}

// Each command that works on the streams of a stage is tried with JetStream in another
// domain and account.
func TestEachCommandIsTriedWithJetStreamElsewhere(t *testing.T) {
	script := string(stagetest.Value(os.ReadFile("../testdata/elsewhere.txtar"))(t))
	eachConfigured(newRootCommand(&Env{}, new(bool)), nil, func(cmd *cobra.Command, path []string) {
		name := strings.Join(path, " ")
		if name == "process" || name == "demo" { // they have a server of their own
			return
		}
		if cmd.Flags().Lookup(serverFlag) != nil && !strings.Contains(script, "stage "+name+" ") && !strings.Contains(script, "stage "+name+"\n") {
			t.Errorf("stage %s is not in the script", name)
		}
	})
}
