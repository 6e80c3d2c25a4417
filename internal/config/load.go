package config

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/sethvargo/go-envconfig"
)

// Need is what a command requires of the configuration, beyond that it is valid.
type Need uint8

const (
	// NeedNothing is for commands that call no LLM.
	NeedNothing Need = iota
	// NeedPrompt is for commands that render prompts: the template is required.
	NeedPrompt
	// NeedCalls is for commands that call the LLM: template, model and key are required.
	NeedCalls
)

// Source is where the values of a configuration come from, the strongest first. The maps
// go from the name of a variable (STAGE_POOL_SIZE) to its text. Any of them may be nil,
// and none is changed.
type Source struct {
	Flags map[string]string // values given by flag; they take precedence, even when empty
	// Stage has the settings of one of several stages in the process, see [ReadStages].
	// It is nil in a process with one stage.
	Stage    *EnvFile
	Environ  map[string]string // the whole environment, including variables of other programs
	EnvFiles []EnvFile         // below the environment; a later file takes precedence
	// Defaults are those of one command. They take precedence over the documented ones.
	Defaults map[string]string

	// External adds, for a command that connects to NATS, the settings of the nats CLI:
	// its variables (NATS_URL and others), and its context. That is the context named
	// Context, or the one in NATS_CONTEXT, or the selected one if nothing names a server
	// or a store.
	External bool
	// Context is the name of a context, or the path of its file. It replaces the settings
	// of the connection below the flags.
	Context string

	// AnyInput accepts an input subject without a place for the partition, with any
	// number of partitions: for a command that reads results or the audit, and no input.
	AnyInput bool

	// Offline accepts an incomplete login, and files that can't be read: for a command
	// that opens neither a connection nor these files. It may run before the login
	// exists, or on another machine than the stage.
	Offline bool

	// More finds further problems, of settings that have none yet, and returns them by
	// variable; each error may join several. Such problems take more than reading the
	// settings, for example a template that does not compile. More is called only if
	// there are other problems, so that all are listed at once and do not come up only
	// after the others are solved. It may be nil.
	More func(*Config) map[string]error

	FlagNames map[string]string // flags that have another name than their variable, by variable
	Secrets   *Secrets          // collects the secrets, in a new collection where it is nil
}

// Load reads and checks the configuration. The error joins all problems, each with the
// name of its variable, in the order of the fields of [Config]; unknown variables come
// last, by name. Load reads the files that hold secrets, and opens the other files to see
// that they can be read.
//
// The steps depend on each other: the layers say where a value comes from; the fields are
// decoded; the secrets are gathered, so that no problem can repeat one; defaults that
// depend on other values are filled in; and then everything is checked.
func (s Source) Load(ctx context.Context, need Need) (*Config, error) {
	c := &Config{
		from: provenance{
			origins:  make(map[string]origin),
			anyInput: s.AnyInput, offline: s.Offline, external: s.External,
		},
		secrets: cmp.Or(s.Secrets, new(Secrets)),
	}
	if s.Stage != nil {
		c.maxConcurrency = s.Stage.maxConcurrency
	}

	found := newProblems()
	found.layers, c.from.context = s.layers(found)
	for _, f := range Fields() {
		found.layers.loadField(ctx, c, f, found)
	}

	environ := s.environ()
	earlier := c.secrets.again // gathers those of the other stages of the process
	c.secrets.again = func() {
		if earlier != nil {
			earlier()
		}
		c.secrets.gather(c, environ)
	}
	c.secrets.Renew()

	s.unknownVariables(found)
	if _, l := found.layers.find("STAGE_NATS_URL"); l != nil && l.cli {
		c.from.server = l.label("STAGE_NATS_URL")
	}
	c.from.laneSet = found.layers.given(lanePrefix)

	c.fillDefaults(found.layers)
	s.checkStore(c, found)
	(&checker{c, found, need}).all()
	if s.Offline {
		found.forgetOpening()
	}

	if need == NeedCalls {
		c.telemetry = loadTelemetry(environ, found)
	}
	if s.More != nil && len(found.byVariable) > 0 {
		found.addMore(s.More(c))
	}
	if err := found.join(c.secrets); err != nil {
		return nil, err
	}
	return c, nil
}

// Validate checks a configuration that was changed after it was loaded. Its error is like
// the one of [Source.Load].
func (c *Config) Validate(need Need) error {
	found := newProblems()
	(&checker{c, found, need}).all()
	return found.join(nil)
}

