package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// newConfigCommand makes stage config. Everything that it prints follows from the fields
// of [config.Config]: the effective values with the place that each comes from, the table
// of docs/settings.md, and the JSON Schema of the chart. With --check it loads what run
// and process load: settings, prompt, prices, and the clients of the providers.
func newConfigCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "print the effective configuration, or check it",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
	}
	check := cmd.Flags().Bool("check", false,
		"check that run and process can start; exit with 0 or 2")
	markdown := cmd.Flags().Bool("markdown", false, "print the table of docs/settings.md")
	schema := cmd.Flags().Bool("schema", false,
		"print a JSON Schema of all variables, for charts and editors")
	asJSON := cmd.Flags().Bool("json", false,
		"print the variables that have a value as a JSON object")
	cmd.MarkFlagsMutuallyExclusive("check", "markdown", "schema", "json")

	flags := newConfigFlags(cmd, env, nil, nil)
	stages := flags.addStages()
	for _, other := range []string{"markdown", "schema"} {
		cmd.MarkFlagsMutuallyExclusive(stagesFlag, other)
	}

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *markdown:
			return config.WriteMarkdown(env.Stdout)
		case *schema:
			return config.WriteSchema(env.Stdout)
		case *check:
			return checkConfig(cmd.Context(), env, flags, *stages)
		}

		cfgs, err := flags.LoadStages(cmd.Context(), *stages, config.NeedNothing)
		if err != nil {
			return err
		}
		noteContext(env, cfgs[0])
		switch {
		case *asJSON && *stages != "":
			var all []map[string]string
			for _, cfg := range cfgs {
				all = append(all, cfg.Settings())
			}
			return terminal.WriteJSON(env.Stdout, all)
		case *asJSON:
			return terminal.WriteJSON(env.Stdout, cfgs[0].Settings())
		}

		for i, cfg := range cfgs {
			if i > 0 {
				terminal.PrintLine(env.Stdout, "")
			}
			if err := config.WriteConfig(env.Stdout, cfg); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// noteContext prints which settings of the NATS context in use the stage ignores.
func noteContext(env *Env, cfg *config.Config) {
	if n := cfg.NATSContext(); n != nil && len(n.Ignored) > 0 {
		terminal.PrintLine(env.Stderr, "note: context %s: not supported and ignored: %s", n.Name,
			strings.Join(n.Ignored, ", "))
	}
}

// checkConfig checks that run and process can start: settings, prompt, providers and
// keys. It connects to neither NATS nor a provider, so it works in a pipeline before a
// deployment. It lists all problems, and names the stage of each if there are several.
func checkConfig(ctx context.Context, env *Env, flags *configFlags, stages string) error {
	cfgs, err := flags.LoadStages(ctx, stages, config.NeedCalls)
	if err != nil {
		return err
	}
	noteContext(env, cfgs[0])

	var problems []error
	var notes []string
	budgets := make(map[string]int)
	for _, cfg := range cfgs {
		of := ""
		if stages != "" {
			of = "stage " + cfg.Name + ": "
		}
		p, err := executor.LoadPrompt(cfg)
		identities, wrong := call.Check(cfg) //nolint:contextcheck // what an identity reads at start bounds itself
		err = errors.Join(err, wrong)
		if problems = appendProblems(problems, err, of); err != nil {
			continue
		}
		budgets[string(cfg.Budget.Name)]++
		for _, identity := range identities {
			notes = append(notes,
				fmt.Sprintf("%scalls are authorised by a cloud's identity: %s", of, identity))
		}
		for _, f := range cfg.Deprecated() {
			notes = append(notes, fmt.Sprintf("%s%s is deprecated, and a later release refuses "+
				"it: %s", of, f.Variable, f.Deprecated))
		}
		for _, note := range p.SchemaNotes(cfg) {
			notes = append(notes,
				fmt.Sprintf("%sSTAGE_RESPONSE_SCHEMA_FILE: %s: %s", of, note.Provider, note.Text))
		}
		for _, note := range p.KeepNotes() {
			notes = append(notes, fmt.Sprintf("%sSTAGE_LLM_EXTRA_BODY: %s", of, note))
		}
	}
	if len(problems) > 0 {
		return config.Invalid(errors.Join(problems...))
	}
	delete(budgets, "")
	for _, users := range budgets {
		if users == 1 && len(cfgs[0].NATS.URL) == 0 {
			notes = slices.Insert(notes, 0, config.BudgetOfOne)
			break
		}
	}
	for _, note := range notes {
		terminal.PrintLine(env.Stdout, "note: %s", note)
	}
	_, err = fmt.Fprintln(env.Stdout, "configuration is valid")
	return err
}
