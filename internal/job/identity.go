// Package job takes one file from rows to ordered results, and resumes where it was.
package job

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/llm"
)

const (
	jobFile = "job.json"
	// storeDir is where the embedded server keeps a job's streams, below the job's directory.
	storeDir = "jetstream"
)

// job identity: what a job's results depend on. A job is begun with one and resumed with the same.
type jobIdentity struct {
	Input    string `json:"input"`
	Content  string `json:"content_sha256"` // empty for standard input
	Template string `json:"template_sha256"`
	System   string `json:"system_prompt_sha256"`
	Lookup   string `json:"lookup_sha256"`
	Schema   string `json:"schema_sha256"`
	Field    string `json:"response_field"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
}

// differences names what of the identity has changed, in the user's words.
func (id jobIdentity) differences(now jobIdentity) []string {
	var changed []string
	note := func(what, then, now string) {
		if then != now {
			changed = append(changed, what)
		}
	}
	note("the input's name", id.Input, now.Input)
	note("the input's content", id.Content, now.Content)
	note("the template", id.Template, now.Template)
	note("the system prompt", id.System, now.System)
	note("the lookup", id.Lookup, now.Lookup)
	note("the response schema", id.Schema, now.Schema)
	note("the response field", id.Field, now.Field)
	note("the provider", id.Provider, now.Provider)
	note("the model", id.Model, now.Model)
	return changed
}

// newJobIdentity reads what it needs of the files that the configuration names.
func newJobIdentity(cfg *config.Config, input, content string) (jobIdentity, error) {
	id := jobIdentity{
		Input: input, Content: content, Field: cfg.Prompt.ResponseField,
		System: llm.Hash([]byte(cfg.Prompt.SystemPrompt)), Provider: cfg.LLM.Provider, Model: cfg.LLM.Model,
		Template: llm.Hash([]byte(cfg.Prompt.Template)),
	}
	for _, f := range []struct {
		path string
		hash *string
	}{
		{cfg.Prompt.TemplateFile, &id.Template}, {cfg.Prompt.LookupFile, &id.Lookup}, {cfg.Prompt.ResponseSchema, &id.Schema},
	} {
		if f.path == "" {
			continue
		}
		text, err := os.ReadFile(f.path)
		if err != nil {
			return id, err
		}
		*f.hash = llm.Hash(text)
	}
	return id, nil
}

var JobNames = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// jobName is the directory of a job: given, or made of the input's name and place, so that two files of the same name in
// different directories are two jobs.
func jobName(given, input string) (string, error) {
	if given != "" {
		if !JobNames.MatchString(given) || strings.Trim(given, ".") == "" {
			return "", fmt.Errorf("--job %q: a job's name is made of letters, digits and . _ -, at most 64", given)
		}
		return given, nil
	}
	path, err := filepath.Abs(input)
	if err != nil {
		return "", err
	}
	base := strings.Map(func(r rune) rune {
		if JobNames.MatchString(string(r)) {
			return r
		}
		return '_'
	}, filepath.Base(path))
	sum := sha256.Sum256([]byte(path))
	return base[:min(len(base), 48)] + "-" + hex.EncodeToString(sum[:4]), nil
}

// discardStore removes what the embedded server has stored for a job; with keepReplies all but the stream of replies that
// STAGE_DEDUPE=stored uses again, which is what makes a rerun cost nothing.
func discardStore(dir string, keepReplies bool) error {
	store := filepath.Join(dir, storeDir)
	if !keepReplies {
		return os.RemoveAll(store)
	}
	streams, err := filepath.Glob(filepath.Join(store, "*", "streams", "*"))
	faults := []error{err}
	for _, path := range streams {
		if filepath.Base(path) != executor.DedupeStream {
			faults = append(faults, os.RemoveAll(path))
		}
	}
	return errors.Join(faults...)
}

// jobMode says what becomes of what an earlier run has stored.
type jobMode struct {
	fresh       bool // it is discarded
	keepReplies bool // but for the replies that are used again
}

// openJob makes the job's directory or checks that the one there belongs to the same job. resumed says that it was there.
func openJob(dir, name string, now jobIdentity, mode jobMode) (resumed bool, err error) {
	path := filepath.Join(dir, jobFile)
	raw, err := os.ReadFile(path)
	switch {
	case mode.fresh && err == nil:
		if addr, running, err := natsd.Discover(dir); err != nil || running {
			return false, errors.Join(err, fmt.Errorf("job %s is running (process %d): stop it first", name, addr.PID))
		}
		// Only what this program has made is removed: the file of the job, and the store beside it.
		if err := errors.Join(discardStore(dir, mode.keepReplies), os.Remove(path)); err != nil {
			return false, fmt.Errorf("discard job %s: %w", name, err)
		}
	case err == nil:
		var then jobIdentity
		if err := json.Unmarshal(raw, &then); err != nil {
			return false, config.Invalid(fmt.Errorf("%s is damaged (%w): start over with --fresh", path, err))
		}
		if changed := then.differences(now); len(changed) > 0 {
			return false, config.Invalid(fmt.Errorf(
				"job %s was begun differently: %s changed since. Its results are in %s: start over with --fresh, which discards them, or give this job a name of its own with --job",
				name, strings.Join(slices.Compact(changed), ", "), dir))
		}
		return true, nil
	case !errors.Is(err, os.ErrNotExist):
		return false, fmt.Errorf("job %s: %w", name, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("job %s: %w", name, err)
	}
	raw, err = json.MarshalIndent(now, "", "  ")
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(path, append(raw, '\n'), 0o600); err != nil {
		return false, fmt.Errorf("job %s: %w", name, err)
	}
	return false, nil
}
