package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/terminal"
)

// LaneState is the state of a batch, or of a row, in the batch lane.
type LaneState string

// The states of batches and rows.
const (
	// LaneIntent and the next four are states of batches. An intent is recorded, and the
	// provider has not confirmed it. A batch that settles has rows whose answers were read
	// and are not in the journal yet.
	LaneIntent     LaneState = "intent"
	LaneLooking    LaneState = "looking" // batch: whether the provider has it is being found out
	LaneRunning    LaneState = "running" // batch: the provider works on it
	LaneCollecting LaneState = "collecting"
	LaneSettling   LaneState = "settling"
	LaneGathering  LaneState = "gathering" // rows: in a batch that is not full yet
	LaneWaiting    LaneState = "waiting"   // rows: until a batch may be filled with them
	LaneSubmitted  LaneState = "submitted" // rows: in a batch, without an answer
	LaneAnswered   LaneState = "answered"  // rows: on the way from the answer to the journal
	LaneLive       LaneState = "live"      // rows: they have left their batch and are called live
)

// LaneBatchStates and LaneRowStates are the states that batches and rows can have.
var (
	LaneBatchStates = []LaneState{LaneIntent, LaneLooking, LaneRunning, LaneCollecting, LaneSettling}
	LaneRowStates   = []LaneState{LaneGathering, LaneWaiting, LaneSubmitted, LaneAnswered, LaneLive}
)

// Lane is the batch lane of a partition.
type Lane struct {
	Partition int
	Owned     bool      // this replica serves the partition
	Paused    string    // why nothing is submitted; empty means that it is not paused
	Problem   string    // what it waits for besides, or empty
	Retry     time.Time // when a problem is looked at again; zero means that this is not known
	Batches   []LaneBatch
	Rows      map[LaneState]int
	// Adopted counts the batches that were found at the provider after a crash. Lapsed
	// counts the rows that expired or were cancelled at the provider without an answer.
	// Both count since the process started.
	Adopted, Lapsed uint64
}

// LaneBatch is a batch that is not done.
type LaneBatch struct {
	Partition int       `json:"partition"`
	Batch     string    `json:"batch"`    // the stage's own name of it, its token
	BatchID   string    `json:"batch_id"` // the provider's; empty means not known yet
	Provider  string    `json:"provider"`
	Model     string    `json:"model"`
	State     LaneState `json:"state"`
	Rows      int       `json:"rows"`
	Bytes     int64     `json:"bytes"`
	Answered  int       `json:"answered"` // rows with an answer, or -1 if that is not known
	Since     time.Time `json:"since"`    // its intent was recorded
	AgeS      float64   `json:"age_seconds"`
	Why       string    `json:"why"` // what is wrong with it, or what it waits for
}

// LaneReport is the batch lane of all partitions of the process.
type LaneReport struct {
	// Paused is why nothing is submitted in any partition. It is empty if the lane is not
	// paused. PartlyPaused is why nothing is submitted in some partitions, as in "1 of 4
	// partitions: paused by alice@laptop".
	Paused       string            `json:"paused"`
	PartlyPaused string            `json:"partly_paused,omitempty"`
	Problem      string            `json:"problem"` // what it waits for besides, or empty
	Rows         map[LaneState]int `json:"rows"`
	Batches      []LaneBatch       `json:"batches"` // the oldest first, laneBatchesMax at most
	Open         int               `json:"open"`    // all batches
	OldestS      float64           `json:"oldest_batch_seconds"`
	Adopted      uint64            `json:"adopted"`
	Lapsed       uint64            `json:"lapsed_rows"`
}

// laneBatchesMax bounds the batches of a report.
const laneBatchesMax = 50

// AddLanes adds the batch lanes of the partitions. Without any lane the report has none.
func (r *Report) AddLanes(lanes []Lane, now time.Time) {
	if len(lanes) > 0 {
		r.Lane = SumLanes(lanes, now)
	}
}

