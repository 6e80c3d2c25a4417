package cli

import (
	"fmt"

	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/internal/version"
	"github.com/spf13/cobra"
)

func newVersionCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "print version, commit and Go version",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print as JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		if *asJSON {
			return terminal.WriteJSON(env.Stdout, version.Current())
		}
		_, err := fmt.Fprintln(env.Stdout, version.Current())
		return err
	}
	return cmd
}
