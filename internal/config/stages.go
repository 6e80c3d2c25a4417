package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/yamldoc"
	"go.yaml.in/yaml/v4"
)

const (
	// stagesMax bounds the stages of one process.
	stagesMax = 32
	// stagesBytesMax bounds the file that lists them. Templates may be in it.
	stagesBytesMax = 4 << 20
	// stagesProblems bounds how many problems are listed.
	stagesProblems = 20
)

// processGroups are the groups of settings that all stages of a process share. One of
// them in the settings of a single stage is an error: it would apply to the other stages,
// too.
var processGroups = []string{"NATS", "Embedded server", "Operation"}

// ReadStages reads the settings of the stages of one process. Each is what [Source.Stage]
// takes, with the line of each value. path is one of three:
//
// A YAML file with a list. Each entry is a map for a stage, from names of variables
// without their prefix, in lower case, to texts, numbers, booleans or nothing, which is
// unset:
//
//   - name: extract
//     pool_size: 32
//     llm_api_key_file: /run/secrets/openai
//   - name: judge
//
// A YAML file with a map. It has that list as its member stages, and may have
// max_concurrency beside it, the most calls in flight of all stages at one account:
//
//	max_concurrency: 40
//	stages:
//	  - name: extract
//
// A directory. Each of its files *.env has the variables of one stage (see
// [ReadEnvFile]), in the order of the files' names.
//
// Each stage has a name of its own, and no setting of the process as a whole. There are
// at most 32 stages. The error lists all problems by file, line and entry, and repeats no
// value. The stages that could be read are returned with the error, so that the problems
// of their values can be found in the same round.
func ReadStages(path string) ([]EnvFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, plainPathError(err)
	}
	read := readStagesFile
	if info.IsDir() {
		read = readStagesDir
	}
	stages, problems := read(path)
	if len(problems) == 0 || len(stages) > 0 {
		more, possible := checkStages(path, stages)
		if problems = append(problems, more...); !possible {
			stages = nil
		}
	}
	if more := len(problems) - stagesProblems; more > 0 {
		problems = append(problems[:stagesProblems],
			fmt.Errorf("%s: and %d more problems", path, more))
	}
	return stages, errors.Join(problems...)
}

// checkStages checks that each stage has a name of its own. possible is false if the
// number of stages is not: then no stage is worth a further look.
func checkStages(path string, stages []EnvFile) (problems []error, possible bool) {
	switch {
	case len(stages) == 0:
		return []error{fmt.Errorf("%s: no stage: write a list, - name: "+
			"first, or give a directory with a file first.env for each stage", path)}, false
	case len(stages) > stagesMax:
		return []error{fmt.Errorf("%s: %d stages, at most %d can run in one process: "+
			"start several", path, len(stages), stagesMax)}, false
	}
	first := make(map[string]string) // where each name is, by name
	for i := range stages {
		s := &stages[i]
		name := s.Values["STAGE_NAME"]
		where := s.where("STAGE_NAME")
		switch {
		case s.bad["STAGE_NAME"]:
		case name == "":
			if s.bad == nil {
				s.bad = make(map[string]bool)
			}
			s.bad["STAGE_NAME"] = true
			problems = append(problems, fmt.Errorf("%s: it has no name: give each stage one of "+
				"its own", s.label))
		case first[name] != "":
			problems = append(problems, fmt.Errorf("%s: the name %s is that of another stage, %s: "+
				"give each one of its own", where, name, first[name]))
		default:
			first[name] = where
		}
	}
	return problems, true
}

// readStagesDir reads the files *.env of a directory.
func readStagesDir(dir string) (stages []EnvFile, problems []error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, []error{plainPathError(err)}
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if filepath.Ext(path) != ".env" || e.IsDir() {
			continue
		}
		file, err := ReadEnvFile(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		file.label = path

		for _, variable := range slices.Sorted(maps.Keys(file.Values)) {
			if why := notOfAStage(variable, func(v string) string { return v }); why != "" {
				problems = append(problems,
					fmt.Errorf("%s: %s: %s", file.where(variable), variable, why))
			}
		}
		stages = append(stages, file)
	}
	return stages, problems
}

// readStagesFile reads a YAML file.
func readStagesFile(path string) (stages []EnvFile, problems []error) {
	text, err := readBounded(path, stagesBytesMax)
	if err != nil {
		return nil, []error{err}
	}
	list, err := yamldoc.Parse(text)
	switch {
	case err != nil:
		return nil, []error{yamlError(path, text, err)}
	case list == nil:
		return nil, nil
	case list.Kind == yaml.MappingNode:
		limit, inner, problems := readProcess(path, list)
		if len(problems) > 0 || inner == nil {
			return nil, problems
		}
		stages, problems = readList(path, inner)
		for i := range stages {
			stages[i].maxConcurrency = limit
		}
		return stages, problems
	case list.Kind != yaml.SequenceNode:
		return nil, []error{fmt.Errorf("%s line %d: not a list: begin each stage with a dash, "+
			"- name: first", path, list.Line)}
	}
	return readList(path, list)
}

