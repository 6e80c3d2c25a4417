package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// natsServer is one nats-server, and the proxies in front of it. It takes other ports
// each time it starts; the proxies keep their addresses.
type natsServer struct {
	n     int
	dir   string
	ps    *processes
	path  string // of the program
	front []*proxy
	mesh  []*proxy // to its cluster port

	mu   sync.Mutex // held while it starts and ends
	proc *process   // nil: it is down
	disk bool       // its store is on its own small disk
}

// servers are all of them.
type servers struct {
	all []*natsServer
	// routes[i][j] is what server i reaches server j through.
	routes [][]*proxy
}

// diskBytes is the size of a small disk: it holds some 100,000 rows.
const diskBytes = 2 << 30

// newServers starts n servers, each with its own store, on small disks of their own if
// asked. What it returns with an error must be closed, too.
func newServers(ctx context.Context, ps *processes, path, dir string, n int, disks bool) (*servers, error) {
	s := &servers{routes: make([][]*proxy, n)}
	for i := range n {
		s.all = append(s.all, &natsServer{n: i, ps: ps, path: path, dir: filepath.Join(dir, fmt.Sprintf("nats%d", i))})
	}
	for i := range n {
		for j := range n {
			p, err := newProxy(ctx)
			if err != nil {
				return s, err
			}
			s.routes[i] = append(s.routes[i], p)
			s.all[j].mesh = append(s.all[j].mesh, p)
		}
	}
	for i, srv := range s.all {
		if err := os.MkdirAll(srv.dir, 0o700); err != nil {
			return s, err
		}
		if err := os.WriteFile(srv.config(), []byte(configuration(i, n, s.routes[i])), 0o600); err != nil {
			return s, err
		}
		if disks {
			if err := mountDisk(srv.store(), diskBytes); err != nil {
				return s, err
			}
			srv.disk = true
		}
		if err := srv.start(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

// configuration of one server. Clients and routes must go through proxies only, so that
// they can be cut: the servers advertise no addresses. Connections to a dead peer are
// given up sooner than by default, within the minutes of a run.
func configuration(i, n int, routes []*proxy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server_name: n%d\nlisten: \"127.0.0.1:-1\"\nports_file_dir: \".\"\nping_interval: \"5s\"\n", i)
	fmt.Fprintf(&b, "jetstream { store_dir: \"store\", max_file_store: 1TB }\n")
	fmt.Fprintf(&b, "accounts {\n  APP { jetstream: enabled, users: [{user: app, password: app}] }\n  $SYS { users: [{user: sys, password: sys}] }\n}\nno_auth_user: app\n")
	if n > 1 {
		fmt.Fprintf(&b, "cluster {\n  name: chaos, listen: \"127.0.0.1:-1\", no_advertise: true, advertise: \"127.0.0.1:9\", ping_interval: \"5s\"\n  routes: [\n")
		for _, r := range routes {
			fmt.Fprintf(&b, "    \"nats://%s\"\n", r.address())
		}
		b.WriteString("  ]\n}\n")
	}
	return b.String()
}

func (s *natsServer) store() string { return filepath.Join(s.dir, "store") }

func (s *natsServer) config() string { return filepath.Join(s.dir, "nats.conf") }

// newFront makes a proxy that clients reach the server through.
func (s *natsServer) newFront(ctx context.Context) (*proxy, error) {
	p, err := newProxy(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.front = append(s.front, p)
	if s.proc != nil {
		ports, err := s.ports()
		if err != nil {
			return nil, err
		}
		p.aim(ports.nats)
	}
	return p, nil
}

// start starts the server, unless it is up, and returns when it listens.
func (s *natsServer) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		return nil
	}
	proc, err := s.ps.start(fmt.Sprintf("nats%d", s.n), s.dir, nil, s.path, "-c", s.config())
	if err != nil {
		return err
	}
	s.proc = proc
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ports, err := s.ports()
		if err == nil {
			for _, p := range s.front {
				p.aim(ports.nats)
			}
			for _, p := range s.mesh {
				p.aim(ports.cluster)
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-proc.done:
			s.proc = nil
			return fmt.Errorf("nats-server %d ended with %s: see %s", s.n, proc.cmd.ProcessState, proc.log)
		case <-ctx.Done():
			return fmt.Errorf("nats-server %d: %w", s.n, errors.Join(context.Cause(ctx), err))
		}
	}
}

// kill kills the server; one that is down stays down.
func (s *natsServer) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	_ = os.Remove(s.portsFile())
	err := s.proc.kill()
	s.proc = nil
	return err
}

// process is what runs now, or nil.
func (s *natsServer) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

type addresses struct{ nats, cluster string }

func (s *natsServer) portsFile() string {
	return filepath.Join(s.dir, fmt.Sprintf("nats-server_%d.ports", s.proc.cmd.Process.Pid))
}

// ports reads where the server listens. The lock is held.
func (s *natsServer) ports() (addresses, error) {
	text, err := os.ReadFile(s.portsFile())
	if err != nil {
		return addresses{}, err
	}
	var found struct{ Nats, Cluster []string }
	if err := json.Unmarshal(text, &found); err != nil {
		return addresses{}, err
	}
	if len(found.Nats) == 0 {
		return addresses{}, errors.New("no port")
	}
	a := addresses{nats: strings.TrimPrefix(found.Nats[0], "nats://")}
	if len(found.Cluster) > 0 {
		a.cluster = strings.TrimPrefix(found.Cluster[0], "nats://")
	}
	return a, nil
}

// isolate sets the network between one server and the others.
func (s *servers) isolate(n int, to state) {
	for i := range s.all {
		if i != n {
			s.routes[i][n].set(to)
			s.routes[n][i].set(to)
		}
	}
}

// fronts makes a proxy to each server, and the URLs that a client reaches them by.
func (s *servers) fronts(ctx context.Context) (proxies []*proxy, url string, err error) {
	var urls []string
	for _, srv := range s.all {
		p, err := srv.newFront(ctx)
		if err != nil {
			return nil, "", err
		}
		proxies = append(proxies, p)
		urls = append(urls, "nats://"+p.address())
	}
	return proxies, strings.Join(urls, ","), nil
}

// close ends the proxies and takes the disks away; the processes must have ended.
func (s *servers) close() {
	for _, srv := range s.all {
		if srv.disk {
			_ = unmountDisk(srv.store())
		}
		for _, p := range srv.front {
			p.close()
		}
		for _, p := range srv.mesh {
			p.close()
		}
	}
}
