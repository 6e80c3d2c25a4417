package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/status"
)

// Bounds of the pages that watch.
const (
	watchersMax      = 16
	watcherQueue     = 4 // messages that a slow one may be behind; then it is dropped and may come back
	watcherPatience  = 5 * time.Second
	watcherLifetime  = time.Hour       // a proxy may read on when its page is gone; browsers reconnect
	watcherReconnect = 2 * time.Second // what browsers are told to wait
)

// Live takes a sample each second, and tells the pages that watch by server-sent events:
//
//	event: history   once, at first: the samples of the last minutes, the oldest first
//	event: status    at first and each second: what /api/status says, with the last sample. It is the heartbeat, too
//	event: end       once, at last: the process ends
//
// While nobody watches, a second costs one status that is not encoded.
type Live struct {
	status  func() status.Report
	history *status.History

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	ended    bool
}

// watcher is one page that watches. Its queue is closed when it is dropped, and at the end.
type watcher struct{ queue chan []byte }

func NewLive(status func() status.Report, h *status.History) *Live {
	return &Live{status: status, history: h, watchers: make(map[*watcher]struct{})}
}

// Run takes samples until ctx ends; then it tells the last state and lets the watchers go.
func (l *Live) Run(ctx context.Context) {
	tick := time.NewTicker(status.SampleEvery)
	defer tick.Stop()
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

// tick takes a sample and tells it.
func (l *Live) tick() {
	r := l.status()
	l.history.Take(&r)
	r.Sample, _ = l.history.Last()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.watchers) > 0 {
		l.tell(statusMessage(&r))
	}
}

func (l *Live) end() {
	r := l.status()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.tell(statusMessage(&r))
	l.tell(message("end", "", struct{}{}))
	for w := range l.watchers {
		l.drop(w)
	}
}

// tell queues a message for all watchers, and drops those that are too far behind. The lock is held.
func (l *Live) tell(m []byte) {
	for w := range l.watchers {
		select {
		case w.queue <- m:
		default:
			l.drop(w)
		}
	}
}

// drop ends a watcher. The lock is held.
func (l *Live) drop(w *watcher) {
	if _, ok := l.watchers[w]; ok {
		delete(l.watchers, w)
		close(w.queue)
	}
}

// watch adds a watcher that has the history and the status in its queue; nil: there are too many, or the process ends.
func (l *Live) watch() *watcher {
	r := l.status()
	w := &watcher{queue: make(chan []byte, 2+watcherQueue)}
	// Added first: a sample that comes in between is in the history and told again, which a page can see by its time.
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || len(l.watchers) >= watchersMax {
		return nil
	}
	l.watchers[w] = struct{}{}
	w.queue <- message("history", "", l.history.All())
	w.queue <- statusMessage(&r)
	return w
}

func (l *Live) leave(w *watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(w)
}

// ServeHTTP streams events until the client leaves, is too slow, has watched for an hour, or the process ends.
func (l *Live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	me := l.watch()
	if me == nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(watcherReconnect.Seconds())))
		writePlain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages watch already, or the stage is ending", watchersMax))
		return
	}
	defer l.leave(me)
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // nginx, which else holds events back
	control := http.NewResponseController(w)
	send := func(m []byte) error {
		// The server's own limit is for whole responses. A writer that knows no deadlines is a test's.
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
		case m, ok := <-me.queue:
			if !ok || send(m) != nil {
				return
			}
		case <-ctx.Done():
			me.flush(send)
			return
		}
	}
}

// flush sends what is queued: a process that ends cuts its streams as soon as it has told them how it ended. A client that
// has left fails the first of it.
func (w *watcher) flush(send func([]byte) error) {
	for {
		select {
		case m, ok := <-w.queue:
			if !ok || send(m) != nil {
				return
			}
		default:
			return
		}
	}
}

func statusMessage(r *status.Report) []byte {
	return message("status", strconv.FormatInt(r.Time.UnixMilli(), 10), r)
}

// message encodes an event; id may be empty. JSON has no line breaks, so one line of data holds it.
func message(event, id string, data any) []byte {
	body, err := json.Marshal(data)
	if err != nil {
		body, event = []byte(strconv.Quote(err.Error())), "fault"
	}
	m := fmt.Appendf(nil, "event: %s\n", event)
	if id != "" {
		m = fmt.Appendf(m, "id: %s\n", id)
	}
	return fmt.Appendf(m, "data: %s\n\n", body)
}
