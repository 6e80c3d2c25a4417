package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/results"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// groupsOfJobs are the groups of settings of the commands on jobs, which need only the
// directory that holds the jobs (STAGE_DATA_DIR).
var groupsOfJobs = []string{"Embedded server"}

// newJobsCommand makes stage jobs with its commands ls, show and rm. A job is a directory
// below STAGE_DATA_DIR that stage process has made. Package jobs reads the directories.
// The commands look into the store of a job only to count rows and results, through the
// process that has the store open if there is one.
func newJobsCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "jobs",
		Short:   "list, show and remove the jobs of process",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(env.Stderr)
			return errors.Join(config.Invalid(errors.New("name a command: ls, show or rm")),
				cmd.Help())
		},
	}
	cmd.AddCommand(newJobsListCommand(env), newJobsShowCommand(env), newJobsRemoveCommand(env))
	return cmd
}

// newJobsListCommand makes stage jobs ls. It reads the files of each job, and counts rows
// and results in the stores of jobs that are running or were killed.
func newJobsListCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the jobs with their state, rows and size",
		Args:    cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print the list as JSON")
	flags := newConfigFlags(cmd, env, groupsOfJobs, nil)
	run := func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		list, err := jobs.List(cfg.Data.Dir)
		if err == nil {
			err = countJobs(soft, env, cfg, list)
		}
		switch {
		case err != nil:
			return err
		case *asJSON:
			return terminal.WriteJSON(env.Stdout, append([]jobs.Job{}, list...)) // [] for none
		case len(list) == 0:
			terminal.PrintLine(env.Stderr, "no jobs in %s", cfg.Data.Dir)
			return nil
		}
		return writeJobs(env.Stdout, list)
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	return cmd
}

// countTimeout bounds how long ls counts in the store of one job.
const countTimeout = 30 * time.Second

// countJobs counts the rows and results of jobs whose files have no counts. A run writes
// them at its end, so they are missing while it runs and after it was killed. A store that
// can't be read is reported, and does not hide the other jobs. The error is the cause of
// the end of ctx.
func countJobs(ctx context.Context, env *Env, cfg *config.Config, list []jobs.Job) error {
	for i := range list {
		if list[i].Counts != nil {
			continue
		}
		counting, cancel := context.WithTimeout(ctx, countTimeout)
		own := *cfg
		own.UseStore(list[i].Dir)
		own.Streams.Partitions = 1
		err := (&jobReport{Job: &list[i]}).read(counting, env, &own)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			terminal.PrintLine(env.Stderr, "job %s: its rows are not counted: %s", list[i].Name,
				terminal.OneLine(err.Error()))
		}
	}
	return nil
}

// writeJobs prints a table of jobs, here without the last columns:
//
//	JOB      INPUT          MODEL  STATE        ROWS  RESULTS  FAILED
//	reviews  reviews.jsonl  mock   done         200   200      3
//	tickets  tickets.csv    mock   interrupted  90    40       0
func writeJobs(w io.Writer, list []jobs.Job) error {
	table := terminal.NewTable(w)
	table.Line("JOB", "INPUT", "MODEL", "STATE", "ROWS", "RESULTS", "FAILED", "SIZE", "CHANGED")
	for i := range list {
		j := &list[i]
		facts := factsOf(j)
		rows, results, failed := "-", "-", "-"
		if c := j.Counts; c != nil {
			rows = strconv.FormatInt(c.Rows, 10)
			results = strconv.FormatUint(c.Answered(), 10)
			failed = strconv.FormatUint(c.Failed, 10)
		}
		counts := []string{rows, results, failed}
		table.Line(slices.Concat([]string{j.Name}, facts[:3], counts, facts[3:])...)
	}
	return table.Flush()
}

// factsOf returns the columns of a job, without its name and its counts.
func factsOf(j *jobs.Job) []string {
	return []string{inputOf(j), modelOf(j), stateOf(j), terminal.Bytes(j.Bytes), changedOf(j)}
}

// describeJob returns one line about a job, for errors and questions.
func describeJob(j *jobs.Job) string { return strings.Join(factsOf(j), ", ") }

