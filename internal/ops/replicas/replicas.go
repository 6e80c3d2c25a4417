// Package replicas shows the whole stage. Each replica answers requests on a subject of
// core NATS with a bounded summary of itself ([Answerer], answer.go). The program that asks
// gathers the answers for 300 ms ([Ask], ask.go) and puts them together ([Merge], whole.go).
// Who has fallen silent is known from earlier answers ([Memory]). text.go prints it.
//
//	own := replicas.Summarize(&report, partitions)
//	whole := replicas.Merge(replicas.Ask(ctx, nc, "stage", &own), memory, time.Now())
//
// It is for people, and nothing depends on it: an answer that is lost, late or a lie is a
// wrong line in a table. Replicas only send something when they are asked, and when they
// leave.
package replicas

import (
	"encoding/json"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
)

// Subject is where the replicas of a stage are asked.
func Subject(name string) string { return "llm-stage." + name + ".status" }

const (
	// Format is the version of the summaries. Members may be added without a new version.
	// It changes when a member changes its meaning.
	Format = 1
	// GatherFor is how long answers are waited for.
	GatherFor = 300 * time.Millisecond
	// FirstWithin is how long a program that is no replica waits for the first answer: on
	// a busy machine a replica may need seconds, and "no replica answers" would be wrong.
	// Where nobody listens, the server says so at once.
	FirstWithin = 3 * time.Second
	// MissingFor is how long a replica that answers no more is shown.
	MissingFor = time.Minute
	// Most is how many replicas of a stage are shown, and remembered.
	Most = 256

	summaryBytesMax = 256 << 10
	partitionsMax   = 1024 // of a stage
	textBytesMax    = 500  // of a reason, an error and the like
	kindsMax        = 16   // of errors, and budgets, of a summary
	callsMax        = 256  // in flight, of one row
	lostMax         = 64   // replicas that another one misses, or that have left
)

// Summary is what a replica answers.
type Summary struct {
	Format int    `json:"format"`
	Stage  string `json:"stage"`
	Facts
	PartitionCount int `json:"partition_count"`
	// Partitions leaves out the ones that it only stands by for. LeftOut counts those for
	// which there was no room.
	Partitions []Partition `json:"partitions"`
	LeftOut    int         `json:"left_out,omitempty"`
	RowErrors  []RowErrors `json:"row_errors"` // the most frequent ones
	// Missing are replicas that fell silent within the last minute, and Departed those that
	// ended in order within it.
	Missing  []Missing `json:"missing,omitempty"`
	Departed []string  `json:"departed,omitempty"`
	// Departing says that this is its last word to all, and no answer.
	Departing bool `json:"departing,omitempty"`
	// Vacant are the partitions that nobody owns, as far as it knows, and that have no row.
	Vacant []int `json:"vacant,omitempty"`
	// Calls are the calls in flight of the row that was asked about, see [AskRow]. Hold is
	// why that row waits.
	Calls []Call     `json:"calls,omitempty"`
	Hold  *hold.Hold `json:"hold,omitempty"`
}

// Call is a call in flight.
type Call struct {
	Item     *int      `json:"item,omitempty"` // the element of the row that it is for
	Attempt  int       `json:"attempt"`        // at the row or its element, from 1
	Provider string    `json:"provider"`
	Model    string    `json:"model"`
	Since    time.Time `json:"since"`
}

