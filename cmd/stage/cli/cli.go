// Package cli is the commands of the stage program: flags and arguments in, exit codes
// out. It alone knows exit codes; the packages below return typed errors. It can be
// imported so that tests run the program that ships, with an [Env] of their own in place
// of the process:
//
//	env := &cli.Env{Args: []string{"config", "--check"}, Environ: vars, Stdout: &out}
//	code := cli.Main(ctx, env)
//
// A command is a function that takes the Env and returns a *cobra.Command. A new one
// takes three steps: a file of its name with the function, a line in [makers], and its
// text in help/NAME.txt. One that uses the configuration calls newConfigFlags, which adds
// a flag for every variable. Its RunE is made by configFlags.run, or by
// configFlags.runOnStreams if it works on streams beside a stage:
//
//	func newRunCommand(env *Env) *cobra.Command {
//		cmd := &cobra.Command{Use: "run", Short: "…", GroupID: groupWork, Args: cobra.NoArgs}
//		flags := newConfigFlags(cmd, env, nil, nil)
//		run := func(soft, hard context.Context, cfg *config.Config, _ []string) error {
//			return stage.Run(soft, hard, cfg, deps)
//		}
//		cmd.RunE = flags.run(config.NeedCalls, run)
//		return cmd
//	}
//
// A file is named after its command, except that steer.go has pause, resume, drain and
// probe, batch_deferred.go the commands below batch, trycall.go try --call, and replica.go
// the processes of demo --chaos. The others serve all commands: env.go has the Env and its
// signals, flags.go the flags of the configuration, store.go --job, and help.go and
// topics.go the help.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/internal/version"
	"github.com/spf13/cobra"
)

// Groups of commands in the help.
const (
	groupWork    = "work"
	groupStreams = "streams"
	groupSetup   = "setup"
)

type maker struct {
	name string
	make func(env *Env) *cobra.Command
}

// makers make every command except help and completion, the most used first. The help
// lists the commands of each group in this order.
var makers = []maker{
	{"process", newProcessCommand},
	{"run", newRunCommand},
	{"status", newStatusCommand},
	{"pause", steerMaker(control.Pause)},
	{"resume", steerMaker(control.Resume)},
	{"drain", steerMaker(control.Drain)},
	{"probe", steerMaker(control.Probe)},
	{"batch", newBatchCommand},

	{"tail", newTailCommand},
	{"results", newResultsCommand},
	{"usage", newUsageCommand},
	{"jobs", newJobsCommand},
	{"load", newLoadCommand},
	{"redrive", newRedriveCommand},
	{"erase", newEraseCommand},
	{"verify", newVerifyCommand},
	{"prove", newProveCommand},
	{"lane", newLaneCommand},

	{"demo", newDemoCommand},
	{"init", newInitCommand},
	{"try", newTryCommand},
	{"config", newConfigCommand},
	{"setup", newSetupCommand},
	{"mockllm", newMockLLMCommand},
	{"version", newVersionCommand},
}

// commands returns the commands that the arguments may need: only the one that they name
// first or, if they name none, all of them, for the help and for completion. Most
// commands have more than 180 flags, so making all commands takes longer than most of
// them run.
func commands(env *Env) (all []*cobra.Command) {
	named := func(m maker) bool { return len(env.Args) > 0 && env.Args[0] == m.name }
	one := slices.ContainsFunc(makers, named)
	for i, m := range makers {
		if one && !named(m) {
			continue
		}
		cmd := m.make(env)
		cmd.Annotations = map[string]string{commandRank: fmt.Sprintf("%03d", i)}
		all = append(all, cmd)
	}
	return all
}

// argumentOr returns the first argument, or without if there is none.
func argumentOr(args []string, without string) string {
	if len(args) == 0 {
		return without
	}
	return args[0]
}

// Exit codes of the program.
const (
	exitDone        = 0   // done; rows that failed are results, without --fail-on-error
	exitFailed      = 1   // failed while running
	exitUsage       = 2   // bad usage or configuration, or verify cannot tell
	exitFatal       = 3   // ended by a fatal provider error
	exitFailedRows  = 4   // done, but more rows failed than --fail-on-error allows
	exitInterrupted = 130 // interrupted before the end, or by a second interrupt
)

