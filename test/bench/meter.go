package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// figures are the results of one run, after the warm-up.
type figures struct {
	PerSec   float64 // rows a second
	CPU      float64 // µs of the client's CPU a row
	Allocs   float64 // of the client a row
	Bytes    float64 // that it allocated a row
	Server   float64 // µs of the nats-server's CPU a row, of all of them
	LLM      float64 // µs of the LLM's
	PeakMiB  float64 // resident memory of the client
	LiveMiB  float64 // what the last garbage collection left of its heap, and its stacks
	IO       float64 // reads and writes of the client a row, of sockets and files
	ServerIO float64 // the same, of the nats-server
	Stored   float64 // messages that the nats-server has stored a row, beside the row: events, result, entry of the journal
	Group    float64 // results that went into the log at a time, on average, or 0 if it is not known
}

// sample is a count at an instant, with the CPU used until then.
type sample struct {
	at               time.Time
	rows             int
	cpu, server, llm time.Duration
	io, serverIO     int64 // reads and writes
}

// between makes figures of two samples.
func between(a, b sample) figures {
	n := float64(b.rows - a.rows)
	each := func(from, to time.Duration) float64 { return float64((to - from).Nanoseconds()) / 1e3 / n }
	count := func(from, to int64) float64 { return float64(to-from) / n }
	return figures{
		IO: count(a.io, b.io), ServerIO: count(a.serverIO, b.serverIO),
		PerSec: n / b.at.Sub(a.at).Seconds(),
		CPU:    each(a.cpu, b.cpu), Server: each(a.server, b.server), LLM: each(a.llm, b.llm),
	}
}

// cpuOf is the CPU time that a process has used: the sum over its threads, of which Go
// ends none. Rusage covers other processes only once they have ended. It is 0 where the
// system does not report it.
func cpuOf(pid int) time.Duration {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	sum := time.Duration(0)
	for _, path := range threads {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		first, _, _ := strings.Cut(string(raw), " ")
		ns, _ := strconv.ParseInt(first, 10, 64) // 0 serves as well as an error
		sum += time.Duration(ns)
	}
	return sum
}

// ioOf is how often a process has read and written. It is 0 where the system does not
// report it.
func ioOf(pid int) (calls int64) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if name, value, _ := strings.Cut(line, ":"); name == "syscr" || name == "syscw" {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64) // 0 serves as well as an error
			calls += n
		}
	}
	return calls
}

// peak is the most memory that the contender has held, in MiB.
func (t *turn) peak() float64 { return peakOf(t.cmd.Process.Pid) }

// peakOf is the most memory that a process has held, in MiB. It is 0 where the system
// does not report it.
func peakOf(pid int) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 64)
			return n / 1024
		}
	}
	return 0
}

// Metrics of a contender: those of the stage, which the loops have, too.
const (
	metricMallocs    = "go_memstats_mallocs_total"
	metricBytes      = "go_memstats_alloc_bytes_total"
	metricHeap       = "go_memstats_heap_alloc_bytes"
	metricLive       = "go_gc_heap_live_bytes" // what the last collection left
	metricStacks     = "go_memstats_stack_inuse_bytes"
	metricGoroutines = "go_goroutines"
	metricDone       = "bench_done"
)

// scrape reads the metrics of the contender at addr.
func scrape(ctx context.Context, addr string) (map[string]float64, error) {
	body, err := get(ctx, "http://"+addr+"/metrics")
	if err != nil {
		return nil, err
	}
	defer body.Close() //nolint:errcheck // read to its end
	all := make(map[string]float64)
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] = v
		}
	}
	return all, lines.Err()
}

// get returns the body at a URL; the caller closes it.
func get(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// serveMeters serves a loop's metrics at addr; done counts its calls.
func serveMeters(ctx context.Context, addr string, done *atomic.Int64) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		fmt.Fprintf(w, "%s %d\n%s %d\n%s %d\n%s %d\n%s %d\n", //nolint:errcheck // the reader would miss it
			metricMallocs, m.Mallocs, metricBytes, m.TotalAlloc, metricDone, done.Load(), metricLive, live[0].Value.Uint64(), metricStacks, m.StackInuse)
	})}
	go func() { _ = server.Serve(listener) }() // ends with the process
	return nil
}

// liveMiB is the memory in use according to scraped metrics, garbage aside.
func liveMiB(m map[string]float64) float64 { return (m[metricLive] + m[metricStacks]) / (1 << 20) }

// freeAddr is a local address on which nothing listens.
func freeAddr(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