const (
	// spanWindows is how many windows of rows may be taken above the low-water mark: a
	// user who needs more room beside a row that waits raises the window. For example, a
	// window of 1,024 rows allows 65,536. spanMax bounds their memory, 16 to 150 bytes
	// each.
	spanWindows = 64
	spanMax     = 1_000_000
	// embedWindows is how many times the rows of all calls in flight the window has where
	// rows share calls. For example, a pool of 8 with 64 rows a call has 512 rows in
	// flight and a window of 2,048: as many gather for the next calls, and the others
	// wait for an earlier row, or to be stored. windowMax is the most that STAGE_WINDOW
	// may be.
	embedWindows = 4
	windowMax    = 50_000
	// mockPoll is the time between two looks at a batch of the built-in LLM, which nobody
	// has to spare.
	mockPoll = time.Second
)

// fillDefaults fills in the defaults that depend on other values, where the user has set
// none. For example, STAGE_STOP_TIMEOUT is 150s with the default STAGE_LLM_TIMEOUT=120s.
// It also completes the first provider from its own variables and its built-in values.
func (c *Config) fillDefaults(given layers) {
	unset := func(variable string) bool { return !given.names(variable) }
	// A time-out that is not valid is one mistake, not two.
	if unset("STAGE_STOP_TIMEOUT") && c.LLM.Timeout > 0 {
		c.Process.StopTimeout = c.LLM.Timeout + c.LLM.Timeout/4 // for the results of the last calls
	}
	if c.Embeds() && unset("STAGE_WINDOW") {
		c.Window.Rows = min(max(c.Window.Rows, embedWindows*c.Pool.Size*c.Embed.Rows), windowMax)
	}
	if unset("STAGE_ORDER_SPAN") {
		c.Order.Span = min(max(c.Order.Span, spanWindows*c.Window.Rows), spanMax)
	}
	if c.LLM.Provider == "mock" && unset("STAGE_LANE_POLL") {
		c.Lane.Poll = mockPoll
	}

	p, ok := llm.LookupProvider(c.LLM.Provider)
	if !ok {
		return
	}
	e := c.LLM.Endpoint(p.Name)
	own := ProviderVariables(p.Name)
	if c.LLM.BaseURL == "" {
		c.from.origins["STAGE_LLM_BASE_URL"] = c.from.origins[own+"_BASE_URL"]
	}
	if !c.LLM.APIKey.IsSet() {
		c.from.origins["STAGE_LLM_API_KEY"] = c.from.origins[own+"_API_KEY"]
	}
	c.LLM.BaseURL, c.LLM.APIKey, c.LLM.Auth = e.BaseURL, e.APIKey, e.Auth
	c.LLM.Region, c.LLM.Project = e.Region, e.Project
	if c.LLM.Model == "" {
		c.LLM.Model = p.Model
	}
}

// loadField decodes one field. A secret has two variables: STAGE_LLM_API_KEY, for
// example, holds the key, and STAGE_LLM_API_KEY_FILE names a file that does.
func (ls layers) loadField(ctx context.Context, c *Config, f *Field, found *problems) {
	if f.Secret {
		path := f.Variable + FileSuffix
		_, byValue := ls.lookup(f.Variable)
		if file, byPath := ls.lookup(path); byPath {
			secret := redact.SecretFile(file)
			f.value(c).Set(reflect.ValueOf(secret))
			c.from.origins[f.Variable] = ls.origin(path)
			text, err := secret.Value()
			switch {
			case byValue:
				found.add(f.Variable, "both it and %s are set: unset one of them", path)
			case err != nil:
				found.add(path, "%v: give the path of a file that holds the secret",
					secretFileError(file, err))
			default:
				f.checkSecret(path, text, found)
				if f.secretKind().readOnce {
					f.value(c).Set(reflect.ValueOf(redact.NewSecret(text)))
				}
			}
			return
		}
	}

	c.from.origins[f.Variable] = ls.origin(f.Variable)
	if err := f.decode(ctx, c, envconfig.LookuperFunc(ls.lookup)); err != nil {
		found.add(f.Variable, "%v", err)
	} else if f.Secret {
		text, _ := f.value(c).Interface().(Secret).Value() // it is in no file
		f.checkSecret(f.Variable, text, found)
	}
}

// secretFileError returns the error without the path where the path may be the secret
// itself. Somebody who sets STAGE_LLM_API_KEY_FILE to the key would find it in the log.
func secretFileError(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok &&
		!strings.ContainsRune(path, filepath.Separator) {
		return e.Err
	}
	return plainPathError(err)
}

