package recorder

import "sync"

// room bounds the call events that are not stored yet, by their number and by their
// bytes. The other kinds of events take no room: the window bounds the rows, and the
// batch lane bounds its batches.
//
// Invariant: events <= eventsMax and bytes <= bytesMax, except that one event alone may
// have more than bytesMax bytes. Otherwise it could never be recorded.
//
// The Recorder's lock guards it, and freed waits with that lock.
type room struct {
	eventsMax, bytesMax int
	events, bytes       int

	freed   sync.Cond
	hurried bool // nobody waits for room any more: see Recorder.Hurry
	dropped int  // events that found no room since
}

// take waits until there is room for an event, and takes it. Once the process is hurried
// it does not wait: if there is no room, the event is counted as dropped and ok is false.
func (r *room) take(bytes int) (ok bool) {
	for r.events > 0 && (r.events >= r.eventsMax || bytes > r.bytesMax-r.bytes) {
		if r.hurried {
			r.dropped++
			return false
		}
		r.freed.Wait()
	}
	r.events++
	r.bytes += bytes
	return true
}

// release frees the room of the call events among those that have just been stored.
func (r *room) release(stored []*record) {
	for _, rec := range stored {
		if rec.limited() {
			r.events--
			r.bytes -= len(rec.data)
		}
	}
	r.freed.Broadcast()
}

// hurry ends all waiting for room.
func (r *room) hurry() {
	r.hurried = true
	r.freed.Broadcast()
}
