package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
)

// LaneState is the state of a batch, or of a row, in the batch lane.
type LaneState string

// The states of batches and rows.
const (
	LaneGathering  LaneState = "gathering"  // batch and rows: it is not full yet
	LaneSubmitting LaneState = "submitting" // batch: its intent is recorded, and the provider has not confirmed it
	LaneRunning    LaneState = "running"    // batch: the provider works on it
	LaneCollecting LaneState = "collecting" // batch: it is over, and its answers are read
	LaneDoubtful   LaneState = "doubtful"   // batch: it is unknown whether the provider has it
	LaneRefused    LaneState = "refused"    // batch: the provider refused it as a whole
	LaneWaiting    LaneState = "waiting"    // rows: full, but not submitted yet
	LaneSubmitted  LaneState = "submitted"  // rows: the provider has them
	LaneAnswered   LaneState = "answered"   // rows: their reply waits in the journal for its turn
	LaneLive       LaneState = "live"       // rows: they have left their batch and are called live
)

// LaneBatchStates and LaneRowStates are the states that batches and rows can have.
var (
	LaneBatchStates = []LaneState{LaneGathering, LaneSubmitting, LaneRunning, LaneCollecting, LaneDoubtful, LaneRefused}
	LaneRowStates   = []LaneState{LaneGathering, LaneWaiting, LaneSubmitted, LaneAnswered, LaneLive}
)

// Lane is the batch lane of a partition.
type Lane struct {
	Partition int
	Paused    string // why nothing is submitted; empty: it is not paused
	Batches   []LaneBatch
	Rows      map[LaneState]int
	// Adopted counts the batches that were found at the provider after a crash, Lapsed the rows that expired or were
	// cancelled at the provider without an answer; both since the process started.
	Adopted, Lapsed uint64
}

// LaneBatch is a batch that is not done.
type LaneBatch struct {
	Partition int       `json:"partition"`
	Batch     string    `json:"batch"`    // the stage's own name of it, its token
	BatchID   string    `json:"batch_id"` // the provider's; empty: not known yet
	Provider  string    `json:"provider"`
	Model     string    `json:"model"`
	State     LaneState `json:"state"`
	Rows      int       `json:"rows"`
	Bytes     int64     `json:"bytes"`
	Answered  int       `json:"answered"`
	Since     time.Time `json:"since"` // its first row came, or, where that is not known, its intent was recorded
	AgeS      float64   `json:"age_seconds"`
	Why       string    `json:"why"` // what is wrong with it, or what it waits for
}

// LaneReport is the batch lane of all partitions of the process.
type LaneReport struct {
	Paused  string            `json:"paused"` // why nothing is submitted; empty: it is not paused
	Rows    map[LaneState]int `json:"rows"`
	Batches []LaneBatch       `json:"batches"` // the oldest first, laneBatchesMax at most
	Open    int               `json:"open"`    // all batches
	OldestS float64           `json:"oldest_batch_seconds"`
	Adopted uint64            `json:"adopted"`
	Lapsed  uint64            `json:"lapsed_rows"`
}

// laneBatchesMax bounds the batches of a report.
const laneBatchesMax = 50

// AddLanes adds the batch lanes of the partitions; without any the report has none.
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
	for _, l := range lanes {
		sum.Paused = cmp.Or(sum.Paused, l.Paused)
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
	slices.SortStableFunc(sum.Batches, func(a, b LaneBatch) int { return a.Since.Compare(b.Since) })
	sum.Open = len(sum.Batches)
	sum.Batches = sum.Batches[:min(sum.Open, laneBatchesMax)]
	return sum
}

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
	if b.State == LaneRunning || b.State == LaneCollecting {
		answered = fmt.Sprint(b.Answered)
	}
	provider := b.Provider
	if b.Model != "" && b.Model != b.Provider {
		provider += "/" + b.Model
	}
	return []string{b.Batch, string(b.State), fmt.Sprint(b.Rows), answered, span(b.AgeS), terminal.OrDash(provider), terminal.OrDash(b.BatchID)}
}

// text is how many rows are where, and why nothing is submitted.
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
	return text
}
