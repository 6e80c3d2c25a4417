package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// configFlags are the flags of a command that uses the configuration. Each variable has
// one, named after it: STAGE_POOL_SIZE has --pool-size. A key has none for its value,
// which would show in the list of processes, but one for the path of its file.
//
// A flag takes precedence over the environment. A flag that the command does not use is
// refused: the variable in the environment may be meant for other commands, a flag can't
// be. For example, stage load --pool-size 8 is an error, and STAGE_POOL_SIZE=8 stage load
// is not.
type configFlags struct {
	env      *Env
	cmd      *cobra.Command
	defaults map[string]string
	values   map[string]string // texts of the flags that were given, by variable
	refused  map[string]string // why a flag is refused, by its name

	envFiles []string
	context  string
	external bool // see [config.Source]
	// fixed has settings that take precedence over the flags, by variable: those of one
	// column of try, or those of demo.
	fixed    map[string]string
	offline  bool // see [config.Source]
	anyInput bool // see [config.Source]

	ends []os.Signal // signals that end the command like SIGTERM
}

// Flags that have no variable of the same name. The first two have the names that the
// nats CLI gives them.
const (
	serverFlag  = "server"
	contextFlag = "context"
	stagesFlag  = "stages"
)

// everyCommand are the variables that each command uses, whatever its groups.
var everyCommand = []string{"STAGE_LOG_LEVEL", "STAGE_LOG_FORMAT"}

// providerSettings are the variables of a command that cancels or deletes batches at the
// provider and makes no other call.
var providerSettings = []string{
	"STAGE_LLM_PROVIDER", "STAGE_LLM_BASE_URL", "STAGE_LLM_API_KEY_FILE",
	"STAGE_LLM_AZURE_API_VERSION", "STAGE_LLM_CA_FILE", "STAGE_LLM_TIMEOUT",
}

// commonSettings are the variables whose flags the help of a command lists; stage help
// settings lists all.
var commonSettings = []string{
	"STAGE_NAME", "STAGE_DATA_DIR", "STAGE_PARTITIONS", "STAGE_ORDER", "STAGE_ORDER_KEY",
	"STAGE_POOL_SIZE", "STAGE_LANE", "STAGE_LLM_PROVIDER", "STAGE_LLM_BASE_URL",
	"STAGE_LLM_API_KEY_FILE", "STAGE_LLM_MODEL", "STAGE_TEMPLATE", "STAGE_TEMPLATE_FILE",
	"STAGE_LOOKUP_FILE",
	"STAGE_RESPONSE_SCHEMA_FILE", "STAGE_MAX_COST_USD",
}

// newConfigFlags adds the flags of the configuration to the command. groups are the
// headings of [config.Config] that the command uses, or nil for all; flags of other
// groups are refused. defaults are the command's, by variable, and take precedence over
// the documented ones. A setting whose flag the command has already, such as --template of
// try, gets none; so a command adds its own flags first. Load reports an invalid value,
// together with all other problems.
func newConfigFlags(
	cmd *cobra.Command, env *Env, groups []string, defaults map[string]string,
) *configFlags {
	c := &configFlags{
		env: env, cmd: cmd, defaults: defaults, values: make(map[string]string),
		refused: make(map[string]string),
	}
	for _, group := range groups {
		if !slices.ContainsFunc(config.Fields(),
			func(f *config.Field) bool { return f.Group == group }) {
			panic("no field of the configuration is under " + group)
		}
	}
	cmd.Flags().StringArrayVar(&c.envFiles, "env-file", nil,
		"`file` of NAME=VALUE lines, below the environment; repeated: a later one takes precedence")
	c.complete("env-file", "path", nil)
	c.external = groups == nil || slices.Contains(groups, groupNATS)
	if c.external {
		c.addConnection()
	}
	for _, f := range config.Fields() {
		for _, variable := range f.FlagVariables() {
			if cmd.Flags().Lookup(config.FlagName(variable)) != nil {
				continue
			}
			c.add(cmd, f, variable)
			if groups != nil && !slices.Contains(groups, f.Group) &&
				!slices.Contains(everyCommand, variable) {
				c.refuse(unused, config.FlagName(variable))
			}
		}
	}
	return c
}

