package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/lab/compare"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/show"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

// demoLLM admits 20 calls a second, at times only 5, and takes about a second for each.
var demoLLM = llmtest.Config{
	Schedule: []llmtest.Phase{{Rate: 20, For: 15 * time.Second}, {Rate: 5, For: 8 * time.Second}},
	Burst:    5, Latency: time.Second, LatencySigma: 0.3, Seed: 1,
}

// demoDefaults are the settings of the demo. Flags and variables take precedence.
var demoDefaults = map[string]string{
	"STAGE_POOL_SIZE": "32", "STAGE_DATA_SYNC": "1s", "STAGE_LOG_LEVEL": "warn",
	"STAGE_TEMPLATE": "Is this review of {{ row.product }} positive, " +
		"negative or mixed?\n\n{{ row.text }}",
}

// chaosRowsMin is how many rows the demo with --chaos has at least. An outage is
// recognised by the failures of several rows, and a kill must find rows that are not
// done.
const chaosRowsMin = 60

// demoFixed returns the settings that demo has of its own, since it has its own store and
// LLM. An empty text means the default.
func demoFixed() map[string]string {
	fixed := map[string]string{
		"STAGE_DATA_DIR": "", "STAGE_FALLBACKS": "", "STAGE_FALLBACK_AFTER": "",
		"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_BASE_URL": "", "STAGE_LLM_API_KEY_FILE": "",
		"STAGE_LLM_MODEL": "", "STAGE_LLM_AZURE_API_VERSION": "", "STAGE_LLM_CA_FILE": "",
		"STAGE_LLM_EXTRA_BODY": "", "STAGE_LLM_EXTRA_BODY_FILE": "",
		"STAGE_LLM_EXTRA_HEADERS_FILE": "",
	}
	for _, f := range config.Fields() {
		if f.Group == "Providers of fallbacks" {
			for _, variable := range f.FlagVariables() {
				fixed[variable] = ""
			}
		}
	}
	return fixed
}

// newDemoCommand makes stage demo: the whole stage in one process, with a server and an
// LLM of its own, or with --chaos in several processes, through an outage and a kill. A
// key, an LLM or a server in the environment is meant for other commands and is ignored; a
// flag of these is refused. So the demo neither costs anything nor writes into the streams
// of another stage.
func newDemoCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "see it work without key or network, for about a minute",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
	}
	rows := cmd.Flags().Int("rows", 720, "number of rows")
	hold := cmd.Flags().Bool("hold", false, "keep the dashboard when all is done, until Ctrl-C")
	chaos := cmd.Flags().Bool("chaos", false,
		"show an outage of the LLM, a kill -9 and a take-over, and prove that no row is lost")

	compared := addCompareFlags(cmd)
	cmd.AddCommand(newReplicaCommand(env))

	flags := newConfigFlags(cmd, env, nil, demoDefaults)
	flags.refuseConnection("demo runs its own server: remove it")
	flags.fixed = demoFixed()
	for variable := range flags.fixed {
		flags.refuse("demo has its own store and LLM: remove it", config.FlagName(variable))
	}
	for _, variable := range []string{ // without a flag, or with one that is refused above
		"STAGE_PARTITIONS", "STAGE_LLM_API_KEY", "STAGE_LLM_EXTRA_HEADERS",
	} {
		flags.fixed[variable] = ""
	}
	run := func(soft, hard context.Context, cfg *config.Config, _ []string) error {
		if *rows < 1 {
			return config.Invalid(fmt.Errorf("--rows %d: give at least 1", *rows))
		}

		cfg.NATS, cfg.Streams.Partitions = config.NATSConfig{}, 1
		cfg.LLM, cfg.Fallback = demoLLMConfig(&cfg.LLM), config.FallbackConfig{}
		if compared.asked || compared.svg != "" || cmd.Flags().Changed("for") {
			return compared.run(soft, env, cfg)
		}

		if *chaos && *rows < chaosRowsMin {
			return config.Invalid(fmt.Errorf("--rows %d with --chaos: give at least %d, "+
				"so that there is work left at each fault", *rows, chaosRowsMin))
		}
		if *chaos {
			return demoChaos(soft, env, cfg, *rows, *hold)
		}
		return demo(soft, hard, env, cfg, *rows, *hold)
	}
	cmd.RunE = flags.run(config.NeedCalls, run)
	if env.HangupEnds {
		// If the terminal closes, the demo still removes its store.
		flags.ends = []os.Signal{syscall.SIGHUP}
	}
	return cmd
}

