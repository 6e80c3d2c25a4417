package replicas

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
)

// Memory knows which replicas have answered within the last minute, so that a replica that
// falls silent is missed. It holds [Most] replicas. It is created by [NewMemory], and safe
// for concurrent use.
type Memory struct {
	mu       sync.Mutex
	seen     map[string]Replica
	departed map[string]time.Time
}

// NewMemory returns a memory of nobody.
func NewMemory() *Memory {
	return &Memory{seen: make(map[string]Replica), departed: make(map[string]time.Time)}
}

// note remembers who has answered.
func (m *Memory) note(r Replica) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.seen[r.Replica]; known || len(m.seen) < Most {
		m.seen[r.Replica] = r
	}
}

// depart notes that a replica has ended in order: it is not missed.
func (m *Memory) depart(replica string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, replica)
	if len(m.departed) < Most {
		m.departed[replica] = at
	}
}

// missing returns the replicas that were seen within the last minute, are not among the
// present ones, and have not left.
func (m *Memory) missing(present map[string]bool, now time.Time) (list []Replica) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(now)
	for id, r := range m.seen {
		// A replica that was stopping when it was last seen has ended since, or is about
		// to.
		if _, left := m.departed[id]; !left && !present[id] && r.State != status.StateStopping {
			list = append(list, r)
		}
	}
	return list
}

// known returns who fell silent, as far as the last look has shown, and who has left.
func (m *Memory) known(now time.Time) (missing []Missing, departed []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(now)
	for id, r := range m.seen {
		if r.Status == Missed {
			missing = append(missing, Missing{Replica: id, LastSeen: r.LastSeen})
		}
	}
	slices.SortFunc(missing, func(a, b Missing) int { return strings.Compare(a.Replica, b.Replica) })
	return missing, first(slices.Sorted(maps.Keys(m.departed)), lostMax)
}

// forget drops what is older than a minute. The lock is held.
func (m *Memory) forget(now time.Time) {
	maps.DeleteFunc(m.seen, func(_ string, r Replica) bool { return now.Sub(r.LastSeen) > MissingFor })
	maps.DeleteFunc(m.departed, func(_ string, at time.Time) bool { return now.Sub(at) > MissingFor })
}
