package cli

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/files/preview"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/spf13/cobra"
)

// processFlags are the flags of process that are not settings.
type processFlags struct {
	cmd           *cobra.Command
	job           job.Options
	table         *tableFlags
	retry         *retryFlag
	failed        *failOnError
	cancelBatches *bool
	dry           bool
	latency       time.Duration
}

// newProcessCommand makes stage process, which takes one file through a stage. Package
// job does the work. This command reads the flags that are about files and repairs, and
// refuses combinations that contradict each other. With --dry-run, package preview renders
// the prompts, which needs neither key nor server.
func newProcessCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "process IN",
		Short:   "send each row of a file to the LLM and write ordered results, resumable",
		GroupID: groupWork,
	}
	o := addProcessFlags(cmd)
	cmd.Args = oneInput(o.retry, o.failed)

	defaults := map[string]string{}
	if terminal.Is(env.Stderr) {
		defaults["STAGE_LOG_LEVEL"] = "warn" // the progress bar shows the rest
	}

	flags := newConfigFlags(cmd, env, nil, defaults)
	flags.refuseConnection("process runs its own server, with one partition: " +
		"remove it, or use stage load and stage run for rows on a NATS server")

	run := func(soft, hard context.Context, cfg *config.Config, args []string) error {
		input := args[0]
		if err := o.check(input); err != nil { // nothing is read or started before
			return config.Invalid(err)
		}
		if o.dry {
			in := preview.Input{
				Name: input, Stdin: env.Stdin, Format: o.job.Format, Rows: o.job.Limit,
			}
			return preview.DryRun(soft, cfg, in, o.latency, env.Stdout, env.Stderr)
		}

		options := o.job
		options.FailOnError, options.CancelBatches = o.failed.allowed, *o.cancelBatches
		options.Where, options.LimitMemory = flags.whereJob, env.LimitMemory
		options.Mock = llmtest.Config{}.Start
		stdio := job.IO{In: env.Stdin, Out: env.Stdout, Err: env.Stderr}
		return job.Process(soft, hard, stdio, cfg, input, options)
	}

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		need := config.NeedCalls
		if o.dry {
			need = config.NeedPrompt
		}
		return flags.run(need, run)(cmd, args)
	}
	return cmd
}

// addProcessFlags adds the flags of process that are not settings.
func addProcessFlags(cmd *cobra.Command) *processFlags {
	o := &processFlags{cmd: cmd}
	cmd.Flags().StringVarP(&o.job.Out, "out", "o", "", "file for the results, CSV if it ends in "+
		".csv or .tsv, else JSONL; default: standard output")
	cmd.Flags().StringVar(&o.job.Job, "job", "",
		"name of the job; required to resume from standard input")

	addFormatFlags(cmd, &o.job.Format)
	o.table = addTableFlags(cmd)

	cmd.Flags().BoolVar(&o.job.Fresh, "fresh", false,
		"discard what earlier runs of this job have stored")
	cmd.Flags().BoolVar(&o.job.Force, "force", false, "replace the file of -o, whatever it holds; "+
		"default: only results that this job has written")
	cmd.Flags().StringVar(&o.job.Summary, "summary", "",
		"file for a summary of the run as JSON: rows, calls, tokens, cost, speed-up")
	cmd.Flags().Int64Var(&o.job.Limit, "limit", 0,
		"process only the first N rows, and write their results alone; 0: all")

	o.retry, o.failed = addRetryFlag(cmd), addFailOnError(cmd)
	o.cancelBatches = addCancelBatches(cmd)

	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "render all prompts, print the first ones and "+
		"estimate tokens and cost: no call, no key, nothing stored; "+
		"exits with 1 if rows would fail")
	cmd.Flags().DurationVar(&o.latency, "latency", 0, "with --dry-run: the mean time of a call, "+
		"such as 1.2s, to estimate how long the job takes one call at a time and with the pool")
	return o
}

// check completes the options of a job with that input. The error names a flag with an
// invalid value, or flags that contradict each other.
func (o *processFlags) check(input string) error {
	if o.job.Limit < 0 {
		return fmt.Errorf("--limit %d: give a number of rows, or 0 for all", o.job.Limit)
	}

	switch o.job.Retry = o.retry.options(); {
	case o.job.Retry == nil:
	case input == "-" && o.job.Job == "":
		return errors.New("--retry-failed with standard input: " +
			"name the job with --job, since no other run can find it")
	case o.job.Fresh:
		return errors.New("--retry-failed with --fresh: " +
			"remove one of them, since --fresh discards the failed results and sends all rows")
	case o.dry:
		return errors.New("--retry-failed with --dry-run: " +
			"remove one of them, since a dry run renders all rows, whatever is stored")
	}

	if err := o.table.set(&o.job, input); err != nil {
		return err
	}
	switch given := o.cmd.Flags().Changed("latency"); {
	case given && !o.dry:
		return errors.New("--latency: it is about the estimate of --dry-run: " +
			"add that, or remove it")
	case given && (o.latency <= 0 || o.latency > time.Hour):
		return fmt.Errorf("--latency %v: give the mean time of a call, "+
			"such as 1.2s, at most 1h", o.latency)
	}
	return nil
}

// retryAll is the value that --retry-failed has without a list of reasons.
const retryAll = "all"

