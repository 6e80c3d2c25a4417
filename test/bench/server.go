package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// server is a nats-server in its own process.
type server struct {
	cmd   *exec.Cmd
	url   string
	pprof string // where its profiles are, if asked for
}

// startServers starts n servers of the program at path, a cluster if there are several,
// each with its store in dir. It returns those that run also with an error.
func startServers(ctx context.Context, path, dir string, n int, profiled bool) (all []*server, err error) {
	routes := make([]string, n)
	for i := range routes {
		if routes[i], err = freeAddr(ctx); err != nil {
			return nil, err
		}
	}
	for i := range n {
		own := filepath.Join(dir, fmt.Sprintf("nats%d", i))
		if err := os.MkdirAll(own, 0o700); err != nil {
			return all, err
		}
		text := fmt.Sprintf("server_name: n%d\nlisten: \"127.0.0.1:-1\"\nports_file_dir: %q\njetstream { store_dir: %q }\nmax_payload: 8MB\n", i, own, filepath.Join(own, "store"))
		if profiled {
			text += "prof_port: -1\n"
		}
		if n > 1 {
			text += fmt.Sprintf("cluster { name: bench, listen: %q, routes: [\"nats://%s\"] }\n", routes[i], strings.Join(routes, `", "nats://`))
		}
		config := filepath.Join(own, "nats.conf")
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return all, err
		}
		s := &server{cmd: exec.CommandContext(ctx, path, "-c", config)}
		s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
		s.cmd.WaitDelay = 10 * time.Second
		if err := s.cmd.Start(); err != nil {
			return all, err
		}
		all = append(all, s)
	}
	for i, s := range all {
		if err := s.find(ctx, filepath.Join(dir, fmt.Sprintf("nats%d", i))); err != nil {
			return all, err
		}
	}
	return all, nil
}

// find waits for the file that holds the server's addresses.
func (s *server) find(ctx context.Context, dir string) error {
	path := filepath.Join(dir, fmt.Sprintf("nats-server_%d.ports", s.cmd.Process.Pid))
	for range 200 {
		var ports struct {
			NATS    []string `json:"nats"`
			Profile []string `json:"profile"`
		}
		if raw, err := os.ReadFile(path); err == nil && json.Unmarshal(raw, &ports) == nil && len(ports.NATS) > 0 {
			s.url, s.pprof = ports.NATS[0], strings.Join(ports.Profile, "")
			return nil
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("the server wrote no %s", path)
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait() // a signal ended it
}

// profile writes the server's CPU profile of the next while, in whole seconds.
func (s *server) profile(ctx context.Context, file string, while time.Duration) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // what was not written shows when it is read
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.pprof, max(1, int(while.Seconds())))
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // read to its end
	_, err = io.Copy(f, body)
	return err
}