// inputOf returns the name of the job's input for a table. A damaged job.json may have
// lost it.
func inputOf(j *jobs.Job) string {
	if j.Damaged != "" && j.Input == "" {
		return "(job.json is damaged)"
	}
	return terminal.OrDash(rowfile.InputName(j.Input))
}

// modelOf returns provider and model of the job for a table, such as openai/gpt-5. The
// built-in mock has a model of the same name, which is printed once.
func modelOf(j *jobs.Job) string {
	if j.Provider == j.Model || j.Model == "" {
		return terminal.OrDash(j.Provider)
	}
	return j.Provider + "/" + j.Model
}

// stateOf returns the state of the job, and which process works on it or reads it.
func stateOf(j *jobs.Job) string {
	state := terminal.OrDash(string(j.State))
	switch {
	case j.InUse:
		return fmt.Sprintf("%s (read by process %d)", state, j.PID)
	case j.PID != 0:
		return fmt.Sprintf("%s (process %d)", state, j.PID)
	}
	return state
}

func changedOf(j *jobs.Job) string { return j.Changed.Local().Format(time.DateTime) }

// newJobsShowCommand makes stage jobs show, which prints one job with its counts and the
// size of its streams.
func newJobsShowCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "show a job: its rows, results and failures, and what its streams take",
		Args:  required("name a job: stage jobs ls lists them", cobra.ExactArgs(1)),
	}
	asJSON := cmd.Flags().Bool("json", false, "print it as JSON")
	s := &storeFlags{configFlags: newConfigFlags(cmd, env, groupsOfJobs, nil)}
	cmd.ValidArgsFunction = s.completeJobs
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		dir := cfg.Data.Dir
		j, err := jobs.Find(dir, args[0])
		if err != nil {
			return explainJob(err)
		}
		report := &jobReport{Job: j, Streams: []streamSize{}}
		s.job = j.Name
		if err := s.choose(cfg); err != nil {
			return config.Invalid(err)
		}
		if err := report.read(soft, env, cfg); err != nil {
			return err
		}
		if *asJSON {
			return terminal.WriteJSON(env.Stdout, report)
		}
		report.write(env.Stdout, dir)
		return nil
	}
	cmd.RunE = s.run(config.NeedNothing, run)
	return cmd
}

// jobReport is what jobs show prints.
type jobReport struct {
	*jobs.Job

	Streams []streamSize `json:"streams"`
}

