package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// restartWait is how long a replica that has ended by itself stays down, as under a
// supervisor.
const restartWait = 300 * time.Millisecond

// replica is one place where a process of the stage runs, and what keeps it running.
type replica struct {
	n       int
	ps      *processes
	path    string
	dir     string
	environ []string
	proxies []*proxy
	notes   *notes

	mu       sync.Mutex
	proc     *process
	stopping *process // the one signalled to stop last
	hard     *process // the one that had a second signal last
	cutOff   bool
	wanted   bool          // its end is: it was signalled
	asleep   bool          // suspended
	down     time.Duration // how long it stays down then
	retired  bool
	exits    int // by itself
	starts   int
}

// supervise starts the process again and again until it is retired or ctx ends.
func (r *replica) supervise(ctx context.Context) error {
	for {
		r.mu.Lock()
		if r.retired || ctx.Err() != nil {
			r.mu.Unlock()
			return nil //nolint:nilerr // ctx ends what is over
		}
		proc, err := r.ps.start(fmt.Sprintf("stage%d", r.n), r.dir, r.environ, r.path, "run")
		r.proc, r.wanted = proc, false
		r.starts++
		r.mu.Unlock()
		if err != nil {
			return err
		}
		<-proc.done
		select {
		case <-time.After(r.ended(ctx, proc)):
		case <-ctx.Done():
		}
	}
}

// notServed reports whether a replica ended because NATS did not serve it. It may do so
// only at its start, with a clear message, and is then started again.
func notServed(why string) bool {
	for _, part := range []string{
		"connect to NATS at ", "context deadline exceeded", "no answer: ", "JetStream does not answer", "JetStream is not enabled on the server",
		"the cluster has no leader", "the cluster has no servers", "the server has no room", "the server says ",
	} {
		if strings.Contains(why, part) {
			return true
		}
	}
	return false
}

// ended notes the end of the process and returns how long it stays down.
func (r *replica) ended(ctx context.Context, proc *process) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc = nil
	output, _ := os.ReadFile(proc.log)
	for _, sign := range []string{"panic: ", "DATA RACE", "fatal error: "} {
		if bytes.Contains(output, []byte(sign)) {
			r.notes.violate("crash", "replica %d: %s: see %s", r.n, strings.TrimSuffix(sign, ": "), proc.log)
		}
	}
	if r.wanted || ctx.Err() != nil {
		return r.down
	}
	r.exits++
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	last := lines[len(lines)-1]
	r.notes.log("replica %d ended by itself with %d: %s: %s", r.n, proc.exitCode(), proc.log, last)
	if proc.exitCode() != 1 || bytes.Contains(output, []byte(`"claimed the partition"`)) || !notServed(last) {
		r.notes.violate("exit", "replica %d ended by itself with %s: %s: %s", r.n, proc.cmd.ProcessState, proc.log, last)
	}
	return restartWait
}

// suspend suspends the process until wake is called. It returns nil where none runs, or
// it is suspended already.
func (r *replica) suspend() (wake func() error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	proc := r.proc
	if proc == nil || r.asleep || r.hard == proc { // what is suspended can't end in time
		return nil, nil
	}
	if err := proc.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	r.asleep = true
	return func() error {
		r.mu.Lock()
		r.asleep = false
		r.mu.Unlock()
		return proc.signal(syscall.SIGCONT)
	}, nil
}

// kill kills the process and lets it start again after down. It returns false where none
// runs.
func (r *replica) kill(down time.Duration) (bool, error) {
	r.mu.Lock()
	proc := r.proc
	r.wanted, r.down = true, down
	r.mu.Unlock()
	if proc == nil {
		return false, nil
	}
	return true, proc.kill()
}

