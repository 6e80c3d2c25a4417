package fleet

import (
	"time"

	"github.com/llm-stage/stage/aimd"
)

// capSec is how long a member that is alone keeps to its last rate. Then it may have
// twice as much, and again each capNextSec.
const capSec, capNextSec = 60.0, 30.0

// ownLaw is the law by which a member goes while it is alone. It begins at the rate that
// a plan gave the member at last, and exceeds that rate only with time: the others, if
// there are any, use the rest.
type ownLaw struct {
	law   *aimd.Adaptive
	inUse bool    // the member is alone
	since float64 // when it was last begun
	cap   float64 // the rate that it began at, in calls per second; 0 means none was known
	had   float64 // the rate of the last plan before the present one that gave the member any; 0 means none did
}

// begin has the member go by its own law.
func (o *ownLaw) begin(now time.Time, sec float64) {
	o.inUse, o.since, o.cap = true, sec, o.had
	if o.cap > 0 {
		o.law.Resume(now, o.cap)
	} else if s := o.law.Stats(); s.Successes+s.CapacityRetries > 0 {
		o.law.Restart(now)
	}
}

// bound keeps the rate within a limit, in calls per second, where 0 means no limit, and
// within the cap, which grows with the time that the member has been alone.
func (o *ownLaw) bound(limit, sec float64) {
	growth := 1.0
	for next := capSec; sec-o.since >= next && growth < 1e6; next += capNextSec {
		growth *= 2
	}
	o.law.Limit(least(limit, o.cap*growth))
}
