package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

// began is when the stage of these tests started.
var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// nobody is the whole of a stage that nobody asks for.
func nobody(context.Context) any { return nil }

// counting is a live whose stage has sent one more call at each look, a second after the
// one before.
func counting() *Live {
	looks := 0
	return NewLive(func() status.Report {
		looks++
		return status.Report{Stage: "s", Time: began.Add(time.Duration(looks) * time.Second), Pool: status.PoolReport{Dispatched: uint64(looks)}}
	}, nobody, status.NewHistory(began))
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

// Real sockets: a page gets the history and the state at once, then each sample, and at
// last the end.
func TestEventsAreHistoryThenStatusThenTheEnd(t *testing.T) {
	l := counting()
	l.tick()
	server := httptest.NewServer(l)
	defer server.Close()
	request := stagetest.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil))(t)
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
	var samples status.Columns
	name, data := readEvent(t, events)
	if err := json.Unmarshal([]byte(data), &samples); err != nil || name != "history" || len(samples.Time) != 1 || samples.Calls[0] != 1 {
		t.Errorf("got %s %s, %v: want the history", name, data, err)
	}
	name, data = readEvent(t, events)
	var first, next status.Report
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
	var all []watcher
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
		<-quick
	}
	if got := len(l.watchers); got != 1 {
		t.Fatalf("%d watchers, want the quick one", got)
	}
	got := 0
	for range slow { // closed, so this ends
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

func TestASampleIsTakenEachSecondWithoutWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := status.NewHistory(time.Now())
		l := NewLive(func() status.Report { return status.Report{Time: time.Now()} }, nobody, h)
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second+time.Millisecond)
		defer stop()
		l.Run(ctx)
		if got := len(h.All()); got != 5 {
			t.Errorf("%d samples in 5 s", got)
		}
	})
}

// The others are asked only while a page watches: at once when one begins to, and every
// two seconds.
func TestTheWholeStageIsSentWhileAPageWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		began := time.Now()
		l := NewLive(func() status.Report { return status.Report{Time: time.Now()} }, func(context.Context) any {
			asked = append(asked, time.Since(began))
			time.Sleep(300 * time.Millisecond)
			return map[string]int{"look": len(asked)}
		}, status.NewHistory(began))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx)
		}()
		time.Sleep(10 * time.Second)
		first := l.watch()
		var stages []string
		for end := time.After(5 * time.Second); end != nil; {
			select {
			case m := <-first:
				if strings.HasPrefix(string(m), "event: stage\n") {
					stages = append(stages, fmt.Sprint(time.Since(began), " ", strings.TrimSpace(string(m))))
				}
			case <-end:
				end = nil
			}
		}
		l.leave(first)
		time.Sleep(time.Minute)
		stop()
		<-ended
		if got, want := fmt.Sprint(asked), "[10s 12.3s 14.6s]"; got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}
		if want := []string{"10.3s event: stage\ndata: {\"look\":1}", "12.6s event: stage\ndata: {\"look\":2}", "14.9s event: stage\ndata: {\"look\":3}"}; !slices.Equal(stages, want) {
			t.Errorf("got %q\nwant %q", stages, want)
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
