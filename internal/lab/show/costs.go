package show

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// costs is what the faults have cost, by the clock of this machine, the audit and the
// books of the LLM.
type costs struct {
	down, up, killed time.Time
	orphans          []int // partitions of the replica that was killed

	answered time.Time         // the first answer after the outage
	claims   map[int]time.Time // the first after the kill, of each orphan
	kept     int               // replies from the journal
	failed   int               // rows
}

// read reads the audit.
func (c *costs) read(ctx context.Context, js jetstream.JetStream, cfg *config.Config) error {
	c.claims = make(map[int]time.Time)
	return stored.ReadAudit(ctx, js, cfg, stored.ReadOptions{}, nil, func(_ []byte, e *auditlog.Event) error {
		switch {
		case e == nil:
		case e.Call != nil && e.Call.Status == auditlog.CallSuccess && e.Call.Time.Add(-e.Call.Latency).After(c.up):
			if c.answered.IsZero() || e.Call.Time.Before(c.answered) {
				c.answered = e.Call.Time
			}
		case e.Row != nil && e.Row.Source == auditlog.SourceJournal:
			c.kept++
		case e.Run != nil && e.Run.Phase == auditlog.PhaseClaim && e.Run.Time.After(c.killed):
			if p := int(e.Run.Partition); slices.Contains(c.orphans, p) && c.claims[p].IsZero() {
				c.claims[p] = e.Run.Time
			}
		}
		return nil
	})
}

// print prints what the faults have cost. The LLM was paid for what it has answered, and
// for what it was about to answer when the process that had asked was killed.
func (c *costs) print(w io.Writer, llm llmtest.Stats, rows int) {
	terminal.PrintLine(w, "the outage, %s: %s without an answer, %d rows failed; the first answer came %s after its end",
		seconds(c.up.Sub(c.down)), terminal.Plural(int(llm.Scripted), "call"), c.failed, seconds(c.answered.Sub(c.up)))
	paid := int(llm.Answered + llm.Abandoned)
	terminal.PrintLine(w, "the kill: %s; %d of %d paid calls were paid twice, in flight or just answered; %s came from the journal, not paid again",
		c.takeOver(), max(0, paid-rows), paid, terminal.Plural(c.kept, "answer"))
}

// takeOver says how long the partitions of the replica that was killed had no owner.
func (c *costs) takeOver() string {
	last := c.killed
	for _, at := range c.claims {
		if at.After(last) {
			last = at
		}
	}
	if len(c.claims) == 0 || len(c.claims) < len(c.orphans) {
		return "no row was left to take over"
	}
	return fmt.Sprintf("%s taken over after %s", partitions(c.orphans), seconds(last.Sub(c.killed)))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
