package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/answers"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/files/preview"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// formatHTML is a value of --output.
const formatHTML = "html"

// addCallFlags adds the flags of try --call.
func (t *tryFlags) addCallFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.call, "call", false, fmt.Sprintf("make the calls, and compare the "+
		"answers: at most %d rows and %d columns", answers.RowsMax, answers.ColumnsMax))
	cmd.Flags().StringArrayVar(&t.models, "model", nil,
		"with --call: `name` of a model (STAGE_LLM_MODEL); repeated: one column each")
	cmd.Flags().StringArrayVar(&t.columns, "column", nil, "with --call: `settings` of a column, "+
		"as STAGE_LLM_MODEL=m,STAGE_LLM_TEMPERATURE=0, or the path of a file of them; NAME: "+
		"before it names the column; may be repeated and combined with --model")
	cmd.Flags().StringVar(&t.expect, "expect", "", "with --call: `field.NAME`, "+
		"the member of the rows with the known answer; field.NAME=MEMBER compares it with a "+
		"member of answers that are objects")
	cmd.Flags().StringVar(&t.job, "job", "", "with --call: name of the job of process that finds "+
		"the replies; default: the one that process gives the file")
}

// compare is try --call. It loads the configuration of each column, and asks all models
// for the same rows.
func (t *tryFlags) compare(cmd *cobra.Command, input string) error {
	t.in.Name = input
	most := max(t.in.Rows, t.in.Sample)
	if most > answers.RowsMax {
		return config.Invalid(fmt.Errorf("%d rows: --call answers at most %d; "+
			"stage process answers all of them", most, answers.RowsMax))
	}

	c := answers.Config{Input: input, Mock: llmtest.Config{}.Start, Console: t.env.Stderr}
	var err error
	if t.expect != "" {
		if c.Expect, err = answers.ParseExpected(t.expect); err != nil {
			return config.Invalid(err)
		}
	}
	if *t.output == formatHTML && terminal.Is(t.env.Stdout) {
		return config.Invalid(errors.New("-o html: standard output is a terminal: " +
			"write the page into a file, as in stage try … -o html >page.html"))
	}
	if c.Columns, err = t.readColumns(); err != nil {
		return config.Invalid(err)
	}

	onServer := slices.ContainsFunc(append(flagsOf(groupNATS), serverFlag, contextFlag),
		cmd.Flags().Changed)
	if onServer && t.job != "" {
		return config.Invalid(errors.New("--job: a job of process has a store of its own, " +
			"and no server: remove it, or the flags of the server"))
	}
	// A server in the environment is meant for other commands. If the replies were stored
	// there, the job would not find them.
	t.flags.external = onServer

	names, settings := make([]string, len(c.Columns)), make([]map[string]string, len(c.Columns))
	for i, column := range c.Columns {
		names[i], settings[i] = column.Name, column.Settings
	}
	cfgs, err := t.flags.LoadColumns(cmd.Context(), names, settings, config.NeedCalls)
	if err != nil {
		return err
	}
	for i := range c.Columns {
		c.Columns[i].Config, c.Columns[i].Settings = cfgs[i], shownSettings(settings[i])
	}

	if t.env.LimitMemory != nil {
		t.env.LimitMemory(2 * stage.EmbeddedMemory) // for the rows' server, and the replies'
	}
	soft, hard, stop := t.env.Contexts(cmd.Context())
	defer stop()
	return t.run(soft, hard, c, onServer)
}

// run reads the rows, opens the store of replies, calls, and prints the answers of the
// columns.
func (t *tryFlags) run(soft, hard context.Context, c answers.Config, onServer bool) error {
	rows, source, err := t.in.Read(soft)
	if err != nil {
		return err
	}
	defer source.File.Close() //nolint:errcheck // read only
	if c.Files = source.Beside(); c.Files != nil {
		defer c.Files.Close() //nolint:errcheck // read only
	}
	c.Rows = rows
	if t.in.Sample > 0 {
		c.Seed = &t.in.Seed
	}
	if err := c.Check(); err != nil {
		return config.Invalid(err)
	}

	console := terminal.NewConsole(t.env.Stderr)
	cfg := c.Columns[0].Config
	c.Logger = logging.NewConfigured(cfg, console)
	defer logging.Flush(c.Logger)
	var kept string
	if c.Replies, kept, err = t.openReplies(soft, cfg, onServer, &c); err != nil {
		return err
	}
	if c.Replies != nil {
		defer c.Replies.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
	}

	bar := terminal.NewBar(hard, t.env.Stderr, int64(len(rows)), 0,
		func(int64, bool) terminal.Beside { return terminal.Beside{} })
	console.Show(bar)
	c.Answered = func(n int64) { bar.Set(n / int64(len(c.Columns))) }

	report, err := answers.Run(soft, hard, c)
	bar.Finish()
	if report == nil {
		return err
	}
	if problem := t.write(report); problem != nil {
		return problem
	}
	if slices.ContainsFunc(report.Columns,
		func(c answers.ColumnReport) bool { return c.Answered > 0 }) {
		terminal.PrintLine(t.env.Stderr, "%s", kept)
	}
	return err
}

