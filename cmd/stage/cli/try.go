package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/preview"
	"github.com/spf13/cobra"
)

// groupsOfTry are the groups of flags that try uses without a call. groupsOfCalls are
// those that it also uses with --call.
var (
	groupsOfTry   = []string{"Prompt and result", "Fan-out"}
	groupsOfCalls = []string{
		groupNATS, "Embedded server", "Dispatch", "LLM",
		"Providers of fallbacks", "Rows and failures", "Cost",
	}
)

// newTryCommand makes stage try, which prints the prompts of some rows without a call, or
// with --call (trycall.go) compares the answers to them.
func newTryCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "try FILE",
		Short:   "show the prompts of the first rows, or with --call the answers, side by side",
		GroupID: groupSetup,
		Args:    required(noInput, cobra.ExactArgs(1)),
	}
	t := &tryFlags{env: env, in: preview.Input{Stdin: env.Stdin}}
	cmd.Flags().StringArrayVar(&t.templates, "template", nil, "path of a template, or its `text`; "+
		"repeated: one column each; default: the configured template")
	cmd.Flags().StringArrayVar(&t.files, "template-file", nil,
		"`path` of a template; may be repeated and combined with --template")
	cmd.Flags().Int64VarP(&t.in.Rows, "rows", "n", 5, "number of rows")
	cmd.Flags().Int64Var(&t.in.Sample, "sample", 0,
		"take `N` rows at random, in the order of the file, in place of the first ones")
	cmd.Flags().Uint64Var(&t.in.Seed, "seed", 1,
		"seed of --sample: the same seed takes the same rows")

	addFormatFlags(cmd, &t.in.Format)
	asJSON := cmd.Flags().Bool("json", false,
		"print a JSON object for each row, with --call one for all, as -o json")
	t.output = cmd.Flags().StringP("output", "o", formatTable,
		"how to print it: table, json, or with --call html, one page that needs nothing else")
	completeWords(cmd, "output", formatTable, formatJSON, formatHTML)

	t.addCallFlags(cmd)
	t.flags = newConfigFlags(cmd, env, slices.Concat(groupsOfTry, groupsOfCalls),
		map[string]string{"STAGE_LOG_LEVEL": "error"})

	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		all, err := preview.LoadTemplates(cfg, t.templates, t.files)
		if err != nil {
			return config.Invalid(err)
		}
		t.in.Name = args[0]
		return preview.Try(soft, t.in, all, env.Stdout, *t.output == formatJSON)
	}

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *asJSON && *t.output == formatTable {
			*t.output = formatJSON
		}
		if err := t.check(cmd); err != nil {
			return config.Invalid(err)
		}
		if t.call {
			return t.compare(cmd, args[0])
		}

		// Templates on the command line replace the configured prompt, which may be
		// missing then.
		t.withoutCalls()
		need := config.NeedPrompt
		if len(t.templates)+len(t.files) > 0 {
			need = config.NeedNothing
		}
		return t.flags.run(need, run)(cmd, args)
	}
	return cmd
}

// tryFlags are the flags of try.
type tryFlags struct {
	env              *Env
	flags            *configFlags
	in               preview.Input
	templates, files []string
	output           *string

	call            bool
	models, columns []string
	expect, job     string
}

// onlyCalls are the flags that need --call.
var onlyCalls = []string{"model", "column", "expect", "job"}

// check reports flags that contradict each other, or need --call.
func (t *tryFlags) check(cmd *cobra.Command) error {
	switch {
	case t.in.Rows < 1:
		return fmt.Errorf("-n %d: give at least 1", t.in.Rows)
	case cmd.Flags().Changed("sample") && t.in.Sample < 1:
		return fmt.Errorf("--sample %d: give at least 1", t.in.Sample)
	case cmd.Flags().Changed("sample") && cmd.Flags().Changed("rows"):
		return errors.New("--sample and -n: both say how many rows: give one of them")
	case cmd.Flags().Changed("seed") && t.in.Sample == 0:
		return errors.New("--seed: it is about --sample: add that, or remove it")
	case !slices.Contains([]string{formatTable, formatJSON, formatHTML}, *t.output):
		return fmt.Errorf("--output %q: it is %s, %s or %s", *t.output, formatTable, formatJSON,
			formatHTML)
	case *t.output == formatHTML && !t.call:
		return errors.New("--output html: the page compares answers: add --call")
	case t.call:
		return nil
	}
	for _, name := range onlyCalls {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s: it is about answers: add --call, or remove it", name)
		}
	}
	return nil
}

// withoutCalls refuses the flags of settings that only calls use. The settings of a
// server in the environment are not read either, so a mistake in them is no error.
func (t *tryFlags) withoutCalls() {
	for _, group := range groupsOfCalls {
		t.flags.refuse(unused+", or add --call", flagsOf(group)...)
	}
	t.flags.refuse(unused+", or add --call", serverFlag, contextFlag)
	t.flags.external = false
}
