package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// processJob runs a job of stage process on its own, with the server and the LLM in the
// process.
func (s *site) processJob(ctx context.Context, _ int) error {
	const rows = processRows
	job, err := s.process(ctx, rows)
	if err != nil {
		return err
	}
	fmt.Printf("\n**process**: `stage process` of %d rows of 200 bytes, provider mock, pool 64: %.1f s, %.1f s of CPU, %.0f MiB at most\n", rows,
		job.took.Seconds(), job.cpu.Seconds(), job.peak)
	return nil
}

// processCost is what a job of stage process took.
type processCost struct {
	took, cpu time.Duration
	peak      float64 // MiB of resident memory
}

// process runs a job of so many rows of 200 bytes.
func (s *site) process(ctx context.Context, rows int) (job processCost, err error) {
	dir, err := os.MkdirTemp(s.dir, "process-")
	if err != nil {
		return job, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	in := filepath.Join(dir, "rows.jsonl")
	if err := writeRows(in, rows); err != nil {
		return job, err
	}
	results := filepath.Join(dir, "out.jsonl")
	cmd := exec.CommandContext(ctx, s.stage, "process", in, "-o", results, "--job", "bench")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "STAGE_LLM_PROVIDER=mock", "STAGE_POOL_SIZE=64", "STAGE_TEMPLATE=Say {{ row.text }}",
	}
	cmd.Dir = dir // the job's data go into it: a job of an earlier turn would be resumed
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return job, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			job.took, job.cpu = time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
			raw, readErr := os.ReadFile(results)
			if n := bytes.Count(raw, []byte{'\n'}); err == nil && readErr == nil && n != rows {
				err = fmt.Errorf("%d results of %d rows", n, rows)
			}
			if err = errors.Join(err, readErr); err != nil {
				err = fmt.Errorf("stage process: %w\n%s", err, out.String())
			}
			return job, err
		case <-tick.C:
			job.peak = max(job.peak, peakOf(cmd.Process.Pid)) // 0 once it has ended
		}
	}
}

// writeRows writes rows of 200 bytes, one a line.
func writeRows(path string, rows int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // what was not written shows when it is read
	w := bufio.NewWriter(f)
	for n := range rows {
		begin := fmt.Sprintf(`{"n":%d,"text":"`, n)
		fmt.Fprintf(w, "%s%s\"}\n", begin, strings.Repeat("x", 200-len(begin)-len("\"}\n"))) //nolint:errcheck // Flush returns it
	}
	return w.Flush()
}