type streamSize struct {
	Name     string `json:"name"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// read counts the rows and results in the store of the job. A job without a store has
// none.
func (r *jobReport) read(ctx context.Context, env *Env, cfg *config.Config) error {
	if has, err := jobs.HasStore(cfg.Data.Dir); !has || err != nil {
		r.Judge(jobs.Counts{})
		return err
	}
	return withStreams(ctx, env, cfg, r.count)
}

// count reads the counts from the streams. A row of the input stream without a result is
// pending. The results are counted after the rows, so while a process works on the job
// there may be more of them; then none is pending.
func (r *jobReport) count(
	ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
) error {
	list := js.ListStreams(ctx)
	rows := uint64(0)
	for info := range list.Info() {
		r.Streams = append(r.Streams,
			streamSize{Name: info.Config.Name, Messages: info.State.Msgs, Bytes: info.State.Bytes})
		if info.Config.Name == cfg.Input.Stream {
			rows = info.State.Msgs
		}
	}
	if err := list.Err(); err != nil {
		return err
	}

	counts, err := results.Count(ctx, js, cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // the job was killed before it began
		err = nil
	}
	pending := rows - min(rows, counts.Results)
	r.Judge(jobs.Counts{
		Rows:    int64(counts.Succeeded + counts.Failed + pending), //nolint:gosec // messages on a disk
		Results: counts.Results, Succeeded: counts.Succeeded, Failed: counts.Failed,
		Pending: pending,
	})
	return err
}

// write prints the report for people, one fact a line. For example:
//
//	job        reviews
//	state      done
//	rows       197 succeeded, 3 failed, 0 pending
//	size       1.2 MiB in stage-data/reviews
func (r *jobReport) write(w io.Writer, dir string) {
	terminal.PrintLine(w, "job        %s", r.Name)
	terminal.PrintLine(w, "input      %s", inputOf(r.Job))
	terminal.PrintLine(w, "model      %s", modelOf(r.Job))
	terminal.PrintLine(w, "state      %s", stateOf(r.Job))
	terminal.PrintLine(w, "changed    %s", changedOf(r.Job))
	if r.Damaged != "" {
		terminal.PrintLine(w, "damaged    %s", r.Damaged)
	}
	if r.Why != "" {
		terminal.PrintLine(w, "ended by   %s", r.Why)
	}
	if c := r.Counts; c != nil {
		terminal.PrintLine(w, "rows       %d succeeded, %d failed, %d pending", c.Succeeded,
			c.Failed, c.Pending)
		if left := c.Rows - int64(c.Answered()+c.Pending); left > 0 { //nolint:gosec // messages on a disk
			terminal.PrintLine(w, "           %d of %d not loaded yet", left, c.Rows)
		}
	}
	sizes := make([]string, len(r.Streams))
	for i, s := range r.Streams {
		sizes[i] = fmt.Sprintf("%s %s", s.Name, terminal.Bytes(int64(s.Bytes))) //nolint:gosec // bytes on a disk
	}
	terminal.PrintLine(w, "size       %s in %s", terminal.Bytes(r.Bytes), r.Dir)
	if len(sizes) > 0 {
		terminal.PrintLine(w, "           %s", strings.Join(sizes, ", "))
	}
	if r.Counts != nil && r.Failed > 0 {
		terminal.PrintLine(w, "\nThe failed rows: stage results --failed --data-dir %s --job %s",
			shellWord(dir), r.Name)
	}
}

// newJobsRemoveCommand makes stage jobs rm. It finds all jobs before it removes the first
// one, so that a misspelt name removes nothing.
func newJobsRemoveCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm NAME…",
		Short: "remove jobs with all that they have stored, and free their space",
		Args:  required("name jobs: stage jobs ls lists them", cobra.MinimumNArgs(1)),
	}
	yes := cmd.Flags().BoolP("yes", "y", false, "do not ask")
	s := &storeFlags{configFlags: newConfigFlags(cmd, env, groupsOfJobs, nil)}
	cmd.ValidArgsFunction = s.completeJobs
	run := func(_, _ context.Context, cfg *config.Config, args []string) error {
		var list []*jobs.Job
		slices.Sort(args)
		for _, name := range slices.Compact(args) {
			j, err := jobs.Find(cfg.Data.Dir, name)
			if err != nil {
				return explainJob(err)
			}
			list = append(list, j)
		}
		if !*yes {
			if err := confirmRemoval(env, list); err != nil {
				return err
			}
		}
		var errs []error
		for _, j := range list { // a job that is in use does not keep the others from removal
			errs = append(errs, removeJob(env, j))
		}
		return errors.Join(errs...)
	}
	cmd.RunE = s.run(config.NeedNothing, run)
	return cmd
}

// confirmRemoval lists the jobs and asks on the terminal.
func confirmRemoval(env *Env, list []*jobs.Job) error {
	if err := env.canAsk("give --yes to remove without a question"); err != nil {
		return err
	}
	for _, j := range list {
		terminal.PrintLine(env.Stderr, "%s  %s", j.Name, describeJob(j))
	}
	question := fmt.Sprintf("Remove %s with all that is stored?", terminal.Plural(len(list), "job"))
	return env.ask(question, errors.New("nothing was removed"))
}

// removeJob removes one job and prints how much space that has freed.
func removeJob(env *Env, j *jobs.Job) error {
	const wait = 10 * time.Second // as other commands wait for a store
	kept, err := jobs.Remove(j, wait)
	if err != nil {
		return err
	}
	if kept {
		terminal.PrintLine(env.Stderr,
			"removed job %s; %s stays, because it holds files that are not of stage", j.Name, j.Dir)
		return nil
	}
	terminal.PrintLine(env.Stderr, "removed job %s, %s freed", j.Name, terminal.Bytes(j.Bytes))
	return nil
}