// addConnection adds the flags that name a server as the nats CLI does.
func (c *configFlags) addConnection() {
	c.cmd.Flags().StringVar(&c.context, contextFlag, "", "`name` of a context of the nats CLI to "+
		"connect by; default: NATS_CONTEXT, else the selected one where nothing names a server or "+
		"store")
	c.complete(contextFlag, "path", nil)
	value := &configFlag{flags: c, variable: "STAGE_NATS_URL", kind: "list"}
	c.cmd.Flags().VarP(value, serverFlag, "s", "one or more server `URLs`, as --nats-url; "+
		"default: STAGE_NATS_URL, NATS_URL or that of a context")
	c.complete(serverFlag, "list", nil)
}

// unused is the reason why most flags are refused. It follows the path of the command,
// which is known only when the command runs.
const unused = " does not use it: remove it"

// refuse makes flags an error, and hides them from the help. why says how to fix it.
func (c *configFlags) refuse(why string, flags ...string) {
	for _, name := range flags {
		c.refused[name] = why
		c.cmd.Flags().Lookup(name).Hidden = true
	}
}

// allow accepts flags that refuse has refused, for a command that uses a few variables
// outside of its groups.
func (c *configFlags) allow(variables ...string) {
	for _, variable := range variables {
		delete(c.refused, config.FlagName(variable))
		if !config.IsDeprecated(variable) {
			c.cmd.Flags().Lookup(config.FlagName(variable)).Hidden = false
		}
	}
}

// own lists flags in the help of a command that is about these settings, also those that
// are deprecated elsewhere: setup has the sizes of new streams.
func (c *configFlags) own(variables ...string) {
	for _, variable := range variables {
		flag := c.cmd.Flags().Lookup(config.FlagName(variable))
		flag.Hidden = false
		flag.Annotations[flagCommon] = []string{}
	}
}

// refuseConnection refuses all flags that describe a NATS server, for a command that runs
// its own.
func (c *configFlags) refuseConnection(why string) {
	if c.external {
		c.refuse(why, contextFlag, serverFlag)
	}
	c.external = false
	c.refuse(why, append(flagsOf(groupNATS), config.FlagName("STAGE_PARTITIONS"))...)
}

// flagsOf returns the flags of a group of settings.
func flagsOf(group string) (flags []string) {
	for _, f := range config.Fields() {
		if f.Group == group {
			for _, variable := range f.FlagVariables() {
				flags = append(flags, config.FlagName(variable))
			}
		}
	}
	return flags
}

// given returns a problem for each flag that is refused or given twice, sorted by name,
// for example
//
//	--pool-size: stage load does not use it: remove it
func (c *configFlags) given() (problems []error) {
	for _, name := range slices.Sorted(maps.Keys(c.refused)) {
		if c.cmd.Flags().Changed(name) {
			// Only now is the command below its parent, and its path is jobs ls, not ls.
			why := strings.Replace(c.refused[name], unused, c.cmd.CommandPath()+unused, 1)
			problems = append(problems, fmt.Errorf("--%s: %s", name, why))
		}
	}
	if c.external && c.cmd.Flags().Changed(serverFlag) &&
		c.cmd.Flags().Changed(config.FlagName("STAGE_NATS_URL")) {
		problems = append(problems,
			fmt.Errorf("--%s: --nats-url is given too: give one of them", serverFlag))
	}
	return problems
}

