package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// warmUp is left out of every figure, or a third of the rows if they go faster.
const warmUp = 2 * time.Second

// figures are what one run came to, after the warm-up.
type figures struct {
	Rows    int     // measured
	PerSec  float64 // rows a second
	CPU     float64 // µs of the client's CPU a row
	Server  float64 // µs of the server's
	PeakMiB float64 // resident memory of the client
}

// sample is a count at an instant, with the CPU used until then.
type sample struct {
	at          time.Time
	rows        int
	cpu, server time.Duration
}

// between makes figures of two samples.
func between(a, b sample) figures {
	n := b.rows - a.rows
	f := figures{Rows: n, PerSec: float64(n) / b.at.Sub(a.at).Seconds()}
	f.CPU = float64((b.cpu - a.cpu).Microseconds()) / float64(n)
	f.Server = float64((b.server - a.server).Microseconds()) / float64(n)
	return f
}

// ticksPerSec is the kernel's clock of /proc.
const ticksPerSec = 100

// cpuOf is the CPU time that a process has used; 0 where the system does not tell.
func cpuOf(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // the name may hold anything
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11]) // 0 tells as much as an error
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / ticksPerSec
}

// peakOf is the most memory that a process has held, in MiB.
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

// meter measures a loop that stores nothing, from inside.
type meter struct {
	count *atomic.Int64
	stop  chan struct{}
	first chan sample
}

func newMeter(count *atomic.Int64) *meter {
	m := &meter{count: count, stop: make(chan struct{}), first: make(chan sample, 1)}
	go func() {
		select {
		case <-time.After(warmUp):
		case <-m.stop:
		}
		m.first <- m.now()
	}()
	return m
}

func (m *meter) now() sample {
	return sample{at: time.Now(), rows: int(m.count.Load()), cpu: cpuOf(os.Getpid())}
}

// print tells the figures to the parent.
func (m *meter) print() {
	end := m.now()
	close(m.stop)
	f := between(<-m.first, end)
	f.PeakMiB = peakOf(os.Getpid())
	_ = json.NewEncoder(os.Stdout).Encode(f)
}

// median of figures, each for itself.
func median(all []figures) figures {
	pick := func(of func(figures) float64) float64 {
		list := make([]float64, len(all))
		for i, f := range all {
			list[i] = of(f)
		}
		return middle(list)
	}
	return figures{
		Rows:    all[0].Rows,
		PerSec:  pick(func(f figures) float64 { return f.PerSec }),
		CPU:     pick(func(f figures) float64 { return f.CPU }),
		Server:  pick(func(f figures) float64 { return f.Server }),
		PeakMiB: pick(func(f figures) float64 { return f.PeakMiB }),
	}
}

func middle(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	list = slices.Sorted(slices.Values(list))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}
