package cli

import (
	"fmt"
	"slices"
	"strings"

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

// checkArgs explains why a reason that is an argument of its own is none of the flag.
func (f *retryFlag) checkArgs(cmd *cobra.Command, args []string) error {
	if len(f.reasons) > 0 && len(args) > 1 {
		for _, arg := range args {
			if reason, _, _ := strings.Cut(arg, ","); slices.Contains(retryReasons(), reason) {
				return fmt.Errorf("--retry-failed takes its reasons after an equals sign: --retry-failed=%s", arg)
			}
		}
	}
	return cobra.ExactArgs(1)(cmd, args)
}

// String returns the reasons.
func (f *retryFlag) String() string { return strings.Join(f.reasons, ",") }

// Type is what the help calls the value.
func (f *retryFlag) Type() string { return "reasons" }
