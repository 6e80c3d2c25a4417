package cli

import (
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/job"
	"github.com/llm-stage/stage/llm"
	"github.com/spf13/cobra"
)

// retryAll is the value of --retry-failed without one.
const retryAll = "all"

// retryFlag is the flag --retry-failed: which failed rows are sent again. It implements pflag.Value.
type retryFlag struct{ reasons []string }

// addRetryFlag adds --retry-failed to a command.
func addRetryFlag(cmd *cobra.Command) *retryFlag {
	f := &retryFlag{}
	cmd.Flags().Var(f, "retry-failed", "send failed rows again; with `reasons`, such as api_call_failed,refused, only those that failed for one of them; default: none")
	cmd.Flags().Lookup("retry-failed").NoOptDefVal = retryAll
	return f
}

// options returns what to send again; nil: nothing.
func (f *retryFlag) options() *job.Retry {
	switch {
	case len(f.reasons) == 0:
		return nil
	case slices.Contains(f.reasons, retryAll):
		return &job.Retry{}
	}
	return &job.Retry{Reasons: f.reasons}
}

// Set takes a list of reasons.
func (f *retryFlag) Set(list string) error {
	known := retryReasons()
	for reason := range strings.SplitSeq(list, ",") {
		reason = strings.TrimSpace(reason)
		if !slices.Contains(known, reason) {
			return fmt.Errorf("%q is no reason: give some of %s", reason, strings.Join(known, ", "))
		}
		f.reasons = append(f.reasons, reason)
	}
	return nil
}

// retryReasons returns what --retry-failed accepts.
func retryReasons() []string {
	known := []string{retryAll}
	for _, r := range llm.Reasons() {
		known = append(known, string(r))
	}
	return known
}

// String returns the reasons.
func (f *retryFlag) String() string { return strings.Join(f.reasons, ",") }

// Type is what the help calls the value.
func (f *retryFlag) Type() string { return "reasons" }

// failOnError is the value of --fail-on-error[=PERCENT].
type failOnError struct {
	allowed *big.Rat // most rows that may fail, in percent; nil: any number
}

// anyFailedRow is the value of --fail-on-error alone.
const anyFailedRow = "0"

// percents is how a share is written: digits that are compared exactly, so no 1e2, NaN or sign.
var percents = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,6})?%?$`)

// Set reads a share of rows in percent.
func (f *failOnError) Set(text string) error {
	share := new(big.Rat)
	ok := percents.MatchString(text) // checked first: a number such as 1e999999999 takes minutes to read
	if ok {
		_, ok = share.SetString(strings.TrimSuffix(text, "%"))
	}
	if !ok || share.Cmp(big.NewRat(100, 1)) > 0 {
		return errors.New("give the percentage of rows that may fail, 0 to 100, such as --fail-on-error=5; without a value any failed row counts")
	}
	f.allowed = share
	return nil
}

// String returns the default, for the help.
func (f *failOnError) String() string { return "" }

// Type names the value, for the help.
func (f *failOnError) Type() string { return "percent" }

// addFailOnError adds the flag to a command.
func addFailOnError(cmd *cobra.Command) *failOnError {
	f := &failOnError{}
	flag := cmd.Flags().VarPF(f, "fail-on-error", "", "exit with 4 if any row failed, or with =PERCENT if more than that share did; default: failed rows are results, exit 0")
	flag.NoOptDefVal = anyFailedRow
	return f
}

// oneInput checks the arguments of process: one input. Where there are more, it explains that the value of a flag that
// may go without one follows an equals sign.
func oneInput(retry *retryFlag, failed *failOnError) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			reason, _, _ := strings.Cut(arg, ",")
			switch {
			case len(args) < 2:
			case len(retry.reasons) > 0 && slices.Contains(retryReasons(), reason):
				return fmt.Errorf("--retry-failed takes its reasons after an equals sign: --retry-failed=%s", arg)
			case failed.allowed != nil && percents.MatchString(arg):
				return fmt.Errorf("--fail-on-error takes its percentage after an equals sign: --fail-on-error=%s", arg)
			}
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
}

// showFailed returns the command that lists the rows of a job that failed for a reason, to be pasted into a shell where
// this command was given: with those of its flags that say where the events are.
func (c *configFlags) showFailed(dir, reason string) string {
	words := []string{"stage", "tail", "--reason", reason, "--job", filepath.Base(dir), "--data-dir", filepath.Dir(dir)}
	for _, file := range c.envFiles {
		words = append(words, "--env-file", file)
	}
	for _, f := range config.Fields() {
		text, given := c.values[f.Variable]
		if given && (f.Group == "Stage" || f.Group == "Streams and subjects") {
			words = append(words, "--"+config.FlagName(f.Variable)+"="+text)
		}
	}
	for i := range words {
		words[i] = shellWord(words[i])
	}
	return strings.Join(words, " ")
}

// plainWord is a word that no shell changes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord quotes a word for a POSIX shell where it has to be.
func shellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
