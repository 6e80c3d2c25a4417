package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/spf13/cobra"
)

// storeFlags are the flags of a command that reads the streams of a stage or a job: the
// flags of the configuration, and --job, which names a store below STAGE_DATA_DIR.
type storeFlags struct {
	*configFlags

	job  string
	jobs string // the directory in which the job of --job is
}

func newStoreFlags(cmd *cobra.Command, env *Env) *storeFlags {
	s := &storeFlags{}
	cmd.Flags().StringVar(&s.job, "job", "",
		"name of a job of process, below STAGE_DATA_DIR; stage jobs ls lists them")
	s.configFlags = newConfigFlags(cmd, env, groupsOfStreams, nil)
	if err := cmd.RegisterFlagCompletionFunc("job", s.completeJobs); err != nil {
		panic(err) // the flag was added above
	}
	return s
}

// completeJobs returns the names of the jobs for the shell.
func (s *storeFlags) completeJobs(
	cmd *cobra.Command, _ []string, _ string,
) ([]string, cobra.ShellCompDirective) {
	var names []string
	if cfg, err := s.Load(cmd.Context(), config.NeedNothing); err == nil {
		list, _ := jobs.List(cfg.Data.Dir) // after an error there are no names to offer
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// choose points the configuration at the store of --job, if it was given.
func (s *storeFlags) choose(cfg *config.Config) error {
	if s.job == "" {
		return nil
	}

	// Only flags contradict --job. A server in the environment is meant for other
	// commands.
	for _, flag := range []string{config.FlagName("STAGE_NATS_URL"), serverFlag, contextFlag} {
		if s.cmd.Flags().Changed(flag) {
			return fmt.Errorf("--job and --%s: a job has a store of its own; give one of the two",
				flag)
		}
	}

	s.jobs = cfg.Data.Dir
	cfg.UseStore(filepath.Join(cfg.Data.Dir, s.job))
	cfg.Streams.Partitions = 1 // whatever the environment says: process has one
	return nil
}

// reopen notes that rows of the job of --job may wait again, so that stage jobs ls does
// not list it as done. A dry run notes nothing.
func (s *storeFlags) reopen(cfg *config.Config, dryRun bool) error {
	if s.job == "" || dryRun {
		return nil
	}
	return jobs.Reopen(cfg.Data.Dir)
}

// exists returns an error if there is no store to open. It lists the jobs that there are.
func (s *storeFlags) exists(cfg *config.Config) error {
	if s.job != "" {
		if _, err := jobs.Find(s.jobs, s.job); err != nil {
			return explainJob(err)
		}
	}
	if len(cfg.NATS.URL) > 0 {
		return nil
	}
	return requireStore(cfg.Data.Dir)
}

// runOnStore is [configFlags.runOnStreams] for a command that needs a store that exists.
// In a directory without one, the error lists the jobs that are there. Opening such a
// directory would leave an empty store in it, and the command would say that there are no
// rows.
func (s *storeFlags) runOnStore(
	check func(cfg *config.Config) error, f onStreams,
) func(*cobra.Command, []string) error {
	return s.runOnStreams(func(cfg *config.Config) error {
		if err := s.choose(cfg); err != nil {
			return err
		}
		if check != nil {
			if err := check(cfg); err != nil {
				return err
			}
		}
		return s.exists(cfg)
	}, f)
}

// runOrFollow is runOnStore for a command with --follow, which calls forever in place of
// once. The store need not exist yet: forever waits for a process that serves it.
func (s *storeFlags) runOrFollow(follow *bool, check func(cfg *config.Config) error, once onStreams,
	forever func(ctx context.Context, cfg *config.Config) error,
) func(*cobra.Command, []string) error {
	runOnce := s.runOnStore(check, once)
	run := func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		if err := errors.Join(s.choose(cfg), check(cfg)); err != nil {
			return config.Invalid(err)
		}
		if err := s.servable(cfg); err != nil {
			return err
		}
		return forever(soft, cfg)
	}
	runForever := s.run(config.NeedNothing, run)
	return func(cmd *cobra.Command, args []string) error {
		if *follow {
			return runForever(cmd, args)
		}
		return runOnce(cmd, args)
	}
}

// servable refuses a directory that has jobs but no store. Each process serves the store of
// one job, so following would wait for ever.
func (s *storeFlags) servable(cfg *config.Config) error {
	if len(cfg.NATS.URL) > 0 || s.job != "" {
		return nil
	}
	list, err := jobs.List(cfg.Data.Dir)
	if err == nil && len(list) > 0 {
		err = requireStore(cfg.Data.Dir)
	}
	return err
}

// requireStore reports that a directory has no store, and lists the jobs that it has. The
// usual mistake is to name the directory of all jobs, stage-data, in place of one job.
func requireStore(dir string) error {
	has, err := jobs.HasStore(dir)
	if has || err != nil {
		return err
	}
	list, err := jobs.List(dir)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return config.Invalid(fmt.Errorf("there is no store at %s: name a server with --nats-url, "+
			"or the store with --data-dir", dir))
	}
	return config.Invalid(fmt.Errorf("%s has no store of its own, but jobs of stage process: "+
		"name one with\n%s", dir, jobLines(list)))
}

// explainJob adds to the error of a job that does not exist the jobs that do.
func explainJob(err error) error {
	missing, ok := errors.AsType[*jobs.NotFoundError](err)
	if !ok {
		return err
	}
	list, _ := jobs.List(missing.Dir) // it only explains
	if len(list) == 0 {
		return config.Invalid(fmt.Errorf("%w, nor any other: name the directory of jobs with "+
			"--data-dir", err))
	}
	return config.Invalid(fmt.Errorf("%w, but\n%s", err, jobLines(list)))
}

// jobLines lists at most 20 jobs in an error, each as the flag that names it:
//
//	--job reviews  reviews.jsonl, mock, done, 1.2 MiB, 2026-11-28 04:30:00
func jobLines(list []jobs.Job) string {
	const most = 20
	lines := make([]string, 0, most+1)
	width := 0
	for _, j := range list[:min(len(list), most)] {
		width = max(width, len(j.Name))
	}
	for _, j := range list[:min(len(list), most)] {
		lines = append(lines, fmt.Sprintf("--job %-*s  %s", width, j.Name, describeJob(&j)))
	}
	if n := len(list) - most; n > 0 {
		lines = append(lines, fmt.Sprintf("(and %d more: stage jobs ls)", n))
	}
	return strings.Join(lines, "\n")
}
