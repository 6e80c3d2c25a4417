package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// origin is where the value of a variable came from: one of these constants, the path of
// a file, or a context.
type origin string

const (
	fromDefault origin = "default"
	fromEnviron origin = "environment"
	fromFlag    origin = "flag"
)

// layer is one source of values.
type layer struct {
	from   origin
	values map[string]string // by variable
	// label returns what problems name besides the variable, for example "--pool-size" or
	// "prod.env line 3". It may be nil.
	label func(variable string) string
	cli   bool // these are settings of the nats CLI
}

// layers are all sources of values, the strongest first. For example, with --pool-size 8
// and STAGE_POOL_SIZE=4 the first layer has 8 and the second 4, and find returns 8.
type layers []layer

// find returns the text of a variable and the layer that it comes from, or nil if it is
// unset. An empty text counts as unset, with one exception: an empty flag hides all
// weaker layers and brings back the default. So --llm-base-url "" undoes
// STAGE_LLM_BASE_URL.
//
// A variable may have an alternative, for example STAGE_TEMPLATE and STAGE_TEMPLATE_FILE.
// A layer that gives the alternative hides this variable in the weaker layers: with
// --template-file and STAGE_TEMPLATE the flag wins, and both are not set.
func (ls layers) find(variable string) (string, *layer) {
	others := alternatives(variable)
	for i := range ls {
		l := &ls[i]
		text, given := l.values[variable]
		switch {
		case text != "":
			return text, l
		case given && l.from == fromFlag:
			if last := &ls[len(ls)-1]; last.from == fromDefault {
				return last.values[variable], l
			}
			return "", l
		case slices.ContainsFunc(others, func(other string) bool { return l.values[other] != "" }):
			return "", nil
		}
	}
	return "", nil
}

// lookup finds the text of a variable, as go-envconfig asks for it.
func (ls layers) lookup(variable string) (string, bool) {
	text, _ := ls.find(variable)
	return text, text != ""
}

// origin returns where the value of the variable comes from.
func (ls layers) origin(variable string) origin {
	if _, l := ls.find(variable); l != nil {
		return l.from
	}
	return fromDefault
}

// name returns the variable, and where the user has set it: STAGE_POOL_SIZE
// (--pool-size).
func (ls layers) name(variable string) string {
	_, l := ls.find(variable)
	if l == nil || l.label == nil {
		return variable
	}
	return variable + " (" + l.label(variable) + ")"
}

// names reports whether any layer gives the variable a value.
func (ls layers) names(variables ...string) bool {
	return slices.ContainsFunc(ls, func(l layer) bool {
		return slices.ContainsFunc(variables, func(v string) bool { return l.values[v] != "" })
	})
}

// given reports whether a variable with the prefix has a value other than by default.
func (ls layers) given(prefix string) bool {
	return slices.ContainsFunc(Fields(), func(f *Field) bool {
		_, l := ls.find(f.Variable)
		return strings.HasPrefix(f.Variable, prefix) && l != nil && l.from != fromDefault &&
			l.values[f.Variable] != ""
	})
}

// layer returns the values of the file as a source.
func (f *EnvFile) layer() layer {
	return layer{
		from: origin(f.Path), values: f.Values,
		label: func(v string) string { return f.where(v) },
	}
}

// layers returns the sources in order:
//
//   - flags,
//   - the settings of one stage of several,
//   - a context named by --context,
//   - the environment,
//   - the environment files, the last one first,
//   - the nats CLI's own variables, and its context,
//   - the defaults of the command.
//
// ctx is the context in use, or nil.
func (s Source) layers(found *problems) (all layers, ctx *NATSContext) {
	all = layers{{from: fromFlag, values: s.Flags, label: s.flagLabel}}
	if s.Stage != nil {
		all = append(all, s.Stage.layer())
	}
	below := layers{{from: fromEnviron, values: s.Environ}}
	for _, file := range slices.Backward(s.EnvFiles) {
		below = append(below, file.layer())
	}
	if s.External {
		all, below, ctx = s.connection(all, below, found)
	}
	all = append(all, below...)
	return append(all, layer{from: fromDefault, values: s.Defaults}), ctx
}

// flagLabel returns the flag of a variable as it was given.
func (s Source) flagLabel(variable string) string {
	return "--" + cmp.Or(s.FlagNames[variable], FlagName(variable))
}

// environ returns the environment, completed by the files. An empty variable of the
// environment does not hide the value of a file.
func (s Source) environ() map[string]string {
	if len(s.EnvFiles) == 0 {
		return s.Environ
	}
	merged := make(map[string]string)
	for _, file := range s.EnvFiles {
		maps.Copy(merged, file.Values)
	}
	for name, value := range s.Environ {
		if value != "" || merged[name] == "" {
			merged[name] = value
		}
	}
	return merged
}