// Main runs the program with the arguments of env and returns its exit code: 0 done, 1
// failed while running, 2 bad usage or configuration, or verify cannot tell, 3 ended by a
// fatal provider error, 4 too many rows failed, 130 interrupted. It prints the error to
// env.Stderr. It blocks until the command has ended; ctx ends it early.
func Main(ctx context.Context, env *Env) int {
	own := *env
	own.secrets = new(config.Secrets)
	env = &own
	defer redactStandardLog(env.Stderr, env.secrets)()
	running := false
	root := newRootCommand(env, &running)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if _, ok := errors.AsType[*config.Error](err); !ok && !running {
		err = config.Invalid(fmt.Errorf("%w\nsee %s --help", err, cmd.CommandPath()))
	}
	printError(env.Stderr, env.secrets.RedactError(config.Explained(err)))
	return exitCode(err)
}

// exitCode returns the code that the program ends with when a command has returned err.
// An error that joins several has the code of the first kind that is looked for here. For
// example, a job that was interrupted and also has a problem of its settings ends with 2.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if config.IsInvalid(err) {
		return exitUsage
	}
	if _, ok := errors.AsType[*verify.UnprovenError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*stage.FatalError](err); ok {
		return exitFatal
	}
	if _, ok := errors.AsType[*job.FailedRowsError](err); ok {
		return exitFailedRows
	}
	if _, ok := errors.AsType[*stopping.InterruptError](err); ok {
		return exitInterrupted
	}
	return exitFailed
}

// redactStandardLog removes secrets from the standard logger, which libraries use:
// net/http logs unsolicited responses of a server there, and a client can't turn that
// off.
func redactStandardLog(w io.Writer, secrets *config.Secrets) (undo func()) {
	before := log.Writer()
	log.SetOutput(config.RedactingWriter{To: w, Secrets: secrets})
	return func() { log.SetOutput(before) }
}

// printError prints the error after the program's name, with further lines indented. It
// escapes control characters, since the error may quote foreign text.
func printError(w io.Writer, err error) {
	lines := strings.Split(strings.TrimRight(terminal.Lines(err.Error()), "\n"), "\n")
	for i, line := range lines {
		if i > 0 && line != "" {
			lines[i] = "  " + line
		}
	}
	fmt.Fprintln(w, "stage: "+strings.Join(lines, "\n")) //nolint:errcheck // nowhere left to report it
}

// newRootCommand builds the tree of commands. It sets running when a command has begun:
// an error before that is one of usage, and has the hint to --help; a later one has not.
func newRootCommand(env *Env, running *bool) *cobra.Command {
	root := &cobra.Command{
		Use:           "stage",
		Short:         "rows of a stream in, ordered LLM results and audit events out",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version.Current().String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(env.Stderr)
			if err := cmd.Help(); err != nil {
				return err
			}
			return config.Invalid(errors.New("name a command"))
		},
	}

	// Cobra uses the process's own arguments and streams unless it is given others.
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetVersionTemplate("{{.Version}}\n")

	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Do the work:"},
		&cobra.Group{ID: groupStreams, Title: "Work with the streams:"},
		&cobra.Group{ID: groupSetup, Title: "Set up and try out:"},
	)
	root.AddCommand(commands(env)...)

	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelpCommand(env))
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		writeHelp(cmd, terminal.Width(env.Stdout))
	})
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "print a shell completion script for commands, flags and their values"
			cmd.Example = "  source <(stage completion bash)\n  stage completion zsh " +
				">\"${fpath[1]}/_stage\""
		}
	}

	addTexts(root)
	markRunning(root, running)
	return root
}

// markRunning makes every command below root set running when it begins.
func markRunning(root *cobra.Command, running *bool) {
	for _, cmd := range root.Commands() {
		markRunning(cmd, running)
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				*running = true
				return run(cmd, args)
			}
		}
	}
}

// noInput is the error where the file with the rows is missing.
const noInput = "name the file with the rows, or - for standard input"

// required checks the arguments of a command that needs at least one. missing is the
// error without one: it names what is needed, where cobra's only counts the arguments.
func required(missing string, check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New(missing)
		}
		return check(cmd, args)
	}
}
