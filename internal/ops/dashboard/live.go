package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
)

// Bounds of the pages that watch live events.
const (
	watchersMax = 16
	// watcherQueue is how many messages a slow page may lag behind. Beyond that it is
	// dropped, and may reconnect.
	watcherQueue    = 6
	watcherPatience = 5 * time.Second // for one write
	// watcherLifetime ends streams that a proxy keeps reading after its page is gone.
	// Browsers reconnect.
	watcherLifetime  = time.Hour
	wholeEvery       = 2 * time.Second // between two looks at all replicas
	watcherReconnect = 2 * time.Second // after which browsers reconnect
)

// Live takes a sample each second and sends it to the pages that watch, as server-sent
// events:
//
//	event: history   once, first: the samples of the whole run, as [status.Columns]
//	event: status    then, and each second: the JSON of /api/status, with the last sample
//	event: stage     soon after, and every two seconds: the JSON of /api/stage
//	event: end       once, last: the process ends
//
// The status is also the heartbeat. Without a watcher, a second costs one status that is
// not encoded, and the other replicas are not asked. Live is created by [NewLive], and safe
// for concurrent use.
type Live struct {
	status  func() status.Report
	whole   func(ctx context.Context) any // takes a while
	history *status.History
	watched chan struct{} // holds a token when a page has begun to watch

	mu       sync.Mutex
	watchers map[watcher]struct{}
	ended    bool
}

// watcher is the queue of one page that watches. It is closed when the page is dropped
// and at the end.
type watcher chan []byte

// NewLive returns live events of a stage: its status, the whole stage of all replicas,
// and the history that samples are added to. Run sends them.
func NewLive(status func() status.Report, whole func(context.Context) any, h *status.History) *Live {
	return &Live{status: status, whole: whole, history: h, watched: make(chan struct{}, 1), watchers: make(map[watcher]struct{})}
}

// Run takes samples until ctx ends, then sends the last state and drops the watchers.
func (l *Live) Run(ctx context.Context) {
	tick := time.NewTicker(status.SampleEvery)
	defer tick.Stop()
	var asking sync.WaitGroup
	asking.Go(func() { l.ask(ctx) })
	defer asking.Wait()
	for {
		select {
		case <-tick.C:
			l.tick()
		case <-ctx.Done():
			l.end()
			return
		}
	}
}

// ask sends the whole stage while somebody watches, until ctx ends.
func (l *Live) ask(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		watching := len(l.watchers) > 0
		l.mu.Unlock()
		var next <-chan time.Time // stays nil, and so never fires, while nobody watches
		if watching {
			w := l.whole(ctx)
			if ctx.Err() != nil { // some replicas were not waited for
				return
			}
			l.mu.Lock()
			l.send(message("stage", "", w))
			l.mu.Unlock()
			next = time.After(wholeEvery)
		}
		select {
		case <-ctx.Done():
		case <-l.watched:
		case <-next:
		}
	}
}

// tick takes a sample and sends it.
func (l *Live) tick() {
	r := l.status()
	l.history.Take(&r)
	r.Sample, _ = l.history.Last()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.watchers) > 0 {
		l.send(statusMessage(&r))
	}
}

// end sends the last state and drops all watchers; no page can watch any more.
func (l *Live) end() {
	r := l.status()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.send(statusMessage(&r))
	l.send(message("end", "", struct{}{}))
	for w := range l.watchers {
		l.drop(w)
	}
}

// send queues a message for all watchers and drops those that lag too far behind. The
// lock is held.
func (l *Live) send(m []byte) {
	for w := range l.watchers {
		select {
		case w <- m:
		default:
			l.drop(w)
		}
	}
}

// drop ends a watcher. The lock is held.
func (l *Live) drop(w watcher) {
	if _, ok := l.watchers[w]; ok {
		delete(l.watchers, w)
		close(w)
	}
}

// watch adds a watcher with the history and the status in its queue. It returns nil if
// there are too many watchers, or if the process ends.
func (l *Live) watch() watcher {
	r := l.status()
	w := make(watcher, 2+watcherQueue)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || len(l.watchers) >= watchersMax {
		return nil
	}
	l.watchers[w] = struct{}{}
	w <- message("history", "", l.history.Columns())
	// The status must have the last sample of this history, not an earlier one: a page drops
	// the samples of its history that are not earlier than the one that it receives.
	// Otherwise this could happen: the status is read with sample 8, a tick adds sample 9
	// to the history, the page gets both, and sample 8 makes it drop sample 9. That the
	// tick then sends sample 9 again does no harm.
	r.Sample, _ = l.history.Last()
	w <- statusMessage(&r)
	select {
	case l.watched <- struct{}{}:
	default:
	}
	return w
}

// leave removes a watcher.
func (l *Live) leave(w watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(w)
}

// ServeHTTP streams events until the client leaves, is too slow, or has watched for an
// hour, or the process ends.
func (l *Live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	me := l.watch()
	if me == nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(watcherReconnect.Seconds())))
		writePlain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages are watching already, or the stage is ending", watchersMax))
		return
	}
	defer l.leave(me)
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // nginx buffers events otherwise
	control := http.NewResponseController(w)
	send := func(m []byte) error {
		// The server's write time-out is for whole responses. Only a test's writer lacks
		// deadlines.
		_ = control.SetWriteDeadline(time.Now().Add(watcherPatience))
		if _, err := w.Write(m); err != nil {
			return err
		}
		return control.Flush()
	}
	ctx, cancel := context.WithTimeout(r.Context(), watcherLifetime)
	defer cancel()
	if send(fmt.Appendf(nil, "retry: %d\n\n", watcherReconnect.Milliseconds())) != nil {
		return
	}
	for {
		select {
		case m, ok := <-me:
			if !ok || send(m) != nil {
				return
			}
		case <-ctx.Done():
			me.flush(send)
			return
		}
	}
}

// flush sends what is queued. A process that ends cancels the requests right after it has
// queued the last state. If the client has left, the first message fails.
func (w watcher) flush(send func([]byte) error) {
	for {
		select {
		case m, ok := <-w:
			if !ok || send(m) != nil {
				return
			}
		default:
			return
		}
	}
}

// statusMessage encodes a status event; its id is the time in milliseconds.
func statusMessage(r *status.Report) []byte {
	return message("status", strconv.FormatInt(r.Time.UnixMilli(), 10), r)
}

// message encodes an event; id may be empty. JSON has no line breaks, so one line of data
// holds it.
func message(event, id string, data any) []byte {
	body, err := json.Marshal(data)
	if err != nil {
		// An event named error would look like a broken connection.
		body, event = []byte(strconv.Quote(err.Error())), "failure"
	}
	m := fmt.Appendf(nil, "event: %s\n", event)
	if id != "" {
		m = fmt.Appendf(m, "id: %s\n", id)
	}
	return fmt.Appendf(m, "data: %s\n\n", body)
}
