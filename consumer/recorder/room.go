package recorder

import "sync"

// room bounds the call events that wait for the server, in number and in bytes. Who has another one waits. It is safe
// for concurrent use.
type room struct {
	mu                  sync.Mutex
	freed               sync.Cond
	events, eventsLimit int
	bytes, bytesLimit   int
	closed              bool
	dropped             int
}

func newRoom(events, bytes int) *room {
	r := &room{eventsLimit: events, bytesLimit: bytes}
	r.freed.L = &r.mu
	return r
}

// take waits until there is room for an event, and takes it; an event larger than the whole room waits until it is
// empty. Once the room is closed nobody waits: where there is no room the event is counted as dropped, and ok is
// false.
func (r *room) take(bytes int) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.full(bytes) {
		if r.closed {
			r.dropped++
			return false
		}
		r.freed.Wait()
	}
	r.events++
	r.bytes += bytes
	return true
}

// full says whether an event finds no room. The lock is held.
func (r *room) full(bytes int) bool {
	return r.events > 0 && (r.events >= r.eventsLimit || bytes > r.bytesLimit-r.bytes)
}

// free releases the room of an event.
func (r *room) free(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events--
	r.bytes -= bytes
	r.freed.Broadcast()
}

// close ends all waits for room, those to come too.
func (r *room) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.freed.Broadcast()
}

// lost is how many events were dropped.
func (r *room) lost() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}
