package cli

import (
	"fmt"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/job"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

func newProcessCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "process IN",
		Short:   "ask the LLM about each row of a file, write ordered results, resumable",
		GroupID: groupWork,
		Args:    cobra.ExactArgs(1),
		Long: "process takes rows from a JSONL or CSV file (or - for standard input) through the whole stage, on a server of its\n" +
			"own, and writes one result a row as JSONL, in the order of the rows, each exactly once. It may be killed and started\n" +
			"again any number of times: the same command goes on where it was, and no reply that was kept is paid for again.",
		Example: "  stage process reviews.jsonl -o out.jsonl --template-file prompt.jinja --llm-model gpt-6-luna --pool-size 32\n" +
			"  stage process reviews.csv --template 'Sentiment of: {{ row.text }}' --llm-provider mock\n" +
			"  stage process reviews.jsonl --template-file prompt.jinja --llm-model gpt-6-luna --dry-run",
	}
	var o job.Options
	cmd.Flags().StringVarP(&o.Out, "out", "o", "", "file that the results go to; default: standard output")
	cmd.Flags().StringVar(&o.Job, "job", "", "name of the job; needed to resume from standard input")
	cmd.Flags().StringVar(&o.Format, "format", "", "format of the input: jsonl or csv; default: by its name")
	cmd.Flags().BoolVar(&o.Fresh, "fresh", false, "discard what an earlier run of this job has stored")
	cmd.Flags().Int64Var(&o.Limit, "limit", 0, "process the first N rows only; 0: all")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "render the prompts, show the first ones and count; call nobody, store nothing")
	defaults := map[string]string{}
	if terminal.Is(env.Stderr) {
		defaults["STAGE_LOG_LEVEL"] = "warn" // the bar says the rest
	}
	flags := newConfigFlags(cmd, env, configFlagsOptions{Defaults: defaults})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := flags.Load(cmd.Context(), config.NeedCalls)
		if err != nil {
			return err
		}
		if o.Limit < 0 {
			return config.Invalid(fmt.Errorf("--limit %d: give a number of rows, or 0 for all", o.Limit))
		}
		soft, hard, stop := env.Contexts(cmd.Context())
		defer stop()
		if o.DryRun {
			return dryRun(soft, env, cfg, args[0], o)
		}
		return job.Process(soft, hard, job.IO{In: env.Stdin, Out: env.Stdout, Err: env.Stderr}, cfg, args[0], o)
	}
	return cmd
}