// add adds the flag of a variable. It takes the value of the field, or the path of a file
// that holds the value.
func (c *configFlags) add(cmd *cobra.Command, f *config.Field, variable string) {
	help, kind := f.Help, f.Kind()
	switch {
	case variable != f.Variable:
		help = "path of a file with the " + help
	case f.Secret:
		kind = "json"
	}
	value := &configFlag{flags: c, variable: variable, kind: kind, text: f.Fallback}
	if own, ok := c.defaults[variable]; ok {
		value.text = own
	}

	// pflag would take a word in back quotes for the name of the value.
	flag := cmd.Flags().VarPF(value, config.FlagName(variable), "",
		strings.ReplaceAll(help, "`", "'"))
	if kind == "bool" {
		flag.NoOptDefVal = "true"
	}
	flag.Annotations = map[string][]string{flagGroup: {f.Group}}
	flag.Hidden = f.Deprecated != ""
	if slices.Contains(commonSettings, variable) {
		flag.Annotations[flagCommon] = []string{}
	}
	c.complete(flag.Name, kind, f.OneOf)
}

// complete makes the shell complete the words of a flag, or files if it is a path.
func (c *configFlags) complete(name, kind string, words []string) {
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		if kind == "path" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	if err := c.cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(fmt.Sprintf("flag --%s: %v", name, err)) // the flag was added before
	}
}

// groupNATS is the heading of the connection to a NATS server.
const groupNATS = "NATS"

// groupsOfStreams are the groups of flags that commands on streams need.
var groupsOfStreams = []string{"Stage", groupNATS, "Embedded server", "Streams and subjects"}

// run returns a RunE that loads the configuration, and calls f with it, the arguments, and
// the two contexts of [Env.Contexts].
func (c *configFlags) run(need config.Need,
	f func(soft, hard context.Context, cfg *config.Config, args []string) error,
) func(*cobra.Command, []string) error {
	one := func(soft, hard context.Context, cfgs []*config.Config, args []string) error {
		return f(soft, hard, cfgs[0], args)
	}
	return c.runStages(new(string), need, one)
}

// runStages is like run, for a command that may work for several stages. path names the
// list of stages; an empty one means one stage.
func (c *configFlags) runStages(path *string, need config.Need,
	f func(soft, hard context.Context, cfgs []*config.Config, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfgs, err := c.LoadStages(cmd.Context(), *path, need)
		if err != nil {
			return err
		}
		// If no process serves the store, the command starts the embedded server itself.
		if need == config.NeedNothing && len(cfgs[0].NATS.URL) == 0 && c.env.LimitMemory != nil {
			c.env.LimitMemory(stage.EmbeddedMemory)
		}
		soft, hard, stop := c.env.Contexts(cmd.Context(), c.ends...)
		defer stop()
		return f(soft, hard, cfgs, args)
	}
}

type onStreams func(ctx context.Context, conn *natsconn.Conn, js jetstream.JetStream,
	cfg *config.Config) error

// runOnStreams returns the RunE of a command that works on streams beside a stage. check,
// which may be nil, reports invalid flags before anything is opened.
func (c *configFlags) runOnStreams(
	check func(cfg *config.Config) error, f onStreams,
) func(*cobra.Command, []string) error {
	run := func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		if check != nil {
			if err := check(cfg); err != nil {
				return config.Invalid(err)
			}
		}
		return withStreams(soft, c.env, cfg, f)
	}
	return c.run(config.NeedNothing, run)
}

// withStreams calls f once it is connected to the server or store of the configuration,
// and explains its error.
func withStreams(ctx context.Context, env *Env, cfg *config.Config, f onStreams) error {
	conn, err := natsconn.ConnectReader(ctx, cfg, cfg.Data.Dir, false,
		logging.NewConfigured(cfg, env.Stderr))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
	js, err := streams.JetStream(conn.NC())
	if err != nil {
		return err
	}
	return conn.Explain(f(ctx, conn, js, cfg))
}

// Load reads the configuration from flags, environment, files and contexts. The error
// lists every problem and makes the program end with 2.
func (c *configFlags) Load(ctx context.Context, need config.Need) (*config.Config, error) {
	cfg, files, problems := c.load(ctx, need, nil)
	if problems = append(c.given(), problems...); len(problems) > 0 {
		return nil, configError(problems)
	}
	c.exportFiles(files)
	return cfg, nil
}

