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
	// full is the reason that [Consumer.SetFull] was given, or nil while there is room.
	full atomic.Pointer[error]
	// refused says that the last append of the emitter was not stored.
	refused atomic.Bool
	// unstowed says that the body of a result, or of a kept reply, could not be put into
	// the object store.
	unstowed atomic.Bool
}

// fullLook is the time between two passes of a term that starts no row because nothing can
// be stored. The event that ends this need not wake the term: for example, the recorder's
// events may be stored again.
const fullLook = 250 * time.Millisecond

// setRefused notes whether the last append was stored.
func (s *shared) setRefused(refused bool) { s.note(&s.storable.refused, refused) }

// setUnstowed notes whether a body could not be put into the object store.
func (s *shared) setUnstowed(unstowed bool) { s.note(&s.storable.unstowed, unstowed) }

// note sets a reason why nothing can be stored, or clears it, and wakes the term where
// that is news.
func (s *shared) note(reason *atomic.Bool, on bool) {
	if reason.Swap(on) != on {
		s.mail.wake()
	}
}

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
