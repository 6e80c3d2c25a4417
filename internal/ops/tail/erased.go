package tail

import (
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
)

// StepErased says that `stage erase` has removed the row, and who has asked for it.
const StepErased StepKind = "erased"

// erased makes the search look for what an erasure has left of the row's events, which was
// stored after the tombstone. The time at which the result was stored is gone with the
// result.
func (r *search) erased(t *proof.Tombstone) {
	r.brief = false
	if since := t.At.Add(-clockSkew); since.After(r.since) {
		r.since = since
	}
	r.known = &emission{at: t.Sequence, owner: t.Header(streams.HeaderOwner)}
	if low, err := strconv.ParseUint(t.Header(streams.HeaderLow), 10, 64); err == nil {
		r.known.low = &low
	}
}

// finishErased shows the time at which the row was answered as the time of its result.
func (s *history) finishErased(result *emission) {
	if row := s.emitted(result); row != nil && result != nil && result.stored.IsZero() {
		result.stored = row.FinishedAt
	}
}

func erasedText(t *proof.Tombstone) string {
	return fmt.Sprintf("erased by %s: its row, calls and result are gone", t.Who)
}

// bareStory returns the story of an erased row of which the audit has nothing any more.
func bareStory(cfg *config.Config, row uint64, t *proof.Tombstone) *Story {
	return &Story{Row: row, Stream: cfg.Input.Stream, Partition: auditlog.All, Status: t.Header(streams.HeaderStatus), Steps: []Step{}}
}

func erasedStep(t *proof.Tombstone) Step {
	return Step{Kind: StepErased, Time: t.At.UTC().Truncate(time.Millisecond), Level: "warn", Text: erasedText(t)}
}