// LoadStages is [configFlags.Load] for each stage that a file or directory lists, see
// [config.ReadStages]. Without a path there is one stage.
//
// A problem that several stages have is listed once, with their names; one that all have
// is listed without, since its cause is not in the list.
func (c *configFlags) LoadStages(
	ctx context.Context, path string, need config.Need,
) ([]*config.Config, error) {
	problems := c.given()
	switch {
	case path == "" && c.cmd.Flags().Changed(stagesFlag):
		// --stages "$FILE" with an unset variable must not start one stage with the
		// settings of the environment.
		return nil, configError(append(problems, fmt.Errorf("--%s: it is empty: give the path of "+
			"a file or directory, or remove it", stagesFlag)))
	case path == "":
		cfg, err := c.Load(ctx, need)
		return []*config.Config{cfg}, err
	}
	if name := config.FlagName("STAGE_NAME"); c.cmd.Flags().Changed(name) {
		problems = append(problems, fmt.Errorf("--%s: each stage of --%s has a name of its own: "+
			"remove it", name, stagesFlag))
	}

	stages, err := config.ReadStages(path)
	problems = appendProblems(problems, err, "--"+stagesFlag+": ")
	var cfgs []*config.Config
	var files []config.EnvFile
	var shared sharedProblems
	for i := range stages {
		cfg, read, found := c.load(ctx, need, &stages[i])
		cfgs, files = append(cfgs, cfg), read
		for _, problem := range found {
			if text := problem.Error(); !stages[i].Follows(text) {
				shared.add(text, stages[i].Label())
			}
		}
	}
	problems = append(problems, shared.list(len(stages), ", stage ")...)
	if len(problems) == 0 {
		problems = appendProblems(problems, config.CheckCycle(cfgs), "")
	}
	if len(problems) > 0 {
		return nil, configError(problems)
	}
	c.exportFiles(files)
	return cfgs, nil
}

// load reads the configuration of a process with one stage, or of one of several. files
// are the values of --env-file.
func (c *configFlags) load(ctx context.Context, need config.Need, stage *config.EnvFile) (
	_ *config.Config, files []config.EnvFile, problems []error,
) {
	values := maps.Clone(c.values)
	maps.DeleteFunc(values,
		func(variable, _ string) bool { return c.refused[config.FlagName(variable)] != "" })
	maps.Copy(values, c.fixed)
	source := config.Source{
		Flags: values, Stage: stage, Environ: c.env.Environ, Defaults: c.defaultsOfFormat(),
		Secrets:  c.env.secrets,
		External: c.external, Context: c.context, AnyInput: c.anyInput, Offline: c.offline,
	}
	if need >= config.NeedPrompt {
		source.More = executor.PromptProblems
	}
	if c.external && c.cmd.Flags().Changed(serverFlag) {
		source.FlagNames = map[string]string{"STAGE_NATS_URL": serverFlag}
	}

	unread := false
	for _, path := range c.envFiles {
		file, err := config.ReadEnvFile(path)
		problems, unread = appendProblems(problems, err, "--env-file: "), unread || err != nil
		source.EnvFiles = append(source.EnvFiles, file)
	}
	if unread { // a setting in an unread file would be reported as missing, too
		return nil, nil, problems
	}
	cfg, err := source.Load(ctx, need)
	return cfg, source.EnvFiles, appendProblems(problems, err, "")
}

// configError returns the error of a configuration that has problems. It lists all of
// them, so that a user does not find the second one only after solving the first:
//
//	the configuration has 2 problems:
//	STAGE_POOL_SIZE (--pool-size): 0 is too small: give 1 or more
//	STAGE_LLM_MODEL: give the model of openai to call
func configError(problems []error) error {
	what := "a problem"
	if len(problems) > 1 {
		what = fmt.Sprintf("%d problems", len(problems))
	}
	return config.Invalid(fmt.Errorf("the configuration has %s:\n%w", what,
		errors.Join(problems...)))
}