// Facts are what is shown of one replica. The facts that /api/status also has, have the
// same names there.
type Facts struct {
	Replica string       `json:"replica"` // its run id
	Host    string       `json:"host"`
	PID     int          `json:"pid"`
	Version string       `json:"version"`
	Time    time.Time    `json:"time"` // by its clock
	UptimeS float64      `json:"uptime_seconds"`
	State   status.State `json:"state"`
	Why     string       `json:"why"`
	Since   *time.Time   `json:"since"`
	Do      string       `json:"do"` // what to do first
	// Row is the row that answered rows wait for, and Behind how many do. Both are null if
	// none does.
	Row     *uint64   `json:"row"`
	Behind  *int      `json:"behind"`
	Ready   bool      `json:"ready"`
	Reason  string    `json:"reason"`
	Control bool      `json:"control"` // it obeys stage pause and the like
	Drained string    `json:"drained,omitempty"`
	Holds   hold.List `json:"holds"` // why rows wait
	// Left are the partitions that another replica should serve, as an operator has asked.
	Left           []int              `json:"drained_partitions,omitempty"`
	Rows           Rows               `json:"rows"`
	Pool           Pool               `json:"pool"`
	Pause          *Pause             `json:"pause"`            // null unless its calls are paused
	LawPausedUntil *time.Time         `json:"law_paused_until"` // the provider asked to wait
	Usage          status.UsageReport `json:"usage"`            // since it started
	Latency        Latency            `json:"latency"`
	auditlog.Pace                     // since it started
	// LastRefusal is null if no provider has refused a call.
	LastRefusal *status.RefusalReport `json:"last_refusal"`
	Budget      []status.BudgetReport `json:"budget"`  // null without STAGE_BUDGET
	Lane        *Lane                 `json:"lane"`    // null without a batch lane
	Standby     int                   `json:"standby"` // partitions that it stands by for
}

// Latency is how long calls take, in seconds. A percentile is null if no call has succeeded
// within a minute, and the oldest call in flight if there is none.
type Latency struct {
	P50             *float64 `json:"p50"`
	P90             *float64 `json:"p90"`
	OldestInFlightS *float64 `json:"oldest_in_flight_s"`
}

// Rows counts rows since the start, and those that are there now.
type Rows struct {
	Succeeded uint64   `json:"succeeded"`
	Failed    uint64   `json:"failed"`
	Skipped   uint64   `json:"skipped"`
	Pending   uint64   `json:"pending"`
	Open      int      `json:"open"`
	PerSecond float64  `json:"per_second"`
	ETAS      *float64 `json:"eta_seconds,omitempty"` // of the whole alone, where it is known
}

// Pool is what is shown of the calls.
type Pool struct {
	Throttle        string   `json:"throttle,omitempty"`
	Size            int      `json:"size"`
	InFlight        int      `json:"in_flight"`
	Waiting         int      `json:"waiting"`
	Dispatched      uint64   `json:"dispatched"`
	Successes       uint64   `json:"successes"`
	CapacityRetries uint64   `json:"capacity_retries"`
	Allowed         *float64 `json:"allowed_per_second"` // null without a limit
	// Belief is what the throttle believes about the first provider, in words; absent
	// where it measures nothing, and of the whole where its replicas believe different
	// things.
	Belief string `json:"belief,omitempty"`
}

// Pause is why calls are paused.
type Pause struct {
	Reason    hold.Kind  `json:"reason"`
	Error     string     `json:"error"`
	Since     *time.Time `json:"since"`
	NextProbe *time.Time `json:"next_probe"` // null if an operator has paused it
	Probes    int        `json:"probes"`
	Held      string     `json:"held"` // what becomes of the rows
}

// Lane is what is shown of the batch lane.
type Lane struct {
	Paused  string                   `json:"paused"`                  // everywhere
	Partly  string                   `json:"partly_paused,omitempty"` // in some partitions
	Problem string                   `json:"problem"`
	Rows    map[status.LaneState]int `json:"rows"`
	Open    int                      `json:"open"` // batches
	OldestS float64                  `json:"oldest_batch_seconds"`
	Adopted uint64                   `json:"adopted"`
	Lapsed  uint64                   `json:"lapsed_rows"`
}

