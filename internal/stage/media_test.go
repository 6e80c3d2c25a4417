package stage

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

const lookFile = `
- role: user
  content:
    - {type: text, text: "{{ row.q }}"}
    - {type: image, source: "nats://photos/{{ row.q }}"}
`

// mediaLab has a stage whose rows name objects of the bucket photos, and calls that take ten seconds.
type mediaLab struct {
	*lab
	photos *stagetest.Bucket
}

func newMediaLab(t *testing.T, rows int, vars map[string]string) *mediaLab {
	t.Helper()
	return mediaLabOf(t, newLab(t, llmtest.Config{Latency: 10 * time.Second}, map[string]string{
		"STAGE_POOL_SIZE": "1", "STAGE_WINDOW_BYTES": "1MiB",
	}), rows, vars)
}

func mediaLabOf(t *testing.T, of *lab, rows int, vars map[string]string) *mediaLab {
	t.Helper()
	file := stagetest.File(t, "look.yaml", lookFile)
	l := &mediaLab{lab: of, photos: stagetest.NewBucket(t, of.js, "photos")}
	l.vars["STAGE_TEMPLATE"], l.vars["STAGE_MESSAGES_FILE"] = "", file
	maps.Copy(l.vars, vars)
	for i := range rows {
		q := fmt.Sprint("q", i+1)
		l.photos.Put(q, stagetest.Picture+q)
		l.load(q)
	}
	return l
}

// away cuts the stage's object stores off; the rest of its connection is as it was.
func (l *mediaLab) away(s *Stage) {
	l.t.Helper()
	nc := l.srv.Connect()
	nc.Close()
	s.objects.Use(nc)
}

// A row whose object store can't be reached waits, and says so; no row fails. The next start goes on.
func TestRowsWaitForTheirObjectStore(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newMediaLab(t, 3, nil)
		l.prepare = l.away
		r := l.start(nil, Options{})
		time.Sleep(time.Minute)
		held := r.Status().Holds.Of(hold.Media)
		if held == nil || !strings.Contains(held.Why, "stream OBJ_photos: nats: connection closed") || time.Since(held.Since) < 50*time.Second {
			t.Errorf("holds %+v", r.Status().Holds)
		}
		if ready, why := r.ready(); ready || !strings.Contains(why, "stream OBJ_photos: nats: connection closed") {
			t.Errorf("ready: %v, %s", ready, why)
		}
		checkPrinted(l.lab, r, 2, hold.Media, "")
		if n := len(l.results()) + l.received(); n != 0 {
			t.Errorf("%d results and calls", n)
		}
		r.stop()

		l.prepare = nil
		r = l.work(3, nil)
		if l.received() != 3 || r.Status().Holds.Of(hold.Media) != nil {
			t.Errorf("%d calls, holds %+v", l.received(), r.Status().Holds)
		}
		for _, e := range l.events(auditlog.KindCall) {
			if !strings.Contains(string(e.Call.Request), `"image_url":{"url":{"sha256":"`) {
				t.Errorf("request %s", e.Call.Request)
			}
		}
	})
}

// The store goes away when the row's call is about to be made: the row leaves the pool until the store is back.
func TestAStoreThatGoesAwayBeforeTheCallCostsNoRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newMediaLab(t, 3, nil)
		r := l.start(nil, Options{})
		time.Sleep(5 * time.Second) // the first call is in flight, and the others are looked up
		l.away(r.Stage)
		time.Sleep(time.Minute)
		if got := len(l.results()); got != 1 || r.Status().Holds.Of(hold.Media) == nil {
			t.Errorf("%d results, holds %+v", got, r.Status().Holds)
		}
		r.objects.Use(l.nc)
		l.await(3)
		r.stop()
		l.noneFailed()
		if l.received() != 3 || strings.Count(l.logs.String(), "can't be read: its row waits") != 1 || !strings.Contains(l.logs.String(), "are read again") {
			t.Errorf("%d calls; log:\n%s", l.received(), l.logs.String())
		}
	})
}

// What changes between the look-up and the call fails its row, which says so.
func TestAnObjectThatChangesFailsItsRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newMediaLab(t, 4, nil)
		r := l.start(nil, Options{})
		time.Sleep(5 * time.Second)
		l.photos.Put("q2", stagetest.Picture+"changed")
		l.photos.Put("q3", "")
		l.await(4)
		r.stop()
		for i, want := range []string{"", "changed or was deleted", "changed or was deleted", ""} {
			result := l.results()[i]
			if (result.Error == nil) != (want == "") || want != "" && (result.Error.Reason != "invalid_row" || !strings.Contains(result.Error.Text, want)) {
				t.Errorf("row %d: %+v, want %q", i+1, result.Error, want)
			}
		}
		if l.received() != 2 {
			t.Errorf("%d calls", l.received())
		}
	})
}