// LoadColumns is [configFlags.Load] for each column of try. The settings of a column take
// precedence over the flags. The error names the columns that have a problem, unless all
// have it.
func (c *configFlags) LoadColumns(
	ctx context.Context, names []string, columns []map[string]string, need config.Need,
) ([]*config.Config, error) {
	problems := c.given()
	cfgs := make([]*config.Config, len(columns))
	var shared sharedProblems
	defer func() { c.fixed = nil }()

	for i, settings := range columns {
		c.fixed = settings
		cfg, files, found := c.load(ctx, need, nil)
		for _, problem := range found {
			shared.add(problem.Error(), names[i])
		}
		if cfgs[i] = cfg; cfg != nil {
			c.exportFiles(files)
		}
	}
	problems = append(problems, shared.list(len(columns), ", ")...)
	if len(problems) > 0 {
		return nil, configError(problems)
	}
	return cfgs, nil
}

// sharedProblems groups the problems of several stages or columns by their text.
// Otherwise a problem that ten stages inherit from the environment would be listed ten
// times.
type sharedProblems struct {
	texts []string // in the order in which they were found
	of    map[string][]string
}

func (s *sharedProblems) add(text, name string) {
	if s.of == nil {
		s.of = make(map[string][]string)
	}
	if s.of[text] == nil {
		s.texts = append(s.texts, text)
	}
	s.of[text] = append(s.of[text], name)
}

// list returns the problems, each with the names that have it, unless all do. repeated
// stands between two names and is shortened to a comma: with ", stage ", the names
// "stage a" and "stage b" become "stage a, b".
func (s *sharedProblems) list(all int, repeated string) (problems []error) {
	for _, text := range s.texts {
		if names := s.of[text]; len(names) < all {
			text = strings.ReplaceAll(strings.Join(names, ", "), repeated, ", ") + ": " + text
		}
		problems = append(problems, errors.New(text))
	}
	return problems
}

// appendProblems appends each of the errors that err joins, so that they can be counted
// and listed with others.
func appendProblems(problems []error, err error, prefix string) []error {
	if err == nil {
		return problems
	}
	each := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		each = joined.Unwrap()
	}
	for _, e := range each {
		problems = append(problems, fmt.Errorf("%s%w", prefix, e))
	}
	return problems
}

// exportFiles puts the variables of --env-file that are no settings into the environment
// of the process, for the libraries that read it: OTEL_* for OpenTelemetry, HTTPS_PROXY
// for Go. A variable that the environment has keeps its value.
func (c *configFlags) exportFiles(files []config.EnvFile) {
	for _, file := range files {
		for name, value := range file.Values {
			if !strings.HasPrefix(name, config.VariablePrefix) && c.env.Environ[name] == "" &&
				c.env.Setenv != nil {
				c.env.Setenv(name, value)
			}
		}
	}
}

// configFlag is the value of one flag. It keeps the text, which the configuration decodes.
// So flag and variable are read by the same code.
type configFlag struct {
	flags    *configFlags
	variable string
	kind     string
	text     string
}

// String returns the text of the flag, or its default.
func (v *configFlag) String() string { return v.text }

// Set keeps the text for the configuration.
func (v *configFlag) Set(text string) error {
	v.text = text
	v.flags.values[v.variable] = text
	return nil
}

// Type names the kind of the value, for the help.
func (v *configFlag) Type() string { return v.kind }

// IsBoolFlag reports whether --flag means --flag=true.
func (v *configFlag) IsBoolFlag() bool { return v.kind == "bool" }

func (c *configFlags) addStages() *string {
	path := c.cmd.Flags().String(stagesFlag, "", "`path` of a list of several stages for this "+
		"process: YAML, or a directory with a file *.env for each; above the environment")
	c.complete(stagesFlag, "path", nil)
	return path
}

// batchDefaults are the settings for requests of OpenAI's Batch API. The request is the
// member body of its line, and an answer that ends at the token limit counts as an
// answer.
var batchDefaults = map[string]string{
	"STAGE_REQUEST_FIELD":        "body",
	"STAGE_LLM_ACCEPT_TRUNCATED": "true",
}

