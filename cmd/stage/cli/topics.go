package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pagesBase is where the pages of topics are read, for those who have the program alone.
const pagesBase = "https://github.com/llm-stage/stage/blob/main/"

// topic is a page of the documentation, with the words that people use for what it is
// about.
type topic struct {
	words    string // separated by spaces, in lower case and the singular
	page     string
	about    string
	commands string   // that belong to it, separated by spaces
	settings []string // flags that belong to it and whose text has none of the words
}

// topics are the pages by what people ask for, the most specific first. The words of
// settings and commands need no entry: their own texts are searched, too.
var topics = []topic{
	{"image picture photo vision media audio video pdf attachment multimodal", "docs/templates.md#limits", "a prompt is text: images and other media can't be sent", "try", []string{"template", "template-file", "system-prompt"}},
	{"excel spreadsheet sheet libreoffice semicolon bom column flatten", "docs/files.md#results-as-csv", "results as CSV for Excel: delimiter, byte order mark, columns for the members of a reply", "process", nil},
	{"csv tsv jsonl json ndjson file format delimiter encoding utf utf-16 gzip quote input", "docs/files.md#formats", "files of rows: formats, delimiters, encodings, quotes, compression", "process load", nil},
	{"csv table output", "docs/files.md#results-as-csv", "results as CSV", "", nil},
	{"order sequence sorted unordered head-of-line", "docs/order.md", "results in the order of the rows, by key, or as they are done", "", []string{"order", "order-key", "window"}},
	{"resume restart continue interrupted crash kill again", "docs/jobs.md#resume", "the same command resumes a job where it was", "process jobs", []string{"journal"}},
	{"pause resume drain probe stop operator hold steer control", "docs/status.md#steer-it", "pause and resume a running stage, drain a replica, probe", "pause resume probe drain", []string{"control"}},
	{"exactly once duplicate twice lost loss guarantee proof prove reliability", "docs/reliability.md#guaranteed", "what is guaranteed: each row has exactly one result, whatever is killed", "verify", nil},
	{"verify violation proof prove audit", "docs/verify.md", "what stage verify proves, and what each violation means", "verify", nil},
	{"cost spent spending bill billing token usage expensive cheaper", "docs/cost.md#what-was-spent", "what calls cost: by stage, provider, model and day", "usage", nil},
	{"price pricing usd dollar money cost", "docs/cost.md#prices", "prices of models, and what is unknown", "usage", []string{"prices-file"}},
	{"ceiling limit cost budget maximum spend max", "docs/cost.md#a-cost-ceiling", "a ceiling for what a stage may spend", "usage", []string{"max-cost-usd"}},
	{"stuck stall stalled hang hung waiting starved held idle starting standby ended blocked", "docs/status.md#see-it", "what a stage is doing, why rows wait, and what to do about it", "status tail", nil},
	{"full disk storage runbook", "docs/operations.md#llmstagelag", "rows wait: a stream that is full, and other causes", "status", []string{"result-max-bytes", "audit-max-bytes", "journal-max-bytes"}},
	{"429 503 529 rate limit throttle throttling capacity quota backoff slow speed rpm tpm", "docs/throttle.md", "on 429, 503 or 529 the stage slows down and retries until it succeeds", "status", []string{"throttle", "pool-size", "row-timeout", "llm-rpm", "llm-tpm", "llm-max-concurrency"}},
	{"retry retries attempt failed failure repair", "docs/jobs.md#failed-rows", "send failed rows of a job again", "process redrive", nil},
	{"retry retries attempt failure error refused timeout invalid_row reason", "docs/providers.md#which-failures-count-against-a-row", "which failures are retried for how long, and which fail a row", "tail", []string{"retry-max-attempts", "retry-base-delay", "row-timeout"}},
	{"dead letter dlq redrive poison failed", "docs/reliability.md#not-guaranteed", "failed rows go to a subject of dead letters, too; redrive sends them again", "redrive", []string{"dead-letter-subject"}},
	{"schema structured validate validation object strict", "docs/providers.md#schemas", "replies that must satisfy a JSON Schema, at each provider", "", []string{"response-schema-file"}},
	{"batch lane cheap half async asynchronous overnight", "docs/lane.md", "the batch lane: rows through the provider's Batch API, for half the price", "lane", []string{"lane", "lane-deadline"}},
	{"batch request rpc prompt ask reply", "docs/batch.md", "batched requests: many prompts in one request over NATS", "batch", nil},
	{"kubernetes k8s helm chart pod deployment container docker keda", "deploy/helm/llm-stage/README.md", "the Helm chart", "", []string{"http-addr", "stop-timeout"}},
	{"autoscaling autoscale keda scale replica partition shard hpa", "docs/scale.md", "more replicas and partitions, and autoscaling", "", []string{"partitions"}},
	{"azure entra", "docs/providers.md#azure-openai", "Azure OpenAI", "", nil},
	{"openai gpt", "docs/providers.md#openai", "OpenAI", "", nil},
	{"anthropic claude", "docs/providers.md#anthropic", "Anthropic", "", nil},
	{"gemini google", "docs/providers.md#gemini", "Gemini", "", nil},
	{"ollama local offline", "docs/providers.md#ollama", "Ollama", "", nil},
	{"vllm", "docs/providers.md#vllm", "vLLM", "", nil},
	{"proxy ca certificate tls base url compatible server localai lmstudio", "docs/providers.md#any-other-server", "any other server, proxies (HTTPS_PROXY, NO_PROXY) and private certificate authorities", "", []string{"llm-base-url", "llm-ca-file"}},
	{"provider model llm", "docs/providers.md", "providers, and what each needs", "", nil},
	{"key secret token password credential api-key rotate redact", "docs/providers.md#secrets", "API keys: a variable or a file, read again on SIGHUP, never printed", "", nil},
	{"key order partition", "docs/order.md#choosing-a-key", "the key that orders rows", "", []string{"order-key"}},
	{"permission user account nats least authorization acl denied violation", "docs/permissions.md", "least permissions of the stage's NATS user; stage setup --print-permissions prints them", "setup", nil},
	{"dashboard page browser ui web", "docs/dashboard.md", "the dashboard", "status", []string{"http-addr", "http-hosts"}},
	{"metric prometheus alert grafana runbook monitoring health readyz healthz", "docs/operations.md#alerts", "metrics, alerts and what to do at each", "status", []string{"http-addr"}},
	{"trace tracing otel opentelemetry span", "docs/tracing.md", "traces", "", nil},
	{"log audit event tail history payload privacy", "docs/status.md#rows-that-failed-and-the-story-of-a-row", "why rows failed, and the story of a row", "tail", []string{"audit-payloads", "log-level", "log-format"}},
	{"template jinja prompt variable lookup few-shot", "docs/templates.md", "prompts as templates", "try init", nil},
	{"foreach array fan-out element map", "docs/foreach.md", "one call for each element of an array", "", []string{"foreach"}},
	{"chain pipeline stages several", "docs/chains.md", "stages that take the results of another", "", nil},
	{"stages several multiple config yaml", "docs/stages.md", "several stages in one process", "run", nil},
	{"fallback outage brown-out down unavailable", "docs/throttle.md#outages", "outages of a provider, and fallbacks", "status", []string{"fallbacks", "fallback-after"}},
	{"job fresh jobs cleanup remove delete", "docs/jobs.md", "jobs: files processed, repaired and kept", "jobs", nil},
	{"exit code status", "docs/jobs.md#exit-codes", "exit codes", "", nil},
	{"env environment context nats url connect connection variable setting configuration", "docs/connections.md", "where settings come from, and how to name the server", "config", nil},
	{"disk durability sync fsync power memory sizing size ram", "docs/operations.md#sizing", "sizing: memory, disk, window", "", []string{"data-sync"}},
	{"upgrade rollback version migrate", "docs/operations.md#upgrade-and-rollback", "upgrade and rollback", "version", nil},
	{"dedupe cache deduplicate equal", "docs/cost.md#not-paying-twice", "not paying twice for equal prompts", "", []string{"dedupe"}},
	{"budget shared fleet weight account", "docs/budget.md", "one learned rate for many processes", "", []string{"budget"}},
	{"erase forget gdpr privacy personal customer", "docs/howto/erase-a-customer.md", "what can be erased of a customer, and what can't", "jobs", []string{"audit-payloads", "audit-max-age"}},
	{"few-shot shot example", "docs/howto/few-shot.md", "examples in a prompt", "try", []string{"lookup-file"}},
	{"compare comparison experiment ab prompt", "docs/howto/compare-prompts.md", "two prompts, or two models, on the same rows", "try", nil},
	{"rollout roll out change new prompt", "docs/howto/new-prompt.md", "a new prompt in a running stage", "try", nil},
	{"excel spreadsheet table", "docs/howto/excel.md", "a table from Excel in, and one out, step by step", "process", nil},
	{"night cron schedule", "docs/howto/night-pause.md", "no calls at night", "pause resume", nil},
	{"faster slow speed limit raise", "docs/howto/raise-a-limit.md", "what limits the rate, and how to raise it", "status", nil},
	{"nothing missing empty silent", "docs/howto/nothing-comes-out.md", "why nothing comes out", "status tail", nil},
	{"jq audit nats", "docs/howto/read-the-audit.md", "the audit with nats and jq", "tail", nil},
	{"howto task recipe tutorial", "docs/howto/README.md", "short pages for common tasks", "", nil},
	{"demo example try quickstart start tutorial", "docs/demo.md", "see it work without key or network", "demo init", nil},
}

