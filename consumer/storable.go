package consumer

import (
	"fmt"
	"sync/atomic"
	"time"
)

// storable says whether the reply to a call could be stored. While it could not, no call
// begins. Without this rule calls would go on until the window is full, say with 1,000
// rows, whose replies are in memory alone: a process that is killed then pays for 1,000
// calls again.
//
// Calls in flight end, and their replies wait in the window. A refusal ends by itself:
// the append, or the audit event, is tried again and again, and the first that is stored
// ends it.
//
// It is safe for concurrent use.
type storable struct {
	full    atomic.Pointer[error] // the reason that [Consumer.SetFull] was given, or nil while there is room
	refused atomic.Bool           // the last append of the emitter was not stored
	// unstowed says that the body of a result, or of a kept reply, could not be put into
	// the object store.
	unstowed atomic.Bool
}

// fullLook is the time between two looks of a term that starts no row because nothing can
// be stored: what ends that need not wake the term.
const fullLook = 250 * time.Millisecond

// SetFull says why nothing can be stored, so that the rows of the partition wait as after
// [Consumer.Pause]. A nil reason lets them continue. It returns at once, and is safe for
// concurrent use.
func (c *Consumer) SetFull(why error) {
	if why == nil {
		c.storable.full.Store(nil)
	} else {
		c.storable.full.Store(&why)
	}
	c.mail.wake()
}

// setRefused notes whether the last append was stored.
func (c *Consumer) setRefused(refused bool) {
	if c.storable.refused.Swap(refused) != refused {
		c.mail.wake()
	}
}

// setUnstowed notes whether a body could not be put into the object store.
func (s *storable) setUnstowed(unstowed bool, wake *mailbox) {
	if s.unstowed.Swap(unstowed) != unstowed {
		wake.wake()
	}
}

// canStore reports whether what a call brings could be stored, as far as is known.
func (r *Row) canStore() bool { return r.shared.storable.room() && !r.shared.recorder.Refused() }

func (s *storable) room() bool {
	return s.full.Load() == nil && !s.refused.Load() && !s.unstowed.Load()
}

// problem says why nothing can be stored, where the owner of the server has said so;
// empty means that it has not.
func (s *storable) problem() string {
	if why := s.full.Load(); why != nil {
		return fmt.Sprintf("store: %v", *why)
	}
	return ""
}

// mustWait reports whether no row may start now: an operator has asked for it, or nothing
// can be stored.
func (t *term) mustWait() bool {
	return t.c.steer.paused.Load() || !t.c.storable.room() || t.c.cfg.Recorder.Refused()
}
