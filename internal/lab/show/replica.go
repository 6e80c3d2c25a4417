package show

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/terminal"
)

// stopWithin bounds how long a replica that was told to stop may take.
const stopWithin = 20 * time.Second

// replica is a process of the stage. Its standard input is how it is told to end, see [Obey]:
// a pipe that the system closes when this process ends, whatever ends it.
type replica struct {
	cmd    *exec.Cmd
	tell   io.WriteCloser
	ended  chan struct{} // closed when it has ended
	killed bool          // it was meant to end

	address string
	first   chan string // its first line of output: the address of its page
}

// startReplica starts a process. What it has to say goes to stderr.
func startReplica(program, environ []string, stderr io.Writer) (*replica, error) {
	r := &replica{cmd: exec.Command(program[0], program[1:]...), ended: make(chan struct{}), first: make(chan string, 1)} //nolint:noctx,gosec // this program; kill ends it
	r.cmd.Env, r.cmd.Stderr = environ, stderr
	var err error
	if r.tell, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a replica: %w", err)
	}
	go func() {
		lines := bufio.NewReader(output)
		line, _ := lines.ReadString('\n')
		r.first <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, lines)
		_ = r.cmd.Wait() // its state says how it ended
		close(r.ended)
	}()
	return r, nil
}

func (r *replica) pid() int { return r.cmd.Process.Pid }

// over reports whether it has ended.
func (r *replica) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// page returns the address of its page.
func (r *replica) page(ctx context.Context) (string, error) {
	if r.address != "" {
		return r.address, nil
	}
	select {
	case r.address = <-r.first:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if r.address == "" {
		<-r.ended
		return "", fmt.Errorf("process %d, a replica, has ended before it began: %v", r.pid(), r.cmd.ProcessState)
	}
	return r.address, nil
}

// stop has it stop cleanly, and waits for its end.
func (r *replica) stop(ctx context.Context) error {
	r.killed = true
	if _, err := r.tell.Write([]byte("\n")); err != nil {
		return fmt.Errorf("process %d, a replica, can't be told to stop: %w", r.pid(), err)
	}
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(stopWithin):
		return fmt.Errorf("process %d, a replica, has not stopped within %v", r.pid(), stopWithin)
	}
}

// kill ends it as kill -9 does, and waits for its end.
func (r *replica) kill() {
	r.killed = true
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.ended
	_ = r.tell.Close()
}

// facts returns what it says of itself; nil means that it does not answer.
func (r *replica) facts(w *replicas.Whole) *replicas.Facts {
	for i := range w.Replicas {
		if w.Replicas[i].PID == r.pid() && w.Replicas[i].Status == replicas.Answers {
			return &w.Replicas[i].Facts
		}
	}
	return nil
}

// owns returns the partitions that it owns.
func (r *replica) owns(w *replicas.Whole) (list []int) {
	f := r.facts(w)
	for i := range w.Partitions {
		if p := &w.Partitions[i]; f != nil && p.Replica == f.Replica {
			list = append(list, p.Partition.Partition)
		}
	}
	return list
}

// partitions names partitions in a sentence.
func partitions(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("partition %d", list[0])
	}
	return terminal.Plural(len(list), "partition")
}

// environ is the environment of the replicas: that of this process, but for the settings,
// which are those of the show.
func (s *show) environ(srv *natsd.Server) []string {
	list := []string{"STAGE_NATS_URL=" + srv.URL(), "STAGE_NATS_TOKEN=" + srv.Token()}
	for name, value := range s.Environ {
		if !strings.HasPrefix(name, "STAGE_") && !strings.HasPrefix(name, "NATS_") {
			list = append(list, name+"="+value)
		}
	}
	settings, deprecated := s.cfg.Settings(), s.cfg.Deprecated()
	for _, f := range config.Fields() {
		if f.Deprecated != "" && !slices.Contains(deprecated, f) {
			continue // the replicas would warn of it
		}
		lane := strings.HasPrefix(f.Variable, "STAGE_LANE") // any setting of it switches it on
		if value := settings[f.Variable]; value != "" && !f.Secret && !lane && f.Variable != "STAGE_HTTP_ADDR" {
			list = append(list, f.Variable+"="+value)
		}
	}
	return slices.Clip(list)
}
