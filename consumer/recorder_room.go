package consumer

import "sync"

// room bounds the call events that wait for the server, in number and in bytes. Who has another one waits. It is safe for
// concurrent use.
type room struct {
	mu                  sync.Mutex
	freed               sync.Cond
	events, eventsLimit int
	bytes, bytesLimit   int
	closed              bool
}

func newRoom(events, bytes int) *room {
	r := &room{eventsLimit: events, bytesLimit: bytes}
	r.freed.L = &r.mu
	return r
}

// take waits until there is room for an event; ok is false when the room is closed before. An event larger than the whole
// room waits until it is empty.
func (r *room) take(bytes int) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && r.events > 0 && (r.events >= r.eventsLimit || bytes > r.bytesLimit-r.bytes) {
		r.freed.Wait()
	}
	if r.closed {
		return false
	}
	r.events++
	r.bytes += bytes
	return true
}

// free gives the room of an event back.
func (r *room) free(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events--
	r.bytes -= bytes
	r.freed.Broadcast()
}

// close lets go of all that wait, for good.
func (r *room) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.freed.Broadcast()
}