// Equal pictures under two names are one request.
func TestEqualContentIsOneRequest(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newMediaLab(t, 0, map[string]string{"STAGE_DEDUPE": "inflight"})
		file := stagetest.File(t, "same.yaml", "- {role: user, content: [{type: image, source: 'nats://photos/{{ row.q }}'}]}")
		for _, name := range []string{"a", "b", "c"} {
			end := "same"
			if name == "c" {
				end = "other"
			}
			l.photos.Put(name, stagetest.Picture+end)
			l.load(name)
		}
		l.work(3, map[string]string{"STAGE_MESSAGES_FILE": file})
		if l.received() != 2 {
			t.Errorf("%d calls for two pictures", l.received())
		}
	})
}

// Calls hold no more bytes of media at a time than the window has for rows, however many slots the pool has.
func TestCallsHoldNoMoreMediaThanTheWindowsBytes(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newMediaLab(t, 0, map[string]string{"STAGE_POOL_SIZE": "16"})
		for i := range 5 {
			q := fmt.Sprint("q", i+1)
			l.photos.Put(q, stagetest.Picture+strings.Repeat("x", 300<<10)) // two of them in base64 fit into 1 MiB
			l.load(q)
		}
		l.work(5, nil)
		if most := l.llms["first.test"].Stats().MaxInFlight; most != 2 {
			t.Errorf("%d calls at a time", most)
		}
	})
}

// The lines of a batch have the pictures, and what is kept of them the digests.
func TestABatchHasThePictures(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := mediaLabOf(t, newBatchesLab(t, batches.Config{Delay: 2 * time.Minute}, nil), 20, nil)
		l.prepare = l.away
		r := l.start(nil, Options{})
		time.Sleep(time.Minute)
		checkPrinted(l.lab, r, 1, hold.Media, "")
		r.objects.Use(l.nc)
		l.awaitHours(20)
		time.Sleep(2 * time.Minute)
		r.stop()
		for i, result := range l.results() {
			want := llm.Hash([]byte(stagetest.Picture + fmt.Sprint("q", i+1)))
			if result.Error != nil || !strings.Contains(result.Text, want) {
				t.Errorf("row %d: %+v, want a picture with %s", i+1, result, want)
			}
		}
		for _, e := range l.events(auditlog.KindCall) {
			if e.Call.Lane == "" || !strings.Contains(string(e.Call.Request), `"image_url":{"url":{"sha256":"`) {
				t.Errorf("%s: request %s", e.Call.Lane, e.Call.Request)
			}
		}
		l.proven()
	})
}

// The elements of a row have pictures of their own. One is missing. A kill repays no more calls than the pool has slots.
func TestElementsHavePicturesAndAKillRepaysFew(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newMediaLab(t, 0, map[string]string{"STAGE_POOL_SIZE": "4", "STAGE_JOURNAL_AFTER": "0s", "STAGE_FOREACH": "photos", "STAGE_FOREACH_ERRORS": "keep"})
		file := stagetest.File(t, "items.yaml", "- {role: user, content: [{type: text, text: '{{ item }}'}, {type: image, source: 'nats://photos/{{ item }}'}]}")
		l.vars["STAGE_MESSAGES_FILE"] = file
		for i := range 8 {
			l.photos.Put(fmt.Sprint("p", i), stagetest.Picture+fmt.Sprint(i))
		}
		l.publish(&nats.Msg{Data: []byte(`{"photos":["p0","p1","p2","p3"]}`)})
		l.publish(&nats.Msg{Data: []byte(`{"photos":["p4","none","p6","p7"]}`)})
		r := l.start(nil, Options{})
		time.Sleep(15 * time.Second) // four calls have ended, and three are in flight
		r.kill()
		l.work(2, nil)
		for i, body := range l.bodies() {
			var got struct {
				Answers []json.RawMessage `json:"llm_response"`
			}
			stagetest.Must(t, json.Unmarshal([]byte(body), &got))
			for n, answer := range got.Answers {
				want := llm.Hash([]byte(stagetest.Picture + fmt.Sprint(4*i+n)))
				if i == 1 && n == 1 {
					want = "the object nats://photos/none is missing"
				}
				if !strings.Contains(string(answer), want) {
					t.Errorf("row %d, element %d: %s, want %s", i+1, n, answer, want)
				}
			}
			if len(got.Answers) != 4 {
				t.Errorf("row %d: %s", i+1, body)
			}
		}
		if got := l.received(); got > 7+4 {
			t.Errorf("%d calls for 7 pictures, killed with 4 slots", got)
		}
		l.proven()
	})
}
