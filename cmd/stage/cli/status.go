package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/dashboard"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// watchEvery is the time between two looks of status --watch.
const watchEvery = 2 * time.Second

// newStatusCommand makes stage status. It asks the process at STAGE_HTTP_ADDR over HTTP.
// If a flag names the server or the stage, or if nothing listens at that address, it asks
// all replicas over NATS.
func newStatusCommand(env *Env) *cobra.Command {
	v := &statusView{env: env, memory: replicas.NewMemory()}
	cmd := &cobra.Command{
		Use: "status",
		Short: "show what a running stage is doing: state, rows, throttle, shared budget, " +
			"all replicas, partitions",
		GroupID: groupWork,
		Args:    cobra.NoArgs,
	}
	const httpAddr, name, dataDir = "STAGE_HTTP_ADDR", "STAGE_NAME", "STAGE_DATA_DIR"
	output := addOutputFlag(cmd, "table, or json: /api/status, and all replicas as whole")
	asJSON := cmd.Flags().Bool("json", false, "the same as -o json")
	watch := cmd.Flags().Bool("watch", false,
		"look again every 2 s, until it is stopped; with json a line each time")
	process := cmd.Flags().Bool("process", false,
		"show the process at STAGE_HTTP_ADDR alone, with all that it says of itself")
	cmd.MarkFlagsMutuallyExclusive("output", "json")

	flags := newConfigFlags(cmd, env, []string{groupNATS}, nil)
	flags.allow(httpAddr, name, dataDir)
	for _, variable := range []string{httpAddr, name} {
		cmd.Flags().Lookup(config.FlagName(variable)).Annotations[flagCommon] = []string{}
	}

	changed := func(name string) bool { return cmd.Flags().Changed(name) }
	run := func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		if err := checkOutput(*output); err != nil {
			return config.Invalid(err)
		}

		// A flag that names a server or a stage asks for NATS. A variable does not, since
		// the stage at STAGE_HTTP_ADDR has the same environment.
		named := changed(serverFlag) || changed(contextFlag) ||
			changed(config.FlagName("STAGE_NATS_URL")) || changed(config.FlagName(name))
		v.cfg, v.json, v.process = cfg, *output == formatJSON || *asJSON, *process
		v.overHTTP = *process || changed(config.FlagName(httpAddr))
		switch v.overNATS = named && !v.overHTTP; {
		case named && *process:
			return config.Invalid(errors.New("--process asks the process at STAGE_HTTP_ADDR: " +
				"remove what names the server or the stage"))
		case v.overHTTP && changed(config.FlagName(name)):
			return config.Invalid(errors.New("--http-addr asks that process, " +
				"which shows all of its stages: remove --name"))
		}

		defer v.close() //nolint:contextcheck // ctx may be over by then, and closing has a bound of its own
		if !*watch {
			return v.show(soft)
		}
		return v.watch(soft)
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	return cmd
}

// statusView asks a stage once or again and again, and prints the answers.
type statusView struct {
	env                *Env
	cfg                *config.Config
	json, process      bool
	overHTTP, overNATS bool // asks in this way alone; if both are false, HTTP comes first
	memory             *replicas.Memory

	conn *natsconn.Conn // nil until NATS is asked
	line bool           // prints JSON on one line, for --watch
}

func (v *statusView) close() {
	if v.conn != nil {
		v.conn.Close()
	}
}

// clearScreen moves to the upper left corner of a terminal and clears it.
const clearScreen = "\x1b[H\x1b[2J"

