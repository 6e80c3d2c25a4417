package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// starterFiles are the files that init writes. They work as they are, without a key.
var starterFiles = []struct{ name, text string }{
	{"prompt.jinja", `Is this review positive, negative or mixed? Answer with one word.

{{ row.text }}
`},
	{".env", `# Settings of this job, for: stage process rows.jsonl --env-file .env -o results.jsonl
# stage help settings lists all of them.
STAGE_TEMPLATE_FILE=prompt.jinja

# The built-in mock needs no key and costs nothing. For a real model remove this line and fill in those below.
STAGE_LLM_PROVIDER=mock

# STAGE_LLM_PROVIDER=openai
# STAGE_LLM_MODEL=
# STAGE_LLM_API_KEY=
# Any OpenAI-compatible server is openai with a base URL:
# STAGE_LLM_BASE_URL=http://localhost:11434/v1
`},
	{"rows.jsonl", `{"id": 1, "text": "Arrived early and works as described."}
{"id": 2, "text": "Broke on the third day."}
{"id": 3, "text": "The colour is off, the rest is fine."}
`},
}

// newInitCommand makes stage init, which writes the files of a first job into a
// directory: the template, rows and settings of [starterFiles]. Then it prints the
// commands that use them.
func newInitCommand(env *Env) *cobra.Command {
	var names []string
	for _, f := range starterFiles {
		names = append(names, f.name)
	}
	cmd := &cobra.Command{
		Use:     "init [DIR]",
		Short:   "write a prompt, settings and three rows to start from",
		GroupID: groupSetup,
		Args:    cobra.MaximumNArgs(1),
		Long: "init writes " + strings.Join(names, ", ") + " into the directory (by default the " +
			"present one), which it creates if needed.\n" +
			"They work as they are, with the built-in mock. It overwrites nothing without --force.",
		Example: "  stage init\n  stage init reviews && cd reviews && stage process rows.jsonl " +
			"--env-file .env",
	}

	force := cmd.Flags().Bool("force", false, "overwrite these files")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		dir := argumentOr(args, ".")
		if dir == "" {
			return config.Invalid(errors.New("the directory has no name: leave it out for the " +
				"present one"))
		}
		if err := writeStarter(dir, *force); err != nil {
			return err
		}

		terminal.PrintLine(env.Stdout, "wrote %s", strings.Join(names, ", "))
		if filepath.Clean(dir) != "." {
			terminal.PrintLine(env.Stdout, "\n  cd %s", shellWord(dir))
		} else {
			terminal.PrintLine(env.Stdout, "")
		}
		terminal.PrintLine(env.Stdout, "  stage try rows.jsonl --env-file .env"+
			"                           # look at the prompts\n"+
			"  stage process rows.jsonl --env-file .env -o results.jsonl"+
			"      # with the mock: edit .env for a real model")
		return nil
	}
	return cmd
}

// writeStarter writes all files or, where one is in the way, none.
func writeStarter(dir string, force bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var taken []string
	for _, f := range starterFiles {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			taken = append(taken, filepath.Join(dir, f.name))
		}
	}

	if len(taken) > 0 && !force {
		return config.Invalid(fmt.Errorf("already there: %s: give another directory, "+
			"or --force to overwrite", strings.Join(taken, ", ")))
	}

	var written []string
	for _, f := range starterFiles {
		path := filepath.Join(dir, f.name)
		var err error
		if force {
			err = replaceFile(path, f.text)
		} else if err = createFile(path, f.text); err == nil {
			written = append(written, path)
		}
		if err != nil {
			for _, path := range written {
				_ = os.Remove(path) // else the next attempt would find it in its way
			}
			return err
		}
	}
	return nil
}

// createFile writes a new file that only its owner can read, since settings hold keys. It
// fails if there is a file of that name. writeStarter has looked before, but two processes
// may look before either of them writes: then O_EXCL lets one succeed.
func createFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
	}
	return err
}

// replaceFile is createFile for a name that may be taken. The old file stays until the
// new one is complete, so a full disk leaves it as it was.
func replaceFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".stage-init-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