// connection adds the settings of the nats CLI to both groups of layers. strong are the
// layers above the environment, weak are the environment and below.
//
// A connection is one thing: the login for one server must not go to another that nobody
// meant it for. So below a context of --context, and below a store that a flag names, no
// setting of a connection counts. A server that any layer names keeps out the selected
// context. The context of NATS_CONTEXT gives its login to such a server all the same, as
// in the nats CLI, unless a layer above it has a login.
func (s Source) connection(
	all, below layers, found *problems,
) (strong, weak layers, ctx *NATSContext) {
	switch {
	case s.Context != "":
		ctx = s.readContext("--context", s.Context, found)
		return append(all, without(apiVariables, ctx.layer(), all)), withoutNATS(below), ctx
	case s.Flags["STAGE_NATS_URL"] == "" && s.Flags["STAGE_DATA_DIR"] != "":
		return all, withoutNATS(below), nil
	}
	if url, given := s.Flags["STAGE_NATS_URL"]; given && url == "" { // the embedded server
		return all, withoutNATS(below), nil
	}

	above := slices.Concat(all, below)
	below = append(below, s.cliVariables(above))
	named := slices.Concat(all, below).names("STAGE_NATS_URL")
	if name := s.environ()["NATS_CONTEXT"]; name != "" {
		ctx = s.readContext("NATS_CONTEXT", name, found)
	} else if !named && !above.names("STAGE_DATA_DIR") {
		ctx = s.selectedContext(found)
	}
	if ctx != nil {
		above := slices.Concat(all, below)
		below = append(below,
			without(apiVariables, without(loginVariables, ctx.layer(), above), above))
	} else if !named {
		below = below[:len(below)-1] // a login alone names no server
	}
	return all, below, ctx
}

// withoutNATS returns the layers without settings of the connection. It copies the maps,
// which belong to the caller of [Source.Load].
func withoutNATS(all layers) layers {
	for i := range all {
		all[i].values = maps.Clone(all[i].values)
		maps.DeleteFunc(all[i].values, func(variable, _ string) bool {
			return strings.HasPrefix(variable, VariablePrefix+"NATS_")
		})
	}
	return all
}

// loginVariables are what logs in to NATS. A login is one thing: parts of two sources
// don't make one.
var loginVariables = []string{
	"STAGE_NATS_CREDS", "STAGE_NATS_NKEY", "STAGE_NATS_TOKEN", "STAGE_NATS_USER",
	"STAGE_NATS_PASSWORD", "STAGE_NATS_TOKEN" + FileSuffix, "STAGE_NATS_PASSWORD" + FileSuffix,
}

// apiVariables say where the API of JetStream is. Only one of them may be set, so one of
// an upper layer hides both.
var apiVariables = []string{"STAGE_NATS_JS_DOMAIN", "STAGE_NATS_JS_PREFIX"}

// without returns the layer without these variables, if a layer above has one of them.
// Then the variables of the weaker layer would complete, or contradict, the stronger
// one's.
func without(variables []string, l layer, above layers) layer {
	if above.names(variables...) {
		l.values = maps.Clone(l.values)
		maps.DeleteFunc(l.values,
			func(variable, _ string) bool { return slices.Contains(variables, variable) })
	}
	return l
}

// cliVariables returns what the nats CLI reads from the environment, under the names of
// the stage: NATS_CREDS, for example, as STAGE_NATS_CREDS.
func (s Source) cliVariables(above layers) layer {
	own := map[string]string{
		"STAGE_NATS_URL":      "NATS_URL",
		"STAGE_NATS_CREDS":    "NATS_CREDS",
		"STAGE_NATS_NKEY":     "NATS_NKEY",
		"STAGE_NATS_USER":     "NATS_USER",
		"STAGE_NATS_PASSWORD": "NATS_PASSWORD",
		"STAGE_NATS_TOKEN":    "NATS_TOKEN",
		"STAGE_NATS_TLS_CA":   "NATS_CA",
		"STAGE_NATS_TLS_CERT": "NATS_CERT",
		"STAGE_NATS_TLS_KEY":  "NATS_KEY",
	}
	environ, values := s.environ(), make(map[string]string)
	for variable, name := range own {
		values[variable] = environ[name]
	}

	// The nats CLI takes a user without a password for a token.
	if values["STAGE_NATS_USER"] != "" && values["STAGE_NATS_PASSWORD"] == "" {
		values["STAGE_NATS_TOKEN"] = cmp.Or(values["STAGE_NATS_TOKEN"], values["STAGE_NATS_USER"])
		values["STAGE_NATS_USER"] = ""
	}
	cli := layer{
		from: "NATS_*", values: values, cli: true,
		label: func(variable string) string { return own[variable] },
	}
	return without(loginVariables, cli, above)
}