// wordsOf returns the words to search for, in lower case. A variable stands for the words
// of its flag: STAGE_POOL_SIZE is pool-size.
func wordsOf(args []string) (words []string) {
	for _, arg := range args {
		text := strings.TrimPrefix(arg, config.VariablePrefix)
		text = strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(text, "_", "-")), "--")
		words = append(words, strings.Fields(text)...)
	}
	return words
}

// has reports whether a topic is about all of the words; a plural is its singular, and
// dead-letter is dead letter.
func (t *topic) has(words []string) bool {
	known := strings.Fields(t.words)
	unknown := func(word string) bool {
		return !slices.Contains(known, word) && !slices.Contains(known, strings.TrimSuffix(word, "s")) && !slices.Contains(known, strings.TrimSuffix(word, "es"))
	}
	return len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool {
		return unknown(word) && slices.ContainsFunc(strings.Split(word, "-"), unknown)
	})
}

// topicsOf returns the topics about all of the words.
func topicsOf(words []string) (found []*topic) {
	for i := range topics {
		if t := &topics[i]; t.has(words) && !slices.ContainsFunc(found, func(other *topic) bool { return other.page == t.page }) {
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

// writeTopic prints what there is about the words: pages, commands and settings. It
// reports whether there is anything.
func writeTopic(root *cobra.Command, env *Env, words []string, width int) bool {
	found := topicsOf(words)
	var b strings.Builder
	writePages(&b, found)
	writeTopicCommands(&b, root, found, words)
	writeMatchingSettings(&b, env, func(f *pflag.Flag, group string) bool {
		text := strings.ToLower(group + "\n" + f.Name + "\n" + f.Usage)
		about := slices.ContainsFunc(found, func(t *topic) bool { return slices.Contains(t.settings, f.Name) })
		return about || !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	}, width)
	writeDeprecated(&b, words)
	root.Print(strings.TrimPrefix(b.String(), "\n"))
	return b.Len() > 0
}

// writeDeprecated prints what to do instead of a deprecated setting that is asked for by
// its name.
func writeDeprecated(b *strings.Builder, words []string) {
	for _, f := range config.Fields() {
		if f.Deprecated != "" && slices.Contains(words, config.FlagName(f.Variable)) {
			fmt.Fprintf(b, "\n%s is deprecated: %s.\n", f.Variable, f.Deprecated)
		}
	}
}

// writeTopicCommands prints the commands of topics, and those whose line in the list of
// commands has the words.
func writeTopicCommands(b *strings.Builder, root *cobra.Command, found []*topic, words []string) {
	heading := "\nCommands:\n"
	for _, cmd := range inOrder(root) {
		line := strings.ToLower(cmd.Name() + " " + cmd.Short)
		about := slices.ContainsFunc(found, func(t *topic) bool { return slices.Contains(strings.Fields(t.commands), cmd.Name()) })
		if !cmd.IsAvailableCommand() || !about && slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			continue
		}
		fmt.Fprintf(b, "%s  %-*s %s\n", heading, cmd.NamePadding(), cmd.Name(), cmd.Short)
		heading = ""
	}
}

// writeMatchingSettings prints the settings that are wanted, by group.
func writeMatchingSettings(b *strings.Builder, env *Env, wanted func(f *pflag.Flag, group string) bool, width int) {
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
const settingsIntro = "\nEach setting is a flag and the variable of the same name (--pool-size: STAGE_POOL_SIZE); the flag takes precedence.\n" +
	"A secret has no flag, only STAGE_…, and STAGE_…_FILE or its flag for the path of a file that holds it. stage config\n" +
	"prints the values in use and where each comes from: flag, environment, --env-file, NATS context, default.\n"

// inOrder returns the commands below cmd in the order in which they were added: the most
// used first.
func inOrder(cmd *cobra.Command) []*cobra.Command {
	list := slices.Clone(cmd.Commands()) // cobra sorts them by name
	slices.SortStableFunc(list, func(a, b *cobra.Command) int {
		return cmp.Compare(rankOf(a), rankOf(b))
	})
	return list
}

// commandRank is the annotation of a command that holds its place in the help.
const commandRank = "stage_rank"

// rankOf returns what the place of a command is sorted by; one that has none comes last.
func rankOf(cmd *cobra.Command) string { return cmp.Or(cmd.Annotations[commandRank], "~") }