// retryFlag is the value of --retry-failed: for which reasons failed rows are sent again.
// It implements pflag.Value.
type retryFlag struct{ reasons []string }

func addRetryFlag(cmd *cobra.Command) *retryFlag {
	f := &retryFlag{}
	cmd.Flags().Var(f, "retry-failed", "send failed rows again; with `reasons`, "+
		"such as api_call_failed,refused, only those that failed for one of them; default: none")
	cmd.Flags().Lookup("retry-failed").NoOptDefVal = retryAll
	return f
}

// options returns which failed rows to send again, or nil to send none.
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

// retryReasons returns the words that --retry-failed accepts.
func retryReasons() []string {
	known := []string{retryAll}
	for _, r := range llm.Reasons() {
		known = append(known, string(r))
	}
	return known
}

// String returns the reasons.
func (f *retryFlag) String() string { return strings.Join(f.reasons, ",") }

// Type returns the name of the value for the help.
func (f *retryFlag) Type() string { return "reasons" }

// failOnError is the value of --fail-on-error[=PERCENT].
type failOnError struct {
	allowed *big.Rat // most rows that may fail, in percent, or nil for any number
}

// anyFailedRow is the value that --fail-on-error has without a percentage.
const anyFailedRow = "0"

// percents is how a share is written: in digits, such as 5, 0.5 or 5%, without exponent or
// sign.
var percents = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,6})?%?$`)

// Set reads a share of rows in percent.
func (f *failOnError) Set(text string) error {
	share := new(big.Rat)
	// The form is checked first, since [big.Rat.SetString] takes minutes for 1e999999999.
	ok := percents.MatchString(text)
	if ok {
		_, ok = share.SetString(strings.TrimSuffix(text, "%"))
	}
	if !ok || share.Cmp(big.NewRat(100, 1)) > 0 {
		return errors.New("give the percentage of rows that may fail, 0 to 100, " +
			"such as --fail-on-error=5; without a value any failed row counts")
	}
	f.allowed = share
	return nil
}

// String returns nothing, so that the help shows no default.
func (f *failOnError) String() string { return "" }

// Type returns the name of the value for the help.
func (f *failOnError) Type() string { return "percent" }

func addFailOnError(cmd *cobra.Command) *failOnError {
	f := &failOnError{}
	flag := cmd.Flags().VarPF(f, "fail-on-error", "", "exit with 4 if any row failed, "+
		"or with =PERCENT if more than that share did; default: failed rows are results, exit 0")
	flag.NoOptDefVal = anyFailedRow
	return f
}

// oneInput checks that process has one argument, its input. pflag takes the value of a flag
// that may have none only after an equals sign. So in --fail-on-error 5 rows.csv the 5 is
// an argument, and the error explains that.
func oneInput(retry *retryFlag, failed *failOnError) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			reason, _, _ := strings.Cut(arg, ",")
			switch {
			case len(args) < 2:
			case len(retry.reasons) > 0 && slices.Contains(retryReasons(), reason):
				return fmt.Errorf("--retry-failed takes its reasons after an equals sign: "+
					"--retry-failed=%s", arg)
			case failed.allowed != nil && percents.MatchString(arg):
				return fmt.Errorf("--fail-on-error takes its percentage after an equals sign: "+
					"--fail-on-error=%s", arg)
			}
		}
		return required(noInput, cobra.ExactArgs(1))(cmd, args)
	}
}

// tableFlags are the flags of process for results as CSV.
type tableFlags struct {
	cmd       *cobra.Command
	delimiter string
	mark      bool
	flatten   bool
}

func addTableFlags(cmd *cobra.Command) *tableFlags {
	t := &tableFlags{cmd: cmd}
	cmd.Flags().StringVar(&t.delimiter, "out-delimiter", "", "character between the columns of "+
		"results as CSV, or tab; default: that of a CSV input (--delimiter), a comma, "+
		"or a tab in .tsv")
	cmd.Flags().BoolVar(&t.mark, "bom", false, "begin results as CSV with the byte order mark by "+
		"which Excel knows UTF-8; default: as a CSV input does")
	cmd.Flags().BoolVar(&t.flatten, "flatten", false, "give each member of the reply's object a "+
		"column in results as CSV, such as llm_response.category, by STAGE_RESPONSE_SCHEMA_FILE")
	completeWords(cmd, "out-delimiter", "tab", ";", "|")
	return t
}

// set sets the options of a job with that input. --delimiter is about the input, unless
// the input is JSON. JSON has no columns, so then the flag is about results as CSV.
func (t *tableFlags) set(o *job.Options, input string) (err error) {
	o.Table = job.TableOptions{Flatten: t.flatten}
	if t.cmd.Flags().Changed("bom") {
		o.Table.Mark = &t.mark
	}
	if o.Format.Delimiter != "" && job.IsTable(o.Out) && o.Format.IsJSON(input) {
		o.Table.Delimiter, err = rowfile.ParseDelimiter("--delimiter", o.Format.Delimiter)
		o.Format.Delimiter = ""
	}
	if t.delimiter != "" && err == nil {
		o.Table.Delimiter, err = rowfile.ParseDelimiter("--out-delimiter", t.delimiter)
	}
	return err
}
