// Package cluster runs clusters of JetStream servers inside a test.
package cluster

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Start runs n JetStream servers in this process until the test ends. Several talk over
// loopback sockets, so they live in real time.
func Start(tb testing.TB, n int) []*server.Server {
	tb.Helper()
	var servers []*server.Server
	var routes []*url.URL
	ports := make([]int, n) // the servers must know each other's in advance
	for i := range ports {
		ports[i] = stagetest.FreePort(tb)
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", ports[i])})
	}
	for i := range n {
		opts := &server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT,
			JetStream: true, StoreDir: stagetest.Dir(tb), NoSigs: true, NoLog: true,
		}
		if n > 1 {
			opts.Routes, opts.Cluster = routes, server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]}
		}
		srv, err := server.NewServer(opts)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
		srv.Start()
		servers = append(servers, srv)
	}
	for i, srv := range servers { // one alone is not ready: it waits for a majority
		if !srv.ReadyForConnections(time.Minute) {
			tb.Fatalf("server %d is not ready", i)
		}
	}
	return servers
}

// CreateStream creates a stream as soon as the cluster has elected its leader.
func CreateStream(tb testing.TB, nc *nats.Conn, cfg jetstream.StreamConfig) {
	tb.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
		if _, err = js.CreateStream(tb.Context(), cfg); err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatal(err)
		}
	}
}