// compareFlags are the flags of the comparison.
type compareFlags struct {
	asked bool
	time  time.Duration
	svg   string
}

func addCompareFlags(cmd *cobra.Command) *compareFlags {
	f := &compareFlags{}
	cmd.Flags().BoolVar(&f.asked, "compare", false, "compare one call at a time, "+
		"the throttles classic and adaptive, and the known optimum, side by side")
	cmd.Flags().DurationVar(&f.time, "for", time.Minute, "how long --compare takes, 5s to 150s")
	cmd.Flags().StringVar(&f.svg, "svg", "", "file for a picture of what --compare has found")
	for _, other := range []string{"chaos", "hold", "rows"} {
		cmd.MarkFlagsMutuallyExclusive("compare", other)
	}
	return f
}

// run compares the throttles. It prints a table, and with --svg writes a picture.
func (f *compareFlags) run(ctx context.Context, env *Env, cfg *config.Config) error {
	switch {
	case !f.asked:
		return config.Invalid(errors.New("--for and --svg are about --compare: add it"))
	case f.time < 5*time.Second || f.time > 150*time.Second:
		return config.Invalid(fmt.Errorf("--for %v: give 5s to 150s", f.time))
	}
	terminal.PrintLine(env.Stdout, "llm-stage compares for %v: calls of about a second at LLMs "+
		"that admit 20/s for 15 s, then 5/s for 8 s, in turns; pools of %d", f.time, cfg.Pool.Size)
	report, err := compare.Run(ctx, compare.Config{
		LLM: demoLLM, Slots: cfg.Pool.Size, For: f.time, Out: env.Stdout,
		Screen: terminal.Is(env.Stdout),
	})
	if err != nil {
		return err
	}
	terminal.PrintLine(env.Stdout, "")
	if err := report.WriteTable(env.Stdout); err != nil || f.svg == "" {
		return err
	}
	return os.WriteFile(f.svg, []byte(report.SVG()), 0o644) //nolint:gosec // a picture for everyone
}

