package cli

import (
	"context"
	"fmt"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/preview"
	"github.com/spf13/cobra"
)

// newTryCommand makes stage try, which renders a template for some rows and calls
// nothing.
func newTryCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "try FILE",
		Short:   "show the prompts of the first rows, those of several templates side by side",
		GroupID: groupSetup,
		Args:    required(noInput, cobra.ExactArgs(1)),
	}
	in := preview.Input{Stdin: env.Stdin}
	var templates, files []string
	cmd.Flags().StringArrayVar(&templates, "template", nil, "path of a template, or its `text`; repeated: one column each; default: the configured template")
	cmd.Flags().StringArrayVar(&files, "template-file", nil, "`path` of a template; may be repeated and combined with --template")
	cmd.Flags().Int64VarP(&in.Rows, "rows", "n", 5, "number of rows")
	addFormatFlags(cmd, &in.Format)
	asJSON := cmd.Flags().Bool("json", false, "print a JSON object for each row")
	flags := newConfigFlags(cmd, env, []string{"Prompt and result", "Fan-out"}, nil)
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		if in.Rows < 1 {
			return config.Invalid(fmt.Errorf("-n %d: give at least 1", in.Rows))
		}
		all, err := preview.LoadTemplates(cfg, templates, files)
		if err != nil {
			return config.Invalid(err)
		}
		in.Name = args[0]
		return preview.Try(soft, in, all, env.Stdout, *asJSON)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		need := config.NeedPrompt
		if len(templates)+len(files) > 0 {
			need = config.NeedNothing
		}
		return flags.run(need, run)(cmd, args)
	}
	return cmd
}
