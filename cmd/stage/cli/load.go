package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// newLoadCommand makes stage load, which publishes the rows of a file for stages that run
// elsewhere. Each row has the id of the load and its place in the file, so a load that is
// repeated after a kill stores no row twice: if 400 of 1,000 rows are stored, it publishes
// the other 600.
func newLoadCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "load FILE",
		Short:   "publish the rows of a file to the input stream, each once",
		GroupID: groupStreams,
		Args:    required(noInput, cobra.ExactArgs(1)),
	}
	var o loadOptions
	addFormatFlags(cmd, &o.format)
	cmd.Flags().StringVar(&o.id, "id", "", "name of the load, one word; with it, standard input is "+
		"loaded as it comes; default: derived from the content")
	cmd.Flags().StringVar(&o.key, "key", "", "with several partitions: field that chooses a row's "+
		"partition, so that rows of equal value stay in order; default: each in turn")
	cmd.Flags().BoolVar(&o.json, "json", false, "print a report as JSON on standard output")
	flags := newConfigFlags(cmd, env, groupsOfStreams, nil)
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		return loadFile(soft, env, cfg, args[0], o)
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	return cmd
}

type loadOptions struct {
	format  rowfile.Spec
	id, key string
	json    bool
}

// loadReport is what load --json prints. Loaded counts the rows that this command has
// stored, and Before the rows that earlier ones have.
type loadReport struct {
	ID         string `json:"id"`
	Subjects   string `json:"subjects"`
	Loaded     int64  `json:"loaded"`
	Before     int64  `json:"before"`
	DurationMS int64  `json:"duration_ms"`
}

// checkSubject refuses an input subject that is not for the rows of a load: the log of
// another stage, and a subject without a wildcard, which has no place for the subject of
// this load.
func checkSubject(cfg *config.Config) error {
	if cfg.OfResults() {
		return fmt.Errorf("STAGE_INPUT_SUBJECT %s: the rows are the results of another stage, "+
			"and a row published there would be part of that stage's log: "+
			"load the rows of the first stage of the chain, with its settings", cfg.Input.Subject)
	}
	if subject := cfg.Input.Subject; !strings.ContainsAny(subject, "*>") {
		return fmt.Errorf("STAGE_INPUT_SUBJECT %s: load needs its own subject: "+
			"end it with .> or .*", subject)
	}
	return nil
}

// loadFile publishes the rows of a file that are not published yet, and reports how many.
func loadFile(ctx context.Context, env *Env, cfg *config.Config, name string, o loadOptions) error {
	// The settings are checked before standard input is read, which can't be read again.
	if err := checkSubject(cfg); err != nil {
		return config.Invalid(err)
	}
	in, err := load.OpenSource(ctx, env.Stdin, name, o.format)
	if err != nil {
		return err
	}
	defer func() { _ = in.File.Close() }() // read only; Spool replaces it
	if o.id == "" {
		if in.Sum == "" {
			terminal.PrintLine(env.Stderr, "%s is read to its end before the first row is loaded: "+
				"with --id NAME rows are loaded as they come", rowfile.InputName(name))
		}
		if err := in.Spool(ctx); err != nil {
			return err
		}
	}
	id, err := loadID(o.id, in.ID())
	if err != nil {
		return config.Invalid(err)
	}

	log := logging.NewConfigured(cfg, env.Stderr)
	defer logging.Flush(log)
	conn, err := natsconn.ConnectReader(ctx, cfg, cfg.Data.Dir, true, log)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
	if err := streams.Ensure(ctx, conn.NC(), stored.Streams(cfg)); err != nil {
		return config.Explained(err)
	}
	l, before, err := load.New(ctx, conn.NC(), cfg, id, o.key)
	if err != nil {
		return conn.Explain(err)
	}
	rows := in.Reader(log, int(conn.NC().MaxPayload())-load.MessageOverhead)

	// A row that no message can hold ends the load. The error advises to raise the limit
	// only where the user has a server of their own to set it on.
	rows.Strict, rows.Raise = true, len(cfg.NATS.URL) > 0
	if err := rows.Skip(before); err != nil {
		return err
	}

	began, last := time.Now(), before
	rate := func(done int64, _ bool) terminal.Beside {
		perSecond := float64(done-before) / time.Since(began).Seconds()
		return terminal.Beside{First: []string{fmt.Sprintf("%.0f rows/s", perSecond)}}
	}
	bar := terminal.NewBar(ctx, env.Stderr, in.Rows, before, rate)

	err = l.Run(ctx, before, rows.Read, func(stored int64) { last = stored; bar.Set(last) })
	bar.Finish()
	if err == nil && in.Grown() {
		log.Warn("the input has grown meanwhile: what was added is not loaded",
			slog.String("input", name))
	}

	report := loadReport{
		ID: id, Subjects: l.Subjects(), Loaded: last - before, Before: before,
		DurationMS: time.Since(began).Milliseconds(),
	}
	if o.json {
		return errors.Join(err, terminal.WriteJSON(env.Stdout, &report))
	}
	terminal.PrintLine(env.Stderr, "%d rows loaded on %s in %s, %d were there before",
		report.Loaded, report.Subjects, time.Since(began).Round(time.Millisecond), before)
	return err
}

// loadID returns the id of a load: the given one, or one that is derived from the content
// of the file, so that the same content is the same load.
func loadID(given, source string) (string, error) {
	switch {
	case given == "":
		return source[:16], nil
	case !job.ValidName(given) || strings.Contains(given, "."):
		return "", fmt.Errorf("--id %q: give one word of letters, digits, _ and -", given)
	}
	return given, nil
}
