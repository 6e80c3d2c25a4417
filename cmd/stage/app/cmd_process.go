package app

import (
	"fmt"

	"github.com/llm-stage/stage/internal/config"
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
	var o processOptions
	cmd.Flags().StringVarP(&o.out, "out", "o", "", "file that the results go to; default: standard output")
	cmd.Flags().StringVar(&o.job, "job", "", "name of the job; needed to resume from standard input")
	cmd.Flags().StringVar(&o.format, "format", "", "format of the input: jsonl or csv; default: by its name")
	cmd.Flags().BoolVar(&o.fresh, "fresh", false, "discard what an earlier run of this job has stored")
	cmd.Flags().Int64Var(&o.limit, "limit", 0, "process the first N rows only; 0: all")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "render the prompts, show the first ones and count; call nobody, store nothing")
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
		if o.limit < 0 {
			return config.Invalid(fmt.Errorf("--limit %d: give a number of rows, or 0 for all", o.limit))
		}
		soft, hard, stop := env.Contexts(cmd.Context())
		defer stop()
		if o.dryRun {
			return dryRun(soft, env, cfg, args[0], o)
		}
		return processFile(soft, hard, standardIO{In: env.Stdin, Out: env.Stdout, Err: env.Stderr}, cfg, args[0], o)
	}
	return cmd
}