// checkSecret checks the text of a secret, whether the variable holds it or names its
// file. No problem repeats the text.
func (f *Field) checkSecret(variable, text string, found *problems) {
	if check := f.secretKind().check; check != nil && text != "" {
		if err := check(text); err != nil {
			found.add(variable, "%v", err)
		}
	}
}

// PromptSources are the variables that give a row's prompt. Exactly one of them is set.
// Nobody changes the list.
var PromptSources = []string{
	"STAGE_TEMPLATE", "STAGE_TEMPLATE_FILE", "STAGE_MESSAGES_FILE",
	"STAGE_MESSAGES_FIELD", "STAGE_REQUEST_FIELD",
}

// alternatives returns the variables that set the same thing in another way: the other
// sources of the prompt, or the secret's text against the path of its file. [layers.find]
// lets the strongest layer choose among them.
func alternatives(variable string) []string {
	if slices.Contains(PromptSources, variable) {
		return slices.DeleteFunc(slices.Clone(PromptSources),
			func(other string) bool { return other == variable })
	}
	other, isPath := strings.CutSuffix(variable, FileSuffix)
	if !isPath {
		other = variable + FileSuffix
	}
	value := strings.TrimSuffix(variable, FileSuffix)
	if f := fieldsByVariable()[value]; value == "STAGE_SYSTEM_PROMPT" || f != nil && f.Secret {
		return []string{other}
	}
	return nil
}

// checkStore reports a flag of the embedded server that is given together with another
// server: --data-dir would have no effect. In the environment such a setting is no
// problem, since it may be meant for other commands.
func (s Source) checkStore(c *Config, found *problems) {
	if !s.External || len(c.NATS.URL) == 0 {
		return
	}
	for _, variable := range []string{"STAGE_DATA_DIR", "STAGE_DATA_SYNC"} {
		if s.Flags[variable] != "" {
			found.add(variable,
				"it is about the embedded server, but %s names another: give one of them",
				found.layers.name("STAGE_NATS_URL"))
		}
	}
}

// serviceLink matches the variables that Kubernetes sets in every container for each
// service of its namespace whose name starts with "stage", for example
// STAGE_PORT_9464_TCP. Without this exception, a service called stage would keep the
// stage from starting.
var serviceLink = regexp.MustCompile(`^STAGE_(.+_)?(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_.+)$`)

// knownVariables returns the field of each variable, including the variables that hold
// the path of a secret's file.
func knownVariables() map[string]*Field {
	known := make(map[string]*Field)
	for _, f := range Fields() {
		known[f.Variable] = f
		if f.Secret {
			known[f.Variable+FileSuffix] = f
		}
	}
	return known
}

// unknownVariables reports variables that start with STAGE_ and do not exist. Without it
// a typo would go unnoticed: STAGE_POOLSIZE=64 would leave the pool at 16.
func (s Source) unknownVariables(found *problems) {
	known := knownVariables()
	names := suggestible(known)
	for _, variable := range slices.Sorted(maps.Keys(s.environ())) {
		if !strings.HasPrefix(variable, VariablePrefix) || known[variable] != nil ||
			serviceLink.MatchString(variable) {
			continue
		}
		if value := strings.TrimSuffix(variable, FileSuffix); known[value] != nil {
			found.add(variable, "only secrets may be given by file: set %s", value)
		} else if near := Nearest(variable, names); near != "" {
			found.add(variable, "unknown variable, did you mean %s?", near)
		} else {
			found.add(variable,
				"unknown variable: unset it; stage help settings lists all variables")
		}
	}
}

// suggestible returns the names that an error may suggest, sorted. No error leads a user
// to a deprecated variable.
func suggestible(known map[string]*Field) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(known)),
		func(name string) bool { return known[name].Deprecated != "" })
}

// Nearest returns the name with the fewest edits from the given one, or "" if none is
// close enough for a typo. Up to a third of the name's bytes may differ, and at least 2:
// of STAGE_POOLSIZE, 8 bytes without the prefix, 2 may, and STAGE_POOL_SIZE differs in 1.
func Nearest(name string, names []string) string {
	best, edits := "", max(2, len(strings.TrimPrefix(name, VariablePrefix))/3)+1
	for _, candidate := range names {
		if d := editDistance(name, candidate); d < edits {
			best, edits = candidate, d
		}
	}
	return best
}

// editDistance returns the number of bytes to insert, delete or replace to turn a into b.
// It keeps one row of the usual table: row[j] is the distance from the bytes of a seen so
// far to the first j bytes of b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