// readProcess reads a map: the list of stages in it, and the settings of the whole
// process beside that.
func readProcess(path string, m *yaml.Node) (limit int, list *yaml.Node, problems []error) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		problem := func(text string) {
			problems = append(problems,
				fmt.Errorf("%s line %d: %s: %s", path, key.Line, key.Value, text))
		}
		switch key.Value {
		case "stages":
			if list = value; value.Kind != yaml.SequenceNode {
				problem("not a list: begin each stage with a dash, - name: first")
			}
		case "max_concurrency":
			text, why := scalar(value)
			n, err := strconv.Atoi(text)
			if limit = n; why != "" || err != nil || n < 1 || n > 10_000 {
				problem("give the most calls in flight of all stages at one account, 1 to 10000")
			}
		default:
			problem("not a list of stages: begin each with a dash, - name: " +
				"first; or give the list as stages, beside max_concurrency")
		}
	}
	if list == nil && len(problems) == 0 {
		problems = append(problems, fmt.Errorf("%s line %d: stages: it is missing: "+
			"give the list of stages", path, m.Line))
	}
	return limit, list, problems
}

// readList reads the entries of a list of stages.
func readList(path string, list *yaml.Node) (stages []EnvFile, problems []error) {
	for i, settings := range list.Content {
		label := fmt.Sprintf("%s line %d: entry %d", path, settings.Line, i+1)
		if settings.Kind != yaml.MappingNode {
			problems = append(problems,
				fmt.Errorf("%s: not a map of settings: write name: value", label))
			continue
		}
		stage := EnvFile{
			Path: path, Values: make(map[string]string), lines: make(map[string]int),
			label: label, bad: make(map[string]bool),
		}
		problems = append(problems, stage.readSettings(settings, i+1)...)
		stages = append(stages, stage)
	}
	return stages, problems
}

// readSettings reads the settings of one entry of a YAML file. A setting that can't be
// read is noted in bad, so that problems which follow from its absence are left out.
func (f *EnvFile) readSettings(settings *yaml.Node, entry int) (problems []error) {
	for i := 0; i+1 < len(settings.Content); i += 2 {
		key, at := settings.Content[i].Value, settings.Content[i].Line
		variable := VariablePrefix + strings.ToUpper(key)
		value, why := scalar(settings.Content[i+1])
		if unknown := notOfAStage(variable, settingName); unknown != "" {
			why = unknown
		} else if key != settingName(variable) {
			why = "write it in lower case: " + settingName(variable)
		}
		if why != "" {
			f.bad[cmp.Or(Nearest(variable, suggestible(knownVariables())), variable)] = true
			problems = append(problems,
				fmt.Errorf("%s line %d: entry %d: %s: %s", f.Path, at, entry, key, why))
			continue
		}
		f.Values[variable], f.lines[variable] = value, at
	}
	return problems
}

// settingName returns the name that a variable has in a list of stages.
func settingName(variable string) string {
	return strings.ToLower(strings.TrimPrefix(variable, VariablePrefix))
}

// notOfAStage returns why a variable can't be set for one stage of a process, or "" if it
// can. name turns a variable into its name in this file, for the text.
func notOfAStage(variable string, name func(variable string) string) string {
	known := knownVariables()
	f := known[variable]
	switch {
	case f != nil && slices.Contains(processGroups, f.Group):
		return fmt.Sprintf("it belongs to the process, which all stages share: "+
			"set %s in the environment, or give --%s", variable, FlagName(f.FlagVariables()[0]))
	case f != nil:
		return ""
	case !strings.HasPrefix(variable, VariablePrefix):
		return "it belongs to the process, which all stages share: " +
			"set it in the environment, or in a file given by --env-file"
	}
	if near := Nearest(variable, suggestible(known)); near != "" {
		return fmt.Sprintf("unknown setting, did you mean %s?", name(near))
	}
	return "unknown setting: remove it; stage help settings lists all variables"
}

// scalar returns the text of a value as it was written: 007 stays 007, and yes stays yes.
// why is the problem of a value that is no text, number or boolean.
func scalar(n *yaml.Node) (text, why string) {
	switch {
	case n.Anchor != "" || n.Kind == yaml.AliasNode || yamldoc.IsTagged(n):
		return "", "anchors, aliases and tags are not supported: " +
			"what stages have in common goes into the environment"
	case n.Kind != yaml.ScalarNode:
		return "", "its value is nested: write it as one text, in quotes, as the variable has it"
	case yamldoc.IsNull(n):
		return "", ""
	}
	return n.Value, ""
}

// yamlError adds the file to an error of the parser. The text around the place is left
// out, as it may hold secrets. The usual mistake is a template, or JSON, without quotes:
// YAML reads its braces as a map.
func yamlError(path string, text []byte, err error) error {
	e, ok := errors.AsType[*yamldoc.Error](err)
	if !ok || e.Line == 0 {
		return fmt.Errorf("%s: %w", path, err)
	}
	if lines := strings.Split(string(text), "\n"); e.Line <= len(lines) &&
		strings.Contains(lines[e.Line-1], "{") {
		e.Hint = "put a template or JSON into quotes, or into a block (|)"
	}
	return fmt.Errorf("%s %w", path, e)
}
