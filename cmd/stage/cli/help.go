package cli

import (
	"fmt"
	"slices"
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

	own, groups := flagsByGroup(cmd)
	if own.HasAvailableFlags() {
		fmt.Fprintf(&b, "\nFlags:\n%s", own.FlagUsagesWrapped(width))
	}
	for _, group := range groups {
		if group.flags.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", group.heading, group.flags.FlagUsagesWrapped(width))
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

// flagGroupSet is the flags under one heading of the configuration.
type flagGroupSet struct {
	heading string
	flags   *pflag.FlagSet
}

// flagsByGroup returns a command's own flags, and those of the configuration by heading, in the order of their
// definition.
func flagsByGroup(cmd *cobra.Command) (own *pflag.FlagSet, groups []flagGroupSet) {
	own = pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names := f.Annotations[flagGroup]
		if len(names) == 0 {
			own.AddFlag(f)
			return
		}
		i := slices.IndexFunc(groups, func(g flagGroupSet) bool { return g.heading == names[0] })
		if i < 0 {
			i = len(groups)
			groups = append(groups, flagGroupSet{names[0], pflag.NewFlagSet("", pflag.ContinueOnError)})
			groups[i].flags.SortFlags = false
		}
		groups[i].flags.AddFlag(f)
	})
	return own, groups
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