// Partition is what a replica knows of a partition that it serves, or that it has ended
// with.
type Partition struct {
	Partition     int        `json:"partition"`
	Role          string     `json:"role"`
	Owner         string     `json:"owner"`          // the term
	Claim         uint64     `json:"claim_sequence"` // in the results stream
	PendingRows   uint64     `json:"pending_rows"`
	OpenRows      int        `json:"open_rows"`
	ParkedRows    int        `json:"parked_rows"`
	HeadSequence  uint64     `json:"head_sequence"`
	HeadOfLineS   float64    `json:"head_of_line_seconds"`
	HighWaterMark uint64     `json:"high_water_mark"`
	Paused        string     `json:"paused"`
	PausedSince   *time.Time `json:"paused_since"`
	Problem       string     `json:"problem"`
}

// RowErrors counts rows that failed for a reason.
type RowErrors struct {
	Reason string `json:"reason"`
	Rows   uint64 `json:"rows"`
}

// Missing is a replica that fell silent.
type Missing struct {
	Replica  string    `json:"replica"`
	LastSeen time.Time `json:"last_seen"`
}

// Summarize returns the summary of a report of a stage with so many partitions.
func Summarize(r *status.Report, partitions int) Summary {
	s := Summary{Format: Format, Stage: r.Stage, PartitionCount: partitions, Facts: Facts{
		Replica: r.RunID, Host: r.Host, PID: r.PID, Version: r.Version, Time: r.Time, UptimeS: r.UptimeS,
		State: r.State, Why: clip(r.Why), Since: r.Since, Ready: r.Ready, Reason: clip(r.Reason), Control: r.Control, Drained: clip(r.Drained),
		Rows: Rows{
			Succeeded: r.Rows.Succeeded, Failed: r.Rows.Failed, Skipped: r.Rows.Skipped, Pending: r.Rows.Pending,
			Open: r.Rows.Open, PerSecond: r.Rows.PerSecond,
		},
		Pool: Pool{
			Throttle: r.Pool.Throttle, Size: r.Pool.Size, InFlight: r.Pool.InFlight, Waiting: r.Pool.Waiting, Dispatched: r.Pool.Dispatched,
			Successes: r.Pool.Successes, CapacityRetries: r.Pool.CapacityRetries, Allowed: r.Pool.Allowed,
		},
		Holds: clipped(r.Holds), LawPausedUntil: r.Pool.LawPausedUntil, Usage: r.Usage, Budget: first(r.Budget, kindsMax),
		Do: clip(r.Do), Row: r.Row, Behind: r.Behind, Latency: Latency{r.Latency.P50, r.Latency.P90, r.Latency.OldestInFlightS}, LastRefusal: r.LastRefusal,
		Pace: r.Pace,
	}}
	if r.Pool.Belief != nil {
		s.Pool.Belief = clip(r.Pool.Belief.Text)
	}
	if r.Pool.PauseReason != "" {
		s.Pause = &Pause{
			Reason: r.Pool.PauseReason, Error: clip(r.Pool.Paused), Since: r.Pool.PausedSince, NextProbe: r.Pool.NextProbe,
			Probes: r.Pool.Probes, Held: r.Pool.Held,
		}
	}
	if l := r.Lane; l != nil {
		s.Lane = &Lane{Paused: clip(l.Paused), Partly: clip(l.PartlyPaused), Problem: clip(l.Problem), Rows: l.Rows, Open: l.Open, OldestS: l.OldestS, Adopted: l.Adopted, Lapsed: l.Lapsed}
	}
	for i := range r.Partitions {
		p := &r.Partitions[i]
		if p.Drained != "" {
			s.Left = append(s.Left, p.Partition)
		}
		if p.Vacant {
			s.Vacant = append(s.Vacant, p.Partition)
		}
		if consumer.Role(p.Role) == consumer.Standby && p.Problem == "" {
			s.Standby++
			continue
		}
		s.Partitions = append(s.Partitions, Partition{
			Partition: p.Partition, Role: p.Role, Owner: p.Owner, Claim: p.Claim, PendingRows: p.PendingRows, OpenRows: p.Open(), ParkedRows: p.ParkedRows,
			HeadSequence: p.HeadSequence, HeadOfLineS: p.HeadOfLineS, HighWaterMark: p.HighWaterMark,
			Paused: clip(p.Paused), PausedSince: p.PausedSince, Problem: clip(p.Problem),
		})
	}
	for i := range first(r.RowErrors, kindsMax) {
		s.RowErrors = append(s.RowErrors, RowErrors{Reason: clip(r.RowErrors[i].Reason), Rows: r.RowErrors[i].Rows})
	}
	return s
}