// demo does what process does, with rows, server and LLM of its own, and prints a summary
// of the audit at the end. With hold it keeps the dashboard until soft ends. The store is
// a temporary directory, which is removed whatever happens.
func demo(soft, hard context.Context, env *Env, cfg *config.Config, rows int, hold bool) error {
	dir, err := os.MkdirTemp("", "llm-stage-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	log := logging.NewConfigured(cfg, env.Stderr)
	defer logging.Flush(log)
	site, err := job.OpenSite(soft, cfg, dir,
		job.SiteOptions{Mock: demoLLM.Start, Console: env.Stderr, Logger: log})
	if err != nil {
		return err
	}
	defer site.Close()
	s := site.Stage
	terminal.PrintLine(env.Stdout, "llm-stage demo: %d rows, pool of %d, throttle %s; "+
		"the LLM admits 20 calls/s, then 5/s, in turns", rows, cfg.Pool.Size, cfg.Pool.Throttle)
	page := site.HTTP.Start(hard, s.Log, s)
	terminal.PrintLine(env.Stdout, "dashboard: %s", page)
	p := &job.Pipeline{
		Stage: s, Stderr: env.Stderr, Out: env.Stdout, Source: &demoRows{rows: rows},
		Total: int64(rows), Format: demoLine(cfg.Prompt.ResponseField),
	}
	if err := p.Run(soft, hard); err != nil {
		return err
	}
	if err := demoAudit(hard, env.Stdout, s); err != nil || !hold {
		return err
	}
	s.ShowEnded("all rows have their results, and the demo keeps this page until Ctrl-C")
	terminal.PrintLine(env.Stdout, demoHeld, page)
	<-soft.Done()
	return nil
}

const demoHeld = "\nthe dashboard stays at %s until Ctrl-C"

// demoChaos runs the demo in several processes, which are this program again: one of them
// can be killed like a real replica.
func demoChaos(ctx context.Context, env *Env, cfg *config.Config, rows int, hold bool) error {
	if env.Executable == "" {
		return errors.New("--chaos starts this program again, and where it is is unknown: " +
			"start it by its path")
	}
	log := logging.NewConfigured(cfg, env.Stderr)
	defer logging.Flush(log)
	return show.Run(ctx, show.Config{
		Stage: cfg, Program: []string{env.Executable, "demo", replicaCommand}, Environ: env.Environ,
		Source: &demoRows{rows: rows}, Rows: rows, Hold: hold, Out: env.Stdout, Err: env.Stderr,
		Logger: log,
	})
}

// demoLLMConfig returns the settings of the built-in LLM: those of c that concern neither
// key nor address. A user may have set these for other commands, and in the demo neither a
// key nor a row may leave the machine.
func demoLLMConfig(c *config.LLMConfig) config.LLMConfig {
	return config.LLMConfig{
		Provider: llm.Mock, Timeout: c.Timeout, MaxReplyBytes: c.MaxReplyBytes,
		Temperature: c.Temperature, MaxTokens: c.MaxTokens,
		AcceptTruncated: c.AcceptTruncated, RPM: c.RPM, TPM: c.TPM,
		MaxConcurrency: c.MaxConcurrency,
	}
}

// demoLine returns the format of a result as a line of text: the row's sequence, its
// product and text, and the reply, which is in that field. A reply that is no string, such
// as a vector or an object, is printed as JSON.
func demoLine(field string) func(io.Writer, stored.Result) error {
	return func(w io.Writer, r stored.Result) error {
		text := func(name string) string {
			value := jsonbytes.Find(r.Body, name)
			if bytes.HasPrefix(value, []byte(`"`)) {
				return jsonbytes.Text(value)
			}
			return string(value)
		}
		_, err := fmt.Fprintf(w, "%5d  %-12s %-44.44s  %.60s\n", r.Seq, text("product"),
			text("text"), text(field))
		return err
	}
}

// demoRows generates the sample rows. It implements [load.Rows].
type demoRows struct{ next, rows int }

// Skip skips the rows that are loaded already; the demo has none.
func (d *demoRows) Skip(loaded int64) error {
	d.next = int(loaded)
	return nil
}

// Read returns the next row. It returns [io.EOF] when there are no more.
func (d *demoRows) Read() (*nats.Msg, error) {
	if d.next >= d.rows {
		return nil, io.EOF
	}
	products := []string{
		"kettle", "headphones", "backpack", "desk lamp", "keyboard", "rain jacket",
		"notebook", "water bottle",
	}
	openings := []string{
		"Arrived early and well packed.", "Took two weeks to arrive.",
		"A gift for my sister.", "My second one.", "Bought it on a whim.",
	}
	verdicts := []string{
		"Works as described.", "Broke on the third day.",
		"Better than the old one.", "The colour is off, the rest is fine.", "Not worth the price.",
		"I use it every day.", "Returned it.",
	}

	// There are 8 products, 5 openings and 7 verdicts. These numbers have no common divisor,
	// so a row repeats only after 8 × 5 × 7 = 280 rows.
	i := d.next
	d.next++
	body, err := json.Marshal(struct {
		ID      int    `json:"id"`
		Product string `json:"product"`
		Text    string `json:"text"`
	}{i + 1, products[i%len(products)], openings[i%len(openings)] + " " +
		verdicts[i%len(verdicts)]})
	return &nats.Msg{Data: body}, err
}

// demoAudit prints the numbers of the audit stream beside those of the run, so that a
// viewer sees that they agree.
func demoAudit(ctx context.Context, w io.Writer, s *stage.Stage) error {
	js, err := streams.JetStream(s.Conn.NC())
	if err != nil {
		return err
	}
	rows, runs, calls, byStatus := 0, 0, 0, make(map[auditlog.CallStatus]int)
	count := func(_ []byte, e *auditlog.Event) error {
		switch {
		case e == nil: // of another version
		case e.Row != nil:
			rows++
		case e.Run != nil:
			runs++
		case e.Call != nil:
			calls++
			byStatus[e.Call.Status]++
		}
		return nil
	}
	if err := stored.ReadAudit(ctx, js, s.Cfg, stored.ReadOptions{}, nil, count); err != nil {
		return err
	}
	sum := s.Summary()
	succeeded, rejected := byStatus[auditlog.CallSuccess], byStatus[auditlog.CallCapacityRetry]
	_, err = fmt.Fprintf(w, "\naudit: %d calls (%d succeeded, %d rejected for capacity and "+
		"retried, %d failed), %d rows, %d run events\nrows: "+
		"%d succeeded, %d failed; peak delay between calls %s; results %s\n",
		calls, succeeded, rejected, calls-succeeded-rejected, rows, runs,
		sum.RowsSucceeded, sum.RowsFailed, sum.PeakDelay.Round(time.Millisecond),
		demoOrders[s.Cfg.Order.Mode])
	return err
}

// demoOrders describes the order of the results, by STAGE_ORDER.
var demoOrders = map[streams.Order]string{
	streams.OrderStream: "in the order of the rows",
	streams.OrderKey:    "in the order of the rows of each key",
	streams.OrderNone:   "in the order in which they were done",
}
