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
	cmd.Flags().Var(f, "retry-failed", "send rows that have failed again, also those that failed for certain `reasons` alone, such as api_call_failed,refused; default: none")
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
	known := []string{retryAll}
	for _, r := range llm.Reasons() {
		known = append(known, string(r))
	}
	for reason := range strings.SplitSeq(list, ",") {
		reason = strings.TrimSpace(reason)
		if !slices.Contains(known, reason) {
			return fmt.Errorf("%q is no reason: give some of %s", reason, strings.Join(known, ", "))
		}
		f.reasons = append(f.reasons, reason)
	}
	return nil
}

// String returns the reasons.
func (f *retryFlag) String() string { return strings.Join(f.reasons, ",") }

// Type is what the help calls the value.
func (f *retryFlag) Type() string { return "reasons" }