// stop ends the process as Kubernetes would and lets it start again after down. It
// returns false where none runs. One that is stopping already is waited for: a second
// signal would mean to stop at once.
func (r *replica) stop(ctx context.Context, down, patience time.Duration) (bool, error) {
	r.mu.Lock()
	proc := r.proc
	again := proc != nil && r.stopping == proc
	r.wanted, r.down, r.stopping = true, down, proc
	r.mu.Unlock()
	if proc == nil {
		return false, nil
	}
	if !again {
		if err := proc.signal(syscall.SIGTERM); err != nil {
			return false, err
		}
	}
	ended, err := proc.ends(ctx, patience)
	if err != nil {
		return false, err
	}
	if !ended {
		r.notes.violate("stop", "replica %d has not ended %v after SIGTERM: see %s", r.n, patience, proc.log)
		return false, proc.kill()
	}
	if code := proc.exitCode(); code > 1 && (code != exitInterrupted || !r.hardStopped(proc)) {
		r.notes.violate("stop", "replica %d ended with %d after SIGTERM: see %s", r.n, code, proc.log)
	} else if code == 1 {
		r.notes.log("replica %d ended with 1 after SIGTERM: see %s", r.n, proc.log)
	}
	return true, nil
}

const (
	// hardPatience is how long a process may take to end after a second signal: 5 s, and
	// 1 s for a machine that is busy.
	hardPatience    = 6 * time.Second
	exitInterrupted = 130
)

// stopHard signals the process as stop does and, if it still runs then, again after that
// time, and waits until it has ended. It starts again after down. stopped is false where
// none runs, or it is suspended or stopping already; twice reports whether it took the
// second signal.
func (r *replica) stopHard(ctx context.Context, down, after time.Duration) (stopped, twice bool, err error) {
	r.mu.Lock()
	proc := r.proc
	if proc == nil || r.asleep || r.stopping == proc {
		r.mu.Unlock()
		return false, false, nil
	}
	r.wanted, r.down, r.stopping, r.hard = true, down, proc, proc
	r.mu.Unlock()
	ended := false
	for _, within := range []time.Duration{after, hardPatience} {
		twice = within == hardPatience
		if err := proc.signal(syscall.SIGTERM); err != nil {
			return false, false, err
		}
		if ended, err = proc.ends(ctx, within); err != nil {
			return false, false, err
		}
		if ended {
			break
		}
	}
	if !ended {
		r.notes.violate("stop", "replica %d has not ended %v after a second SIGTERM: see %s", r.n, hardPatience, proc.log)
		return true, true, proc.kill()
	}
	if code := proc.exitCode(); code != 0 && code != exitInterrupted && code != -1 { // -1: a kill came in between
		r.notes.violate("stop", "replica %d ended with %d after two SIGTERMs: see %s", r.n, code, proc.log)
	}
	return true, twice, nil
}

// hardStopped reports whether the process may have had a second signal.
func (r *replica) hardStopped(proc *process) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hard == proc
}

// healthy reports whether a process runs that is neither suspended, cut off nor stopping.
func (r *replica) healthy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc != nil && !r.asleep && !r.cutOff && r.stopping != r.proc
}

// retire stops the process for good. Its exit code must be 0.
func (r *replica) retire(ctx context.Context, patience time.Duration) error {
	r.mu.Lock()
	r.retired = true
	proc := r.proc
	r.mu.Unlock()
	if _, err := r.stop(ctx, 0, patience); err != nil {
		return err
	}
	if proc != nil {
		<-proc.done
		if code := proc.exitCode(); code != 0 {
			r.notes.violate("stop", "replica %d ended with %d after the last SIGTERM: see %s", r.n, code, proc.log)
		}
	}
	return nil
}

// process is what runs now, or nil.
func (r *replica) process() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc
}

// owns reports whether the process that runs now has claimed the partition as owner.
func (r *replica) owns(owner string) bool {
	proc := r.process()
	if proc == nil || owner == "" {
		return false
	}
	output, err := os.ReadFile(proc.log)
	return err == nil && bytes.Contains(output, fmt.Appendf(nil, `"owner":%q`, owner)) // others name it in other words
}

// cut sets the network between the replica and all servers.
func (r *replica) cut(to state) {
	r.mu.Lock()
	r.cutOff = to != open
	r.mu.Unlock()
	for _, p := range r.proxies {
		p.set(to)
	}
}
