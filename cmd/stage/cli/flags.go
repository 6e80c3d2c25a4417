package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// configFlags are the flags of a command that uses the configuration: one for each variable, named after it, but none
// for a secret, which would show in the list of processes; the path of a secret's file has one. A flag takes precedence
// over the environment.
type configFlags struct {
	env      *Env
	defaults map[string]string
	values   map[string]string // by variable, of the flags that were given
}

// newConfigFlags adds the flags of the configuration to the command. groups are the headings of [config.Config] that the
// help lists, nil: all; flags of other groups are accepted too. defaults are the command's, by variable, and take
// precedence over the documented ones. An invalid value is reported by Load, together with all other problems.
func newConfigFlags(cmd *cobra.Command, env *Env, groups []string, defaults map[string]string) *configFlags {
	c := &configFlags{env: env, defaults: defaults, values: make(map[string]string)}
	for _, group := range groups {
		if !slices.ContainsFunc(config.Fields(), func(f *config.Field) bool { return f.Group == group }) {
			panic("no field of the configuration is under " + group)
		}
	}
	for _, f := range config.Fields() {
		for _, variable := range f.FlagVariables() {
			c.add(cmd, f, variable)
			flag := cmd.Flags().Lookup(config.FlagName(variable))
			flag.Hidden = len(groups) > 0 && !slices.Contains(groups, f.Group)
		}
	}
	return c
}

// add adds the flag of a variable: that of the field, or of the file with its value.
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
	// pflag takes a word in back quotes for the name of the value.
	flag := cmd.Flags().VarPF(value, config.FlagName(variable), "", strings.ReplaceAll(help, "`", "'"))
	if kind == "bool" {
		flag.NoOptDefVal = "true"
	}
	flag.Annotations = map[string][]string{flagGroup: {f.Group}}
	// The shell completes values or files.
	words := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		if kind == "path" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return f.OneOf, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag.Name, words); err != nil {
		panic(fmt.Sprintf("flag --%s: %v", flag.Name, err)) // the flag was added before
	}
}

// groupsOfStreams are the groups of flags that commands on streams need.
var groupsOfStreams = []string{"Stage", "NATS", "Embedded server", "Streams and subjects"}

// run returns the RunE of a command: it calls f with the configuration, the arguments, and the contexts of
// [Env.Contexts].
func (c *configFlags) run(need config.Need, f func(soft, hard context.Context, cfg *config.Config, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, err := c.Load(cmd.Context(), need)
		if err != nil {
			return err
		}
		soft, hard, stop := c.env.Contexts(cmd.Context())
		defer stop()
		return f(soft, hard, cfg, args)
	}
}

// runOnStreams returns the RunE of a command that works on streams beside a stage. It calls f once it is connected, and
// explains its error. check, which may be nil, reports invalid flags before that.
func (c *configFlags) runOnStreams(check func(cfg *config.Config) error, f func(ctx context.Context, conn *natsconn.Conn, js jetstream.JetStream, cfg *config.Config) error) func(*cobra.Command, []string) error {
	return c.run(config.NeedNothing, func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		if check != nil {
			if err := check(cfg); err != nil {
				return config.Invalid(err)
			}
		}
		conn, err := natsconn.ConnectReader(soft, cfg, cfg.Data.Dir, false, logging.NewConfigured(cfg, c.env.Stderr))
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn.NC)
		if err != nil {
			return err
		}
		return conn.Explain(f(soft, conn, js, cfg))
	})
}

// Load reads the configuration from flags and environment. The error lists every problem and makes the program end with
// 2.
func (c *configFlags) Load(ctx context.Context, need config.Need) (*config.Config, error) {
	cfg, err := config.Source{Flags: maps.Clone(c.values), Environ: c.env.Environ, Defaults: c.defaults, Secrets: c.env.secrets}.Load(ctx, need)
	if err == nil {
		return cfg, nil
	}
	what := "a problem"
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 1 {
		what = fmt.Sprintf("%d problems", len(joined.Unwrap()))
	}
	return nil, config.Invalid(fmt.Errorf("the configuration has %s:\n%w", what, err))
}

// configFlag is the value of one flag. It keeps the text: the configuration decodes it, so that flag and variable are
// read by the same code.
type configFlag struct {
	flags    *configFlags
	variable string
	kind     string
	text     string
}

// String returns the text of the flag, or its default.
func (v *configFlag) String() string { return v.text }

// Set keeps the text.
func (v *configFlag) Set(text string) error {
	v.text = text
	v.flags.values[v.variable] = text
	return nil
}

// Type names the kind of the value, for the help.
func (v *configFlag) Type() string { return v.kind }

// IsBoolFlag reports whether --flag means --flag=true.
func (v *configFlag) IsBoolFlag() bool { return v.kind == "bool" }
