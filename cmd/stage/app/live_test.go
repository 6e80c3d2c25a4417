package app

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// counting is a live whose stage has sent one more call at each look, a second after the one before.
func counting() *live {
	looks := 0
	return newLive(func() statusReport {
		looks++
		return statusReport{Stage: "s", Time: epoch.Add(time.Duration(looks) * time.Second), Pool: poolReport{Dispatched: uint64(looks)}}
	}, newHistory(epoch))
}

func TestHistoryKeepsTenMinutesOfRates(t *testing.T) {
	h := newHistory(epoch)
	var dispatched, rejected uint64
	for i := 1; i <= 700; i++ {
		dispatched += 20
		rejected++
		pause := epoch
		r := statusReport{Time: epoch.Add(time.Duration(i) * 2 * time.Second), Pool: poolReport{Dispatched: dispatched, CapacityRetries: rejected}}
		allowed := 12.5
		if r.Pool.Allowed = &allowed; i == 700 {
			r.Pool.LawPausedUntil = &pause
		}
		r.Rows.Succeeded, r.Partitions = dispatched, []partitionReport{{WindowRows: 3, ReorderRows: 1}, {WindowRows: 4, ReorderRows: 2}}
		h.take(&r)
		h.take(&r) // of the same instant: none
	}
	all := h.all()
	if len(all) != samplesMax || all[0].Time != epoch.Unix()+202 || all[samplesMax-1].Time != epoch.Unix()+1400 {
		t.Fatalf("got %d samples from %d to %d", len(all), all[0].Time-epoch.Unix(), all[len(all)-1].Time-epoch.Unix())
	}
	if s := all[5]; s.Calls != 10 || s.Rejected != 0.5 || s.Rows != 10 || *s.Allowed != 12.5 || s.Window != 7 || s.Reorder != 3 || s.Held {
		t.Errorf("got %+v", s)
	}
	last, _ := h.last()
	if !last.Held || last.Allowed != nil {
		t.Errorf("while the server asks to wait: got %+v, want held and nothing allowed", last)
	}
}

func TestTimeToGoComesFromTheLastHalfMinute(t *testing.T) {
	h := newHistory(epoch)
	rows := uint64(0)
	for i := 1; i <= 100; i++ {
		if i > 60 {
			rows += 6
		}
		r := statusReport{Time: epoch.Add(time.Duration(i) * time.Second)}
		r.Rows.Succeeded = rows
		h.take(&r)
	}
	if _, got := h.last(); got != 6 {
		t.Errorf("got %v rows/s, want 6: what was before does not count", got)
	}
}

// readEvent returns the next event of a stream.
func readEvent(t *testing.T, r *bufio.Reader) (name, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		case line == "" && name != "":
			return name, data
		}
	}
}

// Real sockets: a page gets the history and the state at once, then each sample, and at last the end.
func TestEventsAreHistoryThenStatusThenTheEnd(t *testing.T) {
	l := counting()
	l.tick()
	server := httptest.NewServer(l)
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %s", got)
	}
	events := bufio.NewReader(response.Body)
	if line, err := events.ReadString('\n'); err != nil || line != "retry: 2000\n" {
		t.Errorf("first %q, %v: want what to wait before coming back", line, err)
	}
	var samples []sample
	name, data := readEvent(t, events)
	if err := json.Unmarshal([]byte(data), &samples); err != nil || name != "history" || len(samples) != 1 {
		t.Errorf("got %s %s, %v: want the history", name, data, err)
	}
	name, data = readEvent(t, events)
	var first, next statusReport
	if err := json.Unmarshal([]byte(data), &first); err != nil || name != "status" || first.Stage != "s" {
		t.Errorf("got %s %s, %v: want the status", name, data, err)
	}
	l.tick()
	name, data = readEvent(t, events)
	if err := json.Unmarshal([]byte(data), &next); err != nil || name != "status" || !next.Time.After(first.Time) || next.Sample == nil || next.Sample.Time != next.Time.Unix() {
		t.Errorf("got %s %s, %v: want the next status with its sample", name, data, err)
	}
	l.end()
	if name, _ := readEvent(t, events); name != "status" {
		t.Errorf("got %s, want the last status", name)
	}
	if name, _ := readEvent(t, events); name != "end" {
		t.Errorf("got %s, want the end", name)
	}
	if rest, err := events.ReadString('\n'); err == nil {
		t.Errorf("%q after the end", rest)
	}
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/events", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("after the end: got %d", w.Code)
	}
}

func TestWatchersAreBounded(t *testing.T) {
	l := counting()
	var all []*watcher
	for range watchersMax {
		all = append(all, l.watch())
	}
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/events", nil))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one too many: got %d", w.Code)
	}
	l.leave(all[3])
	l.leave(all[3]) // twice is once
	if l.watch() == nil {
		t.Error("no place though one has left")
	}
}

func TestSlowWatchersAreDroppedAndOthersAreNot(t *testing.T) {
	l := counting()
	slow, quick := l.watch(), l.watch()
	for range watcherQueue + 1 {
		l.tick()
		<-quick.queue
	}
	if got := len(l.watchers); got != 1 {
		t.Fatalf("%d watchers, want the quick one", got)
	}
	got := 0
	for range slow.queue { // closed, so this ends
		got++
	}
	if want := 2 + watcherQueue; got != want {
		t.Errorf("the slow one has %d messages, want %d", got, want)
	}
}

func TestAClientThatLeavesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := counting()
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/events", nil))
		}()
		synctest.Wait()
		if len(l.watchers) != 1 {
			t.Errorf("%d watchers, want 1", len(l.watchers))
		}
		leave()
		<-done
		if len(l.watchers) != 0 {
			t.Errorf("%d watchers after it left", len(l.watchers))
		}
	})
}

func TestWhatIsQueuedIsToldThoughTheServerEnds(t *testing.T) {
	l := counting()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // of several ready channels select takes any
		w := httptest.NewRecorder()
		l.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/events", nil))
		if got := w.Body.String(); !strings.Contains(got, "event: history") || !strings.Contains(got, "event: status") {
			t.Fatalf("got %.200s", got)
		}
	}
}

func TestASampleIsTakenEachSecondWhoeverLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(time.Now())
		l := newLive(func() statusReport { return statusReport{Time: time.Now()} }, h)
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second+time.Millisecond)
		defer stop()
		l.run(ctx)
		if got := len(h.all()); got != 5 {
			t.Errorf("%d samples in 5 s", got)
		}
	})
}

func BenchmarkTickUnwatched(b *testing.B) {
	l := counting()
	b.ReportAllocs()
	for b.Loop() {
		l.tick()
	}
}
