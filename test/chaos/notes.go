package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// violationsKept is how many violations of a kind are reported; the others are counted.
const violationsKept = 20

// notes are the log of a run: its faults as they happen, and its violations.
type notes struct {
	began time.Time
	out   io.Writer // all of them
	show  io.Writer // nil: none

	mu         sync.Mutex
	violations map[string]int
	reported   []string // the first violations of each kind
	done       map[kind]int
}

func newNotes(out, show io.Writer) *notes {
	return &notes{began: time.Now(), out: out, show: show, violations: make(map[string]int), done: make(map[kind]int)}
}

func (n *notes) log(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.write(format, args...)
}

// write notes one line. The lock is held.
func (n *notes) write(format string, args ...any) {
	line := fmt.Sprintf("%8.3f %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
	_, _ = io.WriteString(n.out, line)
	if n.show != nil {
		_, _ = io.WriteString(n.show, line)
	}
}

// did counts a fault that has happened.
func (n *notes) did(k kind, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done[k]++
	n.write("%s: %s", k, fmt.Sprintf(format, args...))
}

func (n *notes) violate(what, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.violations[what]++; n.violations[what] <= violationsKept {
		line := fmt.Sprintf("VIOLATION %s: %s", what, fmt.Sprintf(format, args...))
		n.reported = append(n.reported, line)
		n.write("%s", line)
	}
}

// count is how often a fault has happened.
func (n *notes) count(k kind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.done[k]
}

// violated is how many violations there are.
func (n *notes) violated() (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.violations {
		sum += v
	}
	return sum
}
