package recorder

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// warnEvery is the shortest time between two warnings that events are not stored. Without
// it each event that waits would cause one at each attempt.
const warnEvery = time.Minute

// trouble counts the events that were refused or got no answer, and are not stored yet;
// and says why to the log and to callers.
//
// Invariants: count is the number of records with trouble set; problem is empty if and
// only if count is 0.
//
// The Recorder's lock guards it, except for refusing.
type trouble struct {
	log     *slog.Logger
	count   int
	problem string    // why the last of them was not stored
	warned  time.Time // the last warning; zero while all is well

	// refusing says that the last news of any event was bad: see Recorder.Refused. It
	// differs from count > 0: after an event that was refused another one may have been
	// stored.
	refusing atomic.Bool
}

// add notes why an event is not stored, and logs it at intervals. waiting is how many
// events are not stored.
func (t *trouble) add(rec *record, why string, waiting int, now time.Time) {
	if !rec.trouble {
		rec.trouble = true
		t.count++
	}
	t.problem = why
	if t.warned.IsZero() || now.Sub(t.warned) >= warnEvery {
		t.warned = now
		t.log.Warn("audit events are not stored, results wait for them; retrying",
			slog.String("subject", rec.subject), slog.String("reason", why),
			slog.Int("waiting", waiting))
	}
}

// remove notes that an event is stored. The problem is over when no event is in trouble.
func (t *trouble) remove(rec *record) {
	if !rec.trouble {
		return
	}
	rec.trouble = false
	if t.count--; t.count == 0 {
		t.problem, t.warned = "", time.Time{}
		t.log.Info("audit events are stored again")
	}
}