// defaultsOfFormat returns the default settings of the command and of the format of its
// input. The command's take precedence.
func (c *configFlags) defaultsOfFormat() map[string]string {
	flag := c.cmd.Flags().Lookup("format")
	if flag == nil || flag.Value.String() != string(rowfile.FormatBatch) {
		return c.defaults
	}
	all := maps.Clone(batchDefaults)
	maps.Copy(all, c.defaults)
	return all
}

// addFormatFlags adds the flags that describe the format of the input.
func addFormatFlags(cmd *cobra.Command, spec *rowfile.Spec) {
	cmd.Flags().StringVar(&spec.Format, "format", "", "format of the input: jsonl, csv, tsv, "+
		"json (an array) or openai-batch (requests of OpenAI's Batch API); default: "+
		"by file name, else by the first lines")
	cmd.Flags().StringVar(&spec.Delimiter, "delimiter", "", "character between the columns of "+
		"CSV, or tab; default: as a first line sep=; says, else a comma, a tab in TSV")
	cmd.Flags().StringVar(&spec.CSVTypes, "csv-types", "string", "values of CSV: string keeps all "+
		"as strings, auto makes numbers, true, false and, of empty ones, null")
	cmd.Flags().BoolVar(&spec.CSVStrict, "csv-strict", false, "a quote within a CSV value that "+
		"does not begin with one (TV 24\") makes a bad row; default: "+
		"it is text, as in Python's csv")
	completeWords(cmd, "format", "jsonl", "csv", "tsv", "json", "openai-batch")
	completeWords(cmd, "delimiter", "tab", ";", "|")
	completeWords(cmd, "csv-types", "auto", "string")
}

// completeWords makes the shell complete a flag, which was added before, with these
// words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("flag --" + flag + ": " + err.Error())
	}
}

// whereJob returns the flags with which stage tail finds the events of a job, to be
// pasted into a shell where this command was given. For example, --job reviews --data-dir
// stage-data.
func (c *configFlags) whereJob(dir string) string {
	words := []string{"--job", filepath.Base(dir), "--data-dir", filepath.Dir(dir)}
	for _, file := range c.envFiles {
		words = append(words, "--env-file", file)
	}
	for _, f := range config.Fields() {
		text, given := c.values[f.Variable]
		if given && (f.Group == "Stage" || f.Group == "Streams and subjects") {
			words = append(words, "--"+config.FlagName(f.Variable)+"="+text)
		}
	}
	for i := range words {
		words[i] = shellWord(words[i])
	}
	return strings.Join(words, " ")
}

// plainWord is a word that no shell changes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord quotes a word for a POSIX shell where that is needed, for example
//
//	it's  ->  'it'\''s'
func shellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Values of --output.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func addOutputFlag(cmd *cobra.Command, words string) *string {
	output := cmd.Flags().StringP("output", "o", formatTable, "how to print it: "+words)
	completeWords(cmd, "output", formatTable, formatJSON)
	return output
}

// checkOutput returns the problem of a value of --output, or nil.
func checkOutput(output string) error {
	if output != formatTable && output != formatJSON {
		return fmt.Errorf("--output %q: it is %s or %s", output, formatTable, formatJSON)
	}
	return nil
}

// completeList makes the shell complete a flag that is a list. After call, it offers
// call,row but not call,call.
func completeList[T ~string](cmd *cobra.Command, flag string, known []T) {
	complete := func(
		_ *cobra.Command, _ []string, typed string,
	) (words []string, _ cobra.ShellCompDirective) {
		before := typed[:strings.LastIndex(typed, ",")+1]
		for _, word := range known {
			if !slices.Contains(strings.Split(before, ","), string(word)) {
				words = append(words, before+string(word))
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic("flag --" + flag + ": " + err.Error()) // it was added before
	}
}

// sinceTime reads the value of --since. It is the zero time for "".
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("--since %q: give a time such as 2006-01-02T15:04:05Z, "+
			"or a duration before now, such as 1h", text)
	}
	return t, nil
}

// colourOf reports whether to colour standard output: on a terminal, unless NO_COLOR is
// set.
func colourOf(env *Env) bool { return terminal.Is(env.Stdout) && env.Environ["NO_COLOR"] == "" }