// watch asks again and again until ctx ends. An error of the first look ends it, since
// the address may be wrong. Later errors are printed, and it goes on: the stage may be
// restarting.
func (v *statusView) watch(ctx context.Context) error {
	v.line = true
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	screen := terminal.Is(v.env.Stdout) && !v.json
	for first := true; ; first = false {
		if screen {
			fmt.Fprintln(v.env.Stdout, clearScreen+time.Now().Format(time.TimeOnly)) //nolint:errcheck // the report below fails, too
		}
		err := v.show(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			printError(v.env.Stderr, config.Explained(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if !screen && !v.json {
			terminal.PrintLine(v.env.Stdout, "")
		}
	}
}

// show asks and prints once. It falls back to NATS only if the user has not asked for
// HTTP, and if a server is known.
func (v *statusView) show(ctx context.Context) error {
	if v.overNATS {
		return v.showAll(ctx)
	}
	reports, body, err := dashboard.Ask(ctx, v.cfg.HTTP.Addr)
	_, nobody := errors.AsType[*dashboard.NobodyError](err)
	anyPort := errors.Is(err, dashboard.ErrAnyPort)
	switch {
	case err == nil:
		return v.showProcess(ctx, reports, body)
	case (nobody || anyPort) && !v.overHTTP && v.reachable():
		if natsErr := v.showAll(ctx); natsErr != nil {
			return fmt.Errorf("%w\nand over NATS: %w", err, natsErr)
		}
		return nil
	case anyPort:
		return config.Invalid(err)
	}
	return err
}

// reachable reports whether there is a NATS server to ask: the settings name one, or
// another process runs an embedded one.
func (v *statusView) reachable() bool {
	if len(v.cfg.NATS.URL) > 0 {
		return true
	}
	_, running, err := natsd.Discover(v.cfg.Data.Dir)
	return running && err == nil
}

// showProcess prints the reports of a process about its stages. Where a stage has other
// replicas, it prints all of them.
func (v *statusView) showProcess(ctx context.Context, reports []status.Report, body []byte) error {
	var wholes []json.RawMessage
	if !v.process {
		wholes = dashboard.AskWhole(ctx, v.cfg.HTTP.Addr)
	}
	if v.json {
		return v.print(withWholes(body, wholes))
	}
	for i := range reports {
		if i > 0 {
			terminal.PrintLine(v.env.Stdout, "")
		}

		// A whole is shown only if it has several replicas and is about this stage. It
		// was asked for after the report, when another process may listen there.
		write := reports[i].WriteText
		var whole replicas.Whole
		if i < len(wholes) && json.Unmarshal(wholes[i], &whole) == nil &&
			whole.Stage == reports[i].Stage && whole.Several() {
			write = whole.WriteText
		}
		if err := write(v.env.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// withWholes adds to the JSON of each stage its whole, as the last member: {"stage":"a"}
// becomes {"stage":"a","whole":{…}}. A stage without one stays as it is. The bytes are
// spliced rather than decoded, so that members which this version does not know are kept.
func withWholes(body []byte, wholes []json.RawMessage) []byte {
	add := func(report, whole json.RawMessage) json.RawMessage {
		report = bytes.TrimSpace(report)
		if len(whole) == 0 || !bytes.HasSuffix(report, []byte("}")) || len(report) < 3 {
			return report
		}
		return append(append(append(bytes.Clone(report[:len(report)-1]), `,"whole":`...), whole...),
			'}')
	}
	var several struct {
		Stages []json.RawMessage `json:"stages"`
	}
	switch {
	case json.Unmarshal(body, &several) != nil || several.Stages == nil:
		if len(wholes) == 1 {
			return add(body, wholes[0])
		}
		return body
	case len(wholes) != len(several.Stages):
		return body
	}
	for i := range several.Stages {
		several.Stages[i] = add(several.Stages[i], wholes[i])
	}
	joined, err := json.Marshal(several)
	if err != nil {
		return body
	}
	return joined
}

// showAll asks all replicas over NATS and prints their answers. The connection stays open
// for the next look.
func (v *statusView) showAll(ctx context.Context) error {
	if v.conn == nil {
		conn, err := connectRunning(ctx, v.cfg, logging.NewConfigured(v.cfg, v.env.Stderr))
		if err != nil {
			return err
		}
		v.conn = conn
	}

	whole := replicas.Merge(replicas.Ask(ctx, v.conn.NC(), v.cfg.Name, nil), v.memory, time.Now())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := whole.Nobody(replicas.Subject(v.cfg.Name)); err != nil &&
		(!v.line || len(whole.Replicas) == 0) {
		return err
	}
	if !v.json {
		return whole.WriteText(v.env.Stdout)
	}
	body, err := json.Marshal(struct {
		Stage string       `json:"stage"`
		State status.State `json:"state"`
		Why   string       `json:"why"`
		auditlog.Pace
		Whole replicas.Whole `json:"whole"`
	}{whole.Stage, whole.State, whole.Why, whole.Pace, whole})
	if err != nil {
		return err
	}
	return v.print(append(body, '\n'))
}

// print prints JSON, indented or as a line.
func (v *statusView) print(body []byte) error {
	var out bytes.Buffer
	var err error
	if v.line {
		err = json.Compact(&out, body)
		out.WriteByte('\n')
	} else if err = json.Indent(&out, bytes.TrimSpace(body), "", "  "); err == nil {
		out.WriteByte('\n')
	}
	if err != nil {
		return err
	}
	_, err = v.env.Stdout.Write(out.Bytes())
	return err
}
