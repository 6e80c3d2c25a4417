package cli

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// helper returns what prints the help of words, as stage help does. The commands are made
// once, since they have thousands of flags.
func helper(t *testing.T) func(words ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRootCommand(&Env{Stdout: &out, Stderr: io.Discard}, new(bool))
	return func(words ...string) string {
		t.Helper()
		out.Reset()
		root.SetArgs(append([]string{"help"}, words...))
		if err := root.Execute(); err != nil {
			t.Errorf("help %q: %v", words, err)
		}
		return out.String()
	}
}

// pageLine is the first page of a list, with what it is about.
var pageLine = regexp.MustCompile(`(?m)^Pages of .*:\n  (\S+) `)

func TestWordsLeadToTheirPage(t *testing.T) {
	help := helper(t)
	for words, want := range map[string]string{
		"image": "docs/templates.md#pictures-documents-and-sounds", "pause": "docs/status.md#steer-it", "resume": "docs/jobs.md#resume",
		"excel": "docs/files.md#results-as-csv", "csv": "docs/files.md#formats", "order": "docs/order.md",
		"exactly once": "docs/reliability.md#guaranteed", "duplicates": "docs/reliability.md#guaranteed",
		"cost": "docs/cost.md#what-was-spent", "price": "docs/cost.md#prices", "ceiling": "docs/cost.md#a-cost-ceiling",
		"retry": "docs/jobs.md#failed-rows", "429": "docs/throttle.md", "Rate Limits": "docs/throttle.md",
		"dead letter": "docs/reliability.md#not-guaranteed", "dead-letter": "docs/reliability.md#not-guaranteed", "schema": "docs/requests.md#schemas",
		"batch": "docs/lane.md", "kubernetes": "deploy/helm/llm-stage/README.md", "azure": "docs/providers.md#azure-openai",
		"key": "docs/requests.md#secrets", "proxy": "docs/providers.md#any-other-server", "permissions": "docs/permissions.md",
		"dashboard": "docs/dashboard.md", "metrics": "docs/metrics.md", "alerts": "docs/operations.md#alerts", "utf-16": "docs/files.md#formats",
	} {
		for _, args := range [][]string{{words}, strings.Fields(words), append([]string{"settings"}, strings.Fields(words)...)} {
			if m := pageLine.FindStringSubmatch(help(args...)); m == nil || m[1] != want {
				t.Errorf("help %q leads to %q, want %s", args, m, want)
			}
		}
	}
}

func TestTopicsNameWhatThereIs(t *testing.T) {
	const root = "../../../"
	heading := regexp.MustCompile(`(?m)^#+ (.+)$`)
	all := &cobra.Command{Use: "settings"}
	newConfigFlags(all, &Env{}, nil, nil)
	var names []string
	for _, cmd := range commands(&Env{Stdout: io.Discard, Stderr: io.Discard}) {
		names = append(names, cmd.Name())
	}
	for i := range topics {
		topic := &topics[i]
		path, anchor, anchored := strings.Cut(topic.page, "#")
		text, err := os.ReadFile(root + path) //nolint:gosec // of the repository
		if err != nil {
			t.Error(err)
		}
		found := !anchored
		for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
			slug := strings.ReplaceAll(regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
			found = found || slug == anchor
		}
		if !found {
			t.Errorf("%s has no such heading", topic.page)
		}
		for name := range strings.FieldsSeq(topic.commands) {
			if !slices.Contains(names, name) {
				t.Errorf("%s: there is no command %s", topic.page, name)
			}
		}
		for _, name := range topic.settings {
			if all.Flags().Lookup(name) == nil {
				t.Errorf("%s: there is no setting --%s", topic.page, name)
			}
		}
		if topic.words != strings.ToLower(topic.words) {
			t.Errorf("%s: its words are not in lower case", topic.page)
		}
	}
}

// A person looks for the usage first, and for the exit codes hardly ever.
func TestHelpBeginsWithTheUsage(t *testing.T) {
	help := helper(t)
	text := help()
	last := -1
	for _, part := range []string{"Usage:\n  stage", "\n  process ", "\n  run ", "\n  status ", "\n  tail ", "\n  lane ", "\n  demo ", "\n  version ", "\n  help ", "\nExamples:\n", "\nFlags:\n", "\nExit codes:\n"} {
		at := strings.Index(text, part)
		if at <= last {
			t.Errorf("%q is not where it belongs:\n%s", part, text)
		}
		last = at
	}
	for _, cmd := range commands(&Env{Stdout: io.Discard, Stderr: io.Discard}) {
		if text := help(cmd.Name()); !strings.HasPrefix(text, "Usage:\n  stage "+cmd.Name()) {
			t.Errorf("%s: its help begins with %.60q", cmd.Name(), text)
		}
	}
}

func TestWhatNothingIsAboutIsAnError(t *testing.T) {
	for _, args := range [][]string{{"help", "frobnicate"}, {"help", "settings", "frobnicate"}, {"help", "excel", "frobnicate"}} {
		var out, errs bytes.Buffer
		if code := Main(t.Context(), &Env{Args: args, Stdout: &out, Stderr: &errs}); code != exitUsage || !strings.Contains(errs.String(), "frobnicate") || out.Len() > 0 {
			t.Errorf("%q: exit %d, %s%s", args, code, out.String(), errs.String())
		}
	}
}