// openReplies connects to the store of replies: that of the job that process would make
// of the file, or a server. So a job that follows does not pay for the same rows again.
// The connection is nil for standard input without --job. kept is the line that says how
// to use the replies.
func (t *tryFlags) openReplies(
	ctx context.Context, cfg *config.Config, onServer bool, c *answers.Config,
) (_ *natsconn.Conn, kept string, err error) {
	own := *cfg
	if onServer {
		conn, err := natsconn.ConnectReader(ctx, &own, own.Data.Dir, false, c.Logger)
		return conn, fmt.Sprintf("the replies are kept on the server for %v: "+
			"a stage with STAGE_DEDUPE=stored does not pay for these rows again",
			cfg.Rows.DedupeTTL), err
	}
	dir, err := job.StoreOf(cfg, t.job, c.Input)
	if dir == "" || err != nil {
		return nil, "the replies are not kept: name the job that is to find them with --job", err
	}
	own.UseStore(dir)
	name := ""
	if t.job != "" {
		name = " --job " + shellWord(t.job)
	}
	conn, err := natsconn.ConnectReader(ctx, &own, dir, true, c.Logger)
	return conn, fmt.Sprintf("the replies are kept for %v: stage process %s%s --dedupe stored, "+
		"with the settings of a column, does not pay for these rows again", cfg.Rows.DedupeTTL,
		shellWord(c.Input), name), err
}

func (t *tryFlags) write(report *answers.Report) error {
	switch *t.output {
	case formatJSON:
		return terminal.WriteJSON(t.env.Stdout, report)
	case formatHTML:
		return report.WriteHTML(t.env.Stdout)
	}
	return report.WriteTable(t.env.Stdout, terminal.Width(t.env.Stdout))
}

// readColumns returns the columns that the flags name: each template with each model and
// each --column. For example, two templates and three models are six columns. A setting
// with an empty text is unset in that column.
func (t *tryFlags) readColumns() ([]answers.Column, error) {
	var templates, others []answers.Column
	var problems []error
	for _, text := range t.templates {
		name, file, err := preview.NameTemplate(text)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		variable := "STAGE_TEMPLATE"
		if file {
			variable = "STAGE_TEMPLATE_FILE"
		}
		templates = append(templates, templateColumn(name, variable, text))
	}

	for _, path := range t.files {
		templates = append(templates, templateColumn(path, "STAGE_TEMPLATE_FILE", path))
	}
	for _, model := range t.models {
		others = append(others,
			answers.Column{Name: model, Settings: map[string]string{"STAGE_LLM_MODEL": model}})
	}
	for _, text := range t.columns {
		column, err := parseColumn(text)
		problems = appendProblems(problems, err, "--column: ")
		others = append(others, column)
	}

	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	switch {
	// Without any of the flags there is one column, with the settings of the command.
	case len(templates)+len(others) == 0:
		return []answers.Column{{Name: "as configured"}}, nil
	case len(templates) == 0:
		return named(others), nil
	case len(others) == 0:
		return named(templates), nil
	}
	if len(templates)*len(others) > answers.ColumnsMax {
		return nil, fmt.Errorf("%s with %d models and columns are %d columns: "+
			"--call compares at most %d", terminal.Plural(len(templates), "template"), len(others),
			len(templates)*len(others), answers.ColumnsMax)
	}

	var all []answers.Column
	for _, template := range templates {
		for _, other := range others {
			settings := maps.Clone(template.Settings)
			// The template of a --column takes precedence over --template.
			maps.Copy(settings, other.Settings)

			// A name has only the parts that distinguish the columns.
			name := template.Name + ", " + other.Name
			switch {
			case len(templates) == 1:
				name = other.Name
			case len(others) == 1:
				name = template.Name
			}
			all = append(all, answers.Column{Name: name, Settings: settings})
		}
	}
	return named(all), nil
}