// encode returns the summary as JSON of at most so many bytes, without the last
// partitions if there are too many.
func (s Summary) encode(most int) ([]byte, error) {
	for {
		body, err := json.Marshal(&s)
		if err != nil || len(body) <= most || len(s.Partitions) == 0 {
			return body, err
		}
		keep := len(s.Partitions) / 2
		s.LeftOut += len(s.Partitions) - keep
		s.Partitions = s.Partitions[:keep]
	}
}

// decode reads a summary of a stage. note says why that is not possible, and is empty if it
// is. The summary has what could be read.
func decode(stage string, body []byte) (s Summary, note string) {
	var head struct {
		Format        int
		Replica, Host string
		Version       string
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return s, "its answer is no JSON: " + excerpt.Clip(string(body), 60)
	}
	err := json.Unmarshal(body, &s)
	switch {
	case head.Format != Format:
		note = "its answer has another format than this program reads: it is of another version"
	case err != nil:
		note = "its answer can't be read: " + excerpt.Clip(err.Error(), textBytesMax)
	case s.Stage != stage || s.Replica == "":
		note = "its answer is not one of this stage"
	}
	if note != "" {
		s = Summary{Facts: Facts{Replica: clip(head.Replica), Host: clip(head.Host), Version: clip(head.Version)}}
		return s, note
	}
	s.Partitions, s.Missing, s.Departed = first(s.Partitions, partitionsMax), first(s.Missing, lostMax), first(s.Departed, lostMax)
	s.RowErrors, s.Budget = first(s.RowErrors, kindsMax), first(s.Budget, kindsMax)
	s.Holds, s.Pool.Belief = clipped(s.Holds), clip(s.Pool.Belief)
	if s.Hold != nil {
		*s.Hold = clippedHold(*s.Hold)
	}
	s.Vacant, s.Calls = first(s.Vacant, partitionsMax), first(s.Calls, callsMax)
	s.bound()
	return s, ""
}

// bound limits the numbers that other replicas have sent, so that their sums are numbers,
// too.
func (s *Summary) bound() {
	numbers := []*float64{
		&s.Rows.PerSecond, &s.Usage.KnownCostUSD, s.Usage.CostUSD, s.Pool.Allowed, s.Latency.P50, s.Latency.P90, s.Latency.OldestInFlightS,
		&s.CallsS, &s.ElapsedS, &s.Speedup, &s.Utilisation, &s.ThrottledS,
	}
	for i := range s.Budget {
		numbers = append(numbers, &s.Budget[i].Share)
	}
	for _, n := range numbers {
		if n != nil {
			*n = min(max(*n, 0), 1e12)
		}
	}
}

// clipped returns the first holds, in few bytes. A partition that another replica serves
// is left out: it is shown there.
func clipped(all hold.List) (list hold.List) {
	for _, h := range all {
		if len(list) == kindsMax {
			break
		}
		if h.Kind != hold.Standby {
			list = append(list, clippedHold(h))
		}
	}
	return list
}

func clippedHold(h hold.Hold) hold.Hold {
	h.Name, h.By, h.Why, h.Do = clip(h.Name), clip(h.By), clip(h.Why), clip(h.Do)
	return h
}

func clip(text string) string { return excerpt.Clip(text, textBytesMax) }

func first[T any](list []T, most int) []T { return list[:min(len(list), most)] }
