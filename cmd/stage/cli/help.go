package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the width of help where standard output is not a terminal.
const helpWidth = 120

// flagGroup is the annotation of a flag that holds the heading it is listed under; without one it is the command's own.
const flagGroup = "stage_group"

// writeHelp prints the help of a command: what it does, examples, commands below it, its own flags, and then those of
// the configuration by group. width is that of the terminal, 0 if there is none.
func writeHelp(cmd *cobra.Command, width int) {
	if width == 0 {
		width = helpWidth
	}
	var b strings.Builder
	b.WriteString(cmd.Short)
	if cmd.Long != "" {
		b.Reset()
		b.WriteString(cmd.Long)
	}
	fmt.Fprintf(&b, "\n\nUsage:\n  %s\n", usageLine(cmd))
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	writeCommands(&b, cmd)

	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	grouped := make(map[string]*pflag.FlagSet)
	var groups []string
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		set := own
		if names := f.Annotations[flagGroup]; len(names) > 0 {
			if set = grouped[names[0]]; set == nil {
				set = pflag.NewFlagSet("", pflag.ContinueOnError)
				set.SortFlags = false
				grouped[names[0]] = set
				groups = append(groups, names[0])
			}
		}
		set.AddFlag(f)
	})
	if own.HasAvailableFlags() {
		fmt.Fprintf(&b, "\nFlags:\n%s", own.FlagUsagesWrapped(width))
	}
	for _, group := range groups {
		if set := grouped[group]; set.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", group, set.FlagUsagesWrapped(width))
		}
	}
	if len(groups) > 0 {
		b.WriteString("\nEach flag of the configuration overrides the variable of the same name (--pool-size: STAGE_POOL_SIZE);\n" +
			"stage config lists all variables with their values.\n")
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s <command> --help describes a command.\n", cmd.CommandPath())
	}
	cmd.Print(b.String())
}

// usageLine returns how the command is called.
func usageLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " <command> [flags]"
	}
	return cmd.UseLine()
}

// writeCommands lists the commands below cmd, by group where they have one.
func writeCommands(b *strings.Builder, cmd *cobra.Command) {
	list := func(title, group string) {
		heading := "\n" + title + "\n"
		for _, sub := range cmd.Commands() {
			if sub.GroupID != group || !sub.IsAvailableCommand() && sub.Name() != "help" {
				continue
			}
			fmt.Fprintf(b, "%s  %-*s %s\n", heading, sub.NamePadding(), sub.Name(), sub.Short)
			heading = ""
		}
	}
	for _, group := range cmd.Groups() {
		list(group.Title, group.ID)
	}
	list("Commands:", "")
}
