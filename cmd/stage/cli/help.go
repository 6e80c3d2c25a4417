package cli

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the width of help where standard output is not a terminal.
const helpWidth = 120

// flagGroup is the annotation that holds the heading of a setting's flag. A flag without
// it is the command's own.
const flagGroup = "stage_group"

// flagCommon is the annotation of a setting's flag that the help of each command lists.
// All settings are in stage help settings.
const flagCommon = "stage_common"

// writeHelp prints the help of a command: its usage, its description, the commands below
// it, examples, its own flags, and the settings that are most often given as flags. The
// help of the program ends with the exit codes. width is the width of the terminal, or 0
// if there is none.
func writeHelp(cmd *cobra.Command, width int) {
	var b strings.Builder
	usage := cmd.UseLine()
	// A command with arguments does something itself, although it has commands below it.
	if cmd.HasAvailableSubCommands() && !strings.Contains(cmd.Use, " ") {
		usage = cmd.CommandPath() + " <command> [flags]"
	}
	fmt.Fprintf(&b, "Usage:\n  %s\n\n%s\n", usage, cmp.Or(cmd.Long, cmd.Short))
	writeCommands(&b, cmd)
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}

	settings := false
	own := flagSet(cmd, func(f *pflag.Flag) bool {
		settings = settings || f.Annotations[flagGroup] != nil
		return f.Annotations[flagGroup] == nil
	})
	writeFlags(&b, "Flags", own, width)
	if settings {
		writeFlags(&b, "Common settings",
			flagSet(cmd, func(f *pflag.Flag) bool { return f.Annotations[flagCommon] != nil }),
			width)
		b.WriteString("\nEvery setting is a variable and a flag of the same name " +
			"(STAGE_POOL_SIZE, --pool-size); the flag takes precedence.\n" +
			"stage help settings lists them all, stage help WORD what there is about a word, " +
			"such as excel or retry.\n")
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s <command> --help describes a command.\n", cmd.CommandPath())
	}
	if !cmd.HasParent() {
		b.WriteString("stage help settings lists all settings: each is a variable and a flag.\n" +
			"stage help WORD shows what there is about a word: " +
			"pages, commands and settings. Try excel, resume, 429 or cost.\n\n" + exitCodes)
	}
	cmd.Print(b.String())
}

// exitCodes are the codes of [Main], for users.
const exitCodes = `Exit codes:

    0 done; rows that failed are results
    1 failed, or verify found a violation
    2 bad usage or configuration, or verify cannot tell
    3 ended by a fatal provider error
    4 more rows failed than process --fail-on-error allows
  130 interrupted before the end: the first Ctrl-C stops cleanly, the second immediately
`

// writeFlags prints a set of flags under a heading. It prints nothing for an empty set.
func writeFlags(b *strings.Builder, heading string, flags *pflag.FlagSet, width int) {
	if flags.HasAvailableFlags() {
		fmt.Fprintf(b, "\n%s:\n%s", heading, flags.FlagUsagesWrapped(cmp.Or(width, helpWidth)))
	}
}

// flagSet returns the flags of a command that are wanted, in the order in which they were
// added, which is that of the settings. pflag would sort them by name.
func flagSet(cmd *cobra.Command, wanted func(*pflag.Flag) bool) *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.SortFlags = false
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if wanted(f) {
			flags.AddFlag(f)
		}
	})
	return flags
}

// writeSettings prints all settings by group.
func writeSettings(root *cobra.Command, env *Env, width int) {
	var b strings.Builder
	writeMatchingSettings(&b, env, func(*pflag.Flag, string) bool { return true }, width)
	root.Print(strings.TrimPrefix(b.String(), "\n"))
}

// flagError adds a remedy to the error of an unknown flag: the name that was probably
// meant, or how to give a secret.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	name := unknown.GetSpecifiedName()
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	variable := config.VariablePrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	switch {
	case cmd.Flags().Lookup(name+"-file") != nil:
		return fmt.Errorf("%w: a secret shows in the list of processes: "+
			"set %s, or give --%s-file PATH", err, variable, name)
	case (name == contextFlag || name == serverFlag) && cmd.Flags().Lookup(name) == nil:
		return fmt.Errorf("%w: stage %s connects to no NATS server", err, cmd.Name())
	}
	flag := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	if near := config.Nearest(flag, names); near != "" {
		return fmt.Errorf("%w, did you mean --%s?", err, near)
	}
	return err
}

// writeCommands lists the commands below cmd, in their groups where they have one, and
// the most used first. A group without an available command has no heading.
func writeCommands(b *strings.Builder, cmd *cobra.Command) {
	list := func(title, group string) {
		heading := "\n" + title + "\n"
		for _, sub := range inOrder(cmd) {
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

// newHelpCommand makes stage help. Cobra's own help reports no error for an unknown
// command. Here a word that names no command is searched for in the pages, commands and
// settings, and is an error if nothing is about it.
func newHelpCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use: "help [command | settings | word...]",
		Short: "list the commands, describe one, list all settings, " +
			"or show what there is about a word",
		Long: "help describes a command. With another word, or several, " +
			"it lists the pages of the documentation, the commands and the\n" +
			"settings about all of them.",
		Example: "  stage help process\n  stage help settings\n  stage help excel\n  stage help " +
			"rate limit",
		RunE: func(cmd *cobra.Command, args []string) error {
			root, width := cmd.Root(), terminal.Width(env.Stdout)
			if len(args) > 0 && args[0] == "settings" {
				words := wordsOf(args[1:])
				if len(words) == 0 {
					writeSettings(root, env, width)
				} else if !writeTopic(root, env, words, width) {
					return config.Invalid(fmt.Errorf("no setting is about %q: "+
						"stage help settings lists all", strings.Join(words, " ")))
				}
				return nil
			}

			// "help lane cancel" names a command; "help rate limit" does not, and is
			// searched for. Of a command with others below it, a further word must name
			// one of these.
			found, rest, err := root.Find(args)
			if len(args) > 1 && (err != nil || len(rest) > 0 && found.HasSubCommands()) {
				err = fmt.Errorf("nothing is about %q", strings.Join(args, " "))
			}
			if (err != nil || len(rest) > 0) && writeTopic(root, env, wordsOf(args), width) {
				return nil
			}
			if err != nil {
				return config.Invalid(fmt.Errorf("%w\nsee %s --help", err, root.Name()))
			}

			if err := found.Help(); err != nil {
				return err
			}
			var b strings.Builder
			writePages(&b, topicsOf(wordsOf(args)))
			root.Print(b.String())
			return nil
		},
	}
}

// helpFiles are the texts of the commands, a file for each: its description and, after
// the line "Examples:", some calls of it. The file of a command within another is named
// after both, as in jobs-show.txt.
//
//go:embed help
var helpFiles embed.FS

// addTexts gives the command and all below it their texts.
func addTexts(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		addTexts(sub)
	}
	path := strings.Fields(cmd.CommandPath())
	name := strings.Join(path[min(1, len(path)-1):], "-")
	text, err := helpFiles.ReadFile("help/" + name + ".txt")
	if err != nil { // such as init, which has its texts in the code
		return
	}
	long, example, _ := strings.Cut("\n"+string(text), "\nExamples:\n")
	cmd.Long, cmd.Example = strings.TrimSpace(long), strings.TrimRight(example, "\n")
}