// templateColumn returns the column of a template. It unsets all other sources of the
// prompt, of which only one may be set.
func templateColumn(name, variable, text string) answers.Column {
	settings := make(map[string]string)
	for _, other := range config.PromptSources {
		settings[other] = ""
	}
	settings[variable] = text
	return answers.Column{Name: name, Settings: settings}
}

// named numbers columns of equal names: m, m (2), m (3).
func named(columns []answers.Column) []answers.Column {
	seen := make(map[string]int)
	for i := range columns {
		name := columns[i].Name
		if seen[name]++; seen[name] > 1 {
			columns[i].Name = fmt.Sprintf("%s (%d)", name, seen[name])
		}
	}
	return columns
}

// groupsOfColumns are the groups of settings that may differ between columns, since an
// answer depends on them. The others are the same for the whole command.
var groupsOfColumns = []string{"LLM", "Providers of fallbacks", "Prompt and result"}

// parseColumn reads a value of --column: settings separated by commas, or the path of a
// file of them, after an optional name and a colon. For example,
// cold:STAGE_LLM_TEMPERATURE=0.
func parseColumn(text string) (answers.Column, error) {
	column := answers.Column{Name: text}
	if name, rest, ok := strings.Cut(text, ":"); ok && name != "" &&
		!strings.HasPrefix(text, config.VariablePrefix) {
		if _, err := os.Stat(text); err != nil { // a file may have a colon in its name
			column.Name, text = name, rest
		}
	}

	fromFile := !strings.HasPrefix(text, config.VariablePrefix)
	if fromFile {
		file, err := config.ReadEnvFile(text)
		if err != nil {
			return column, fmt.Errorf("%q: give settings, as "+
				"STAGE_LLM_MODEL=m,STAGE_LLM_TEMPERATURE=0, or a file of them: %w", text, err)
		}
		column.Settings = file.Values
	} else {
		column.Settings = make(map[string]string)

		var shown []string
		// A value may have commas, so only a comma before STAGE_ separates.
		for i, pair := range strings.Split(text, ","+config.VariablePrefix) {
			if i > 0 {
				pair = config.VariablePrefix + pair
			}
			variable, value, ok := strings.Cut(pair, "=")
			if !ok {
				return column, fmt.Errorf("%q: a setting has the form STAGE_LLM_MODEL=m", pair)
			}
			column.Settings[variable] = value
			if f := fieldOf(variable); f != nil && f.Secret && variable == f.Variable {
				pair = variable + "=…" // the page goes to others
			}
			shown = append(shown, pair)
		}
		if column.Name == text {
			column.Name = strings.Join(shown, ",")
		}
	}
	var problems []error

	for _, variable := range slices.Sorted(maps.Keys(column.Settings)) {
		switch f := fieldOf(variable); {
		case f == nil:
			problems = append(problems, fmt.Errorf("%s is no setting: stage help settings lists "+
				"all", variable))
		case !slices.Contains(groupsOfColumns, f.Group):
			problems = append(problems, fmt.Errorf("%s is the same in all columns: "+
				"set it for the command, in the environment or by --%s", variable,
				config.FlagName(variable)))
		case !fromFile && f.Secret && variable == f.Variable &&
			f.Variable != "STAGE_LLM_EXTRA_BODY":
			problems = append(problems, fmt.Errorf("%s shows in the list of processes: "+
				"put it into a file, and name that", variable))
		}
	}
	if slices.ContainsFunc(config.PromptSources,
		func(variable string) bool { return column.Settings[variable] != "" }) {
		for _, variable := range config.PromptSources {
			if _, set := column.Settings[variable]; !set {
				column.Settings[variable] = "" // this column's prompt replaces the command's
			}
		}
	}
	return column, errors.Join(problems...)
}

// fieldOf returns the field that a variable sets, by value or by file, or nil.
func fieldOf(variable string) *config.Field {
	for _, f := range config.Fields() {
		if slices.Contains(f.FlagVariables(), variable) || f.Variable == variable {
			return f
		}
	}
	return nil
}

// shownSettings returns the settings of a column for the report: without those that it
// unsets, and without secrets, since a report is passed on.
func shownSettings(settings map[string]string) map[string]string {
	shown := maps.Clone(settings)
	maps.DeleteFunc(shown, func(variable, value string) bool {
		f := fieldOf(variable)
		return value == "" || f == nil || f.Secret && variable == f.Variable
	})
	return shown
}
