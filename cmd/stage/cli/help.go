package cli

import (
	"cmp"
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
	b.WriteString(cmp.Or(cmd.Long, cmd.Short))
	usage := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		usage = cmd.CommandPath() + " <command> [flags]"
	}
	fmt.Fprintf(&b, "\n\nUsage:\n  %s\n", usage)
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	writeCommands(&b, cmd)

	headings, flags := flagsByHeading(cmd)
	for _, heading := range headings {
		if flags[heading].HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", heading, flags[heading].FlagUsagesWrapped(width))
		}
	}
	if len(headings) > 1 {
		b.WriteString("\nEach flag of the configuration overrides the variable of the same name (--pool-size: STAGE_POOL_SIZE);\n" +
			"stage config lists all variables with their values.\n")
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s <command> --help describes a command.\n", cmd.CommandPath())
	}
	cmd.Print(b.String())
}

// flagsByHeading returns the flags of a command by heading: its own, sorted, under the first one, and those of the
// configuration under theirs, in the order of their definition.
func flagsByHeading(cmd *cobra.Command) (headings []string, flags map[string]*pflag.FlagSet) {
	const own = "Flags"
	headings, flags = []string{own}, map[string]*pflag.FlagSet{own: pflag.NewFlagSet("", pflag.ContinueOnError)}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		heading := own
		if names := f.Annotations[flagGroup]; len(names) > 0 {
			heading = names[0]
		}
		if flags[heading] == nil {
			headings = append(headings, heading)
			flags[heading] = pflag.NewFlagSet("", pflag.ContinueOnError)
			flags[heading].SortFlags = false
		}
		flags[heading].AddFlag(f)
	})
	return headings, flags
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