// SumLanes returns the report of the lanes of several partitions.
func SumLanes(lanes []Lane, now time.Time) *LaneReport {
	sum := &LaneReport{Rows: map[LaneState]int{}, Batches: []LaneBatch{}}
	for _, state := range LaneRowStates {
		sum.Rows[state] = 0
	}
	owned, paused, why := 0, 0, ""
	for _, l := range lanes {
		if l.Owned || l.Paused != "" {
			owned++
		}
		if l.Paused != "" {
			paused, why = paused+1, cmp.Or(why, l.Paused)
		}
		sum.Problem = cmp.Or(sum.Problem, l.Problem)
		sum.Adopted += l.Adopted
		sum.Lapsed += l.Lapsed
		for state, n := range l.Rows {
			sum.Rows[state] += n
		}
		for _, b := range l.Batches {
			b.Partition, b.AgeS = l.Partition, max(0, now.Sub(b.Since).Seconds())
			sum.OldestS = max(sum.OldestS, b.AgeS)
			sum.Batches = append(sum.Batches, b)
		}
	}
	switch {
	case paused == owned:
		sum.Paused = why
	case paused > 0:
		sum.PartlyPaused = fmt.Sprintf("%d of %d partitions: %s", paused, owned, why)
	}
	slices.SortStableFunc(sum.Batches, func(a, b LaneBatch) int { return a.Since.Compare(b.Since) })
	sum.Open = len(sum.Batches)
	sum.Batches = sum.Batches[:min(sum.Open, laneBatchesMax)]
	return sum
}

// LaneCounter counts what happens to batches, from their audit events. The zero value is
// ready for use. It is safe for concurrent use.
type LaneCounter struct{ adopted, lapsed atomic.Uint64 }

// Note counts an event.
func (c *LaneCounter) Note(e *auditlog.Batch) {
	switch {
	case e.Phase == auditlog.BatchAdopted:
		c.adopted.Add(1)
	case e.Phase.Over():
		c.lapsed.Add(uint64(max(0, e.Lapsed))) //nolint:gosec // not negative
	}
}

// Counts returns how many batches were adopted, and how many rows have lapsed.
func (c *LaneCounter) Counts() (adopted, lapsed uint64) { return c.adopted.Load(), c.lapsed.Load() }

// Counts returns how many batches are in each state.
func (l *Lane) Counts() map[LaneState]int {
	counts := make(map[LaneState]int)
	for i := range l.Batches {
		counts[l.Batches[i].State]++
	}
	return counts
}

// LaneBatchTitles are the heads of the columns of [LaneBatch.Cells].
func LaneBatchTitles() []string {
	return []string{"BATCH", "STATE", "ROWS", "ANSWERED", "AGE", "PROVIDER", "ID"}
}

// Cells are the columns of a batch.
func (b *LaneBatch) Cells() []string {
	answered := "-"
	if b.Answered >= 0 && b.State != LaneIntent && b.State != LaneLooking {
		answered = fmt.Sprint(b.Answered)
	}
	provider := b.Provider
	if b.Model != "" && b.Model != b.Provider {
		provider += "/" + b.Model
	}
	return []string{b.Batch, string(b.State), fmt.Sprint(b.Rows), answered, span(b.AgeS), terminal.OrDash(provider), terminal.OrDash(b.BatchID)}
}

// text returns how many rows are in which state, and why nothing is submitted.
func (l *LaneReport) text() string {
	var rows []string
	for _, state := range LaneRowStates {
		if n := l.Rows[state]; n > 0 {
			rows = append(rows, fmt.Sprint(n, " ", state))
		}
	}
	text := fmt.Sprintf("%d open batches, rows: %s", l.Open, cmp.Or(strings.Join(rows, ", "), "none"))
	if l.Adopted > 0 {
		text += fmt.Sprintf("; %d adopted", l.Adopted)
	}
	if l.Lapsed > 0 {
		text += fmt.Sprintf("; %d rows expired or cancelled", l.Lapsed)
	}
	if l.Paused != "" {
		text += "; paused: " + l.Paused
	}
	if l.PartlyPaused != "" {
		text += "; paused in part: " + l.PartlyPaused
	}
	if l.Problem != "" {
		text += "; " + l.Problem
	}
	return text
}
