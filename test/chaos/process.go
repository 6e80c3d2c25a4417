package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// process is a program that was started here.
type process struct {
	cmd  *exec.Cmd
	log  string        // the file that its output goes to
	done chan struct{} // closed when it has ended
}

// signal sends a signal; to a process that has ended it does nothing.
func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s of %s: %w", s, filepath.Base(p.cmd.Path), err)
	}
	return nil
}

// kill ends the process as a power cut would, but for the disk, and waits for its end.
func (p *process) kill() error {
	err := p.signal(syscall.SIGKILL)
	if err == nil {
		<-p.done
	}
	return err
}

// ends waits for the end of the process, and reports whether it ended in time.
func (p *process) ends(ctx context.Context, within time.Duration) (bool, error) {
	select {
	case <-p.done:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-time.After(within):
		return false, nil
	}
}

// exitCode is -1 for a process that was killed. It must have ended.
func (p *process) exitCode() int { return p.cmd.ProcessState.ExitCode() }

// processes starts programs and ends all that it has started. Where the system can, they
// also end with this process, whatever ends it.
type processes struct {
	logs string // directory

	mu     sync.Mutex
	closed bool
	live   map[*process]struct{}
	count  int
}

// start starts a program in a directory, which it creates. Its output goes to a new file.
func (ps *processes) start(name, dir string, environ []string, path string, args ...string) (*process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return nil, context.Canceled
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ps.count++
	log := filepath.Join(ps.logs, fmt.Sprintf("%04d-%s.log", ps.count, name))
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer output.Close() //nolint:errcheck // the process has its own handle
	p := &process{log: log, done: make(chan struct{})}
	p.cmd = exec.Command(path, args...) //nolint:noctx // the end of all is close's
	p.cmd.Dir = dir
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, environ...)
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = endWithParent()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ps.live[p] = struct{}{}
	go func() {
		_ = p.cmd.Wait() // see exitCode
		ps.mu.Lock()
		delete(ps.live, p)
		ps.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

// close kills all that is left, and lets nothing start any more.
func (ps *processes) close() {
	ps.mu.Lock()
	ps.closed = true
	var left []*process
	for p := range ps.live {
		left = append(left, p)
	}
	ps.mu.Unlock()
	for _, p := range left {
		_ = p.kill()
	}
}
