package cli

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pagesBase is where a user without a clone of the repository reads the pages.
const pagesBase = "https://github.com/llm-stage/stage/blob/main/"

// topic is a page of the documentation, with the words for which users search for it. For
// example, the page about CSV has the word excel.
type topic struct {
	words    string // separated by spaces, in lower case and the singular
	page     string
	about    string
	commands string   // commands that belong to it, separated by spaces
	settings []string // flags that belong to it, although their text has none of the words
}

// topics are the pages with the words that lead to them, the most specific first. The
// names of settings and commands need no entry: their own texts are searched, too.
var topics = readTopics(topicsFile)

//go:embed help/topics
var topicsFile string

// readTopics reads the file of topics, where an empty line is before each topic:
//
//	page docs/templates.md#conversations
//	about conversations: few-shot examples as turns, chats
//	words conversation message messages chat turns
//	commands try
//	settings messages-file messages-field system-prompt
//
// The first block is a comment.
func readTopics(file string) (all []topic) {
	for _, block := range strings.Split(file, "\n\n")[1:] {
		var t topic
		for line := range strings.Lines(block) {
			switch name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name {
			case "page":
				t.page = value
			case "about":
				t.about = value
			case "words":
				t.words = value
			case "commands":
				t.commands = value
			case "settings":
				t.settings = strings.Fields(value)
			}
		}
		all = append(all, t)
	}
	return all
}

// wordsOf returns the words to search for, in lower case. A variable or a flag becomes the
// name of the flag: STAGE_POOL_SIZE and --pool-size are both pool-size.
func wordsOf(args []string) (words []string) {
	for _, arg := range args {
		text := strings.TrimPrefix(arg, config.VariablePrefix)
		text = strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(text, "_", "-")), "--")
		words = append(words, strings.Fields(text)...)
	}
	return words
}

// has reports whether a topic is about all of the words. A plural counts as its singular,
// but only by its ending s or es, and dead-letter counts as dead letter.
func (t *topic) has(words []string) bool {
	known := strings.Fields(t.words)
	unknown := func(word string) bool {
		return !slices.Contains(known, word) &&
			!slices.Contains(known, strings.TrimSuffix(word, "s")) &&
			!slices.Contains(known, strings.TrimSuffix(word, "es"))
	}
	return len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool {
		return unknown(word) && slices.ContainsFunc(strings.Split(word, "-"), unknown)
	})
}

// topicsOf returns the topics about all of the words.
func topicsOf(words []string) (found []*topic) {
	for i := range topics {
		if t := &topics[i]; t.has(words) &&
			!slices.ContainsFunc(found, func(other *topic) bool { return other.page == t.page }) {
			found = append(found, t)
		}
	}
	return found
}

// writePages prints the pages of topics.
func writePages(b *strings.Builder, found []*topic) {
	if len(found) == 0 {
		return
	}
	width := 0
	for _, t := range found {
		width = max(width, len(t.page))
	}
	fmt.Fprintf(b, "\nPages of %s:\n", pagesBase)
	for _, t := range found {
		fmt.Fprintf(b, "  %-*s  %s\n", width, t.page, t.about)
	}
}

// writeTopic prints the pages, commands and settings about the words. It reports whether
// there are any.
func writeTopic(root *cobra.Command, env *Env, words []string, width int) bool {
	found := topicsOf(words)
	var b strings.Builder
	writePages(&b, found)
	writeTopicCommands(&b, root, found, words)
	writeMatchingSettings(&b, env, func(f *pflag.Flag, group string) bool {
		text := strings.ToLower(group + "\n" + f.Name + "\n" + f.Usage)
		about := slices.ContainsFunc(found,
			func(t *topic) bool { return slices.Contains(t.settings, f.Name) })
		return about || containsAll(text, words)
	}, width)
	writeDeprecated(&b, words)
	root.Print(strings.TrimPrefix(b.String(), "\n"))
	return b.Len() > 0
}

// containsAll reports whether each of the words is in the text.
func containsAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// writeDeprecated prints the remedy for a deprecated setting that is asked for by its
// name. The lists of settings leave it out.
func writeDeprecated(b *strings.Builder, words []string) {
	for _, f := range config.Fields() {
		if f.Deprecated != "" && slices.Contains(words, config.FlagName(f.Variable)) {
			fmt.Fprintf(b, "\n%s is deprecated: %s.\n", f.Variable, f.Deprecated)
		}
	}
}

// writeTopicCommands prints the commands of topics, and those whose line in the help of
// the program has the words.
func writeTopicCommands(b *strings.Builder, root *cobra.Command, found []*topic, words []string) {
	heading := "\nCommands:\n"
	for _, cmd := range inOrder(root) {
		line := strings.ToLower(cmd.Name() + " " + cmd.Short)
		about := slices.ContainsFunc(found,
			func(t *topic) bool { return slices.Contains(strings.Fields(t.commands), cmd.Name()) })
		if !cmd.IsAvailableCommand() || !about && !containsAll(line, words) {
			continue
		}
		fmt.Fprintf(b, "%s  %-*s %s\n", heading, cmd.NamePadding(), cmd.Name(), cmd.Short)
		heading = ""
	}
}

// writeMatchingSettings prints the settings that are wanted, by group.
func writeMatchingSettings(
	b *strings.Builder, env *Env, wanted func(f *pflag.Flag, group string) bool, width int,
) {
	all := &cobra.Command{Use: "settings"}
	newConfigFlags(all, env, nil, nil)
	before := b.Len()
	written := make(map[string]bool)
	for _, field := range config.Fields() {
		if written[field.Group] {
			continue
		}
		written[field.Group] = true
		flags := flagSet(all, func(f *pflag.Flag) bool {
			return slices.Contains(f.Annotations[flagGroup], field.Group) && wanted(f, field.Group)
		})
		if b.Len() == before && flags.HasAvailableFlags() {
			b.WriteString(settingsIntro)
		}
		writeFlags(b, field.Group, flags, width)
	}
}

// settingsIntro precedes a list of settings.
const settingsIntro = "\nEach setting is a flag and the variable of the same name (--pool-size: " +
	"STAGE_POOL_SIZE); the flag takes precedence.\n" +
	"A secret has no flag, only STAGE_…, and STAGE_…_FILE or its flag for the path of a file that " +
	"holds it. stage config\n" +
	"prints the values in use and where each comes from: " +
	"flag, environment, --env-file, NATS context, default.\n"

// inOrder returns the commands below cmd by their rank, the most used first. Those without
// a rank, such as help and the commands below jobs, come last and by name.
func inOrder(cmd *cobra.Command) []*cobra.Command {
	list := slices.Clone(cmd.Commands()) // cobra sorts them by name
	slices.SortStableFunc(list, func(a, b *cobra.Command) int {
		return cmp.Compare(rankOf(a), rankOf(b))
	})
	return list
}

// commandRank is the annotation of a command that holds its place in the help.
const commandRank = "stage_rank"

// rankOf returns the key by which a command is sorted. A command without a rank comes
// last, since ~ sorts after all digits.
func rankOf(cmd *cobra.Command) string { return cmp.Or(cmd.Annotations[commandRank], "~") }
