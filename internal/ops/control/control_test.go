package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestAnOrderIsCheckedBeforeAnythingIsDone(t *testing.T) {
	const fine = `"format":1,"id":"ABCDEFGH","time":"2026-03-01T12:00:00Z","verb":"pause"`
	for _, tt := range []struct {
		body    string
		foreign bool
		want    string // in the error, or empty if the order is valid
	}{
		{`{` + fine + `}`, false, ""},
		{`{` + fine + `,"partition":1023,"replicas":["a"],"more":1}`, false, ""},
		{``, true, ""},
		{`[]`, true, ""},
		{`"pause"`, true, ""},
		{`{"verb":"pause"}`, true, ""},
		{`{"id":"` + strings.Repeat("A", 1000) + `"}`, true, ""},
		{`{` + fine + `,"by":{"user":"` + strings.Repeat("x", orderBytesMax) + `"}}`, true, ""},
		{`{` + strings.Replace(fine, `"format":1`, `"format":2`, 1) + `}`, false, "format 2, this version knows 1"},
		{`{` + strings.Replace(fine, `pause`, `explode`, 1) + `}`, false, `unknown order "explode"`},
		{`{` + fine + `,"partition":-1}`, false, "no partition -1"},
		{`{` + fine + `,"partition":1024}`, false, "no partition 1024"},
		{`{` + strings.Replace(fine, `12:00`, `11:58`, 1) + `}`, false, "it is late"},
		{`{` + strings.Replace(fine, `12:00`, `12:02`, 1) + `}`, false, "clocks differ"},
		{`{` + fine + `,"replicas":[` + strings.Repeat(`"a",`, replicasMax) + `"a"]}`, false, "257 replicas"},
	} {
		_, err := read([]byte(tt.body), noon)
		switch {
		case tt.foreign != errors.Is(err, errForeign):
			t.Errorf("%.80s: got error %v, foreign: want %v", tt.body, err, tt.foreign)
		case !tt.foreign && tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%.80s: got error %v, want %q", tt.body, err, tt.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"format":1,"id":"ABCDEFGH","time":"2026-03-01T12:00:00Z","verb":"drain","partition":3,"replicas":["a"],"by":{"user":"u","host":"h"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := read(body, noon)
		if err == nil && (!slices.Contains(Verbs, o.Verb) || len(o.By.Detail()) > 10*textBytesMax) {
			t.Errorf("accepted %+v", o)
		}
		_, _ = readAnswer(body, &o)
	})
}

// replica obeys and remembers what it was told.
type replica struct {
	mu   sync.Mutex
	told []string
}

func (r *replica) do(_ context.Context, o *Order) (Outcome, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, o.String()+" by "+o.By.String())
	if o.Verb == Drain {
		return Refused, "nobody takes over"
	}
	return Done, "as told"
}

func (r *replica) did() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.told, ", ")
}

// lab is a server with replicas that obey.
type lab struct {
	t   *testing.T
	srv *server.Server
	nc  *nats.Conn
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, srv: stagetest.Core(t)}
	l.nc = stagetest.Join(l.t, l.srv)
	return l
}

// serve starts a replica.
func (l *lab) serve(id string) *replica {
	l.t.Helper()
	r := &replica{}
	nc := stagetest.Join(l.t, l.srv)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(ctx, nc, Replica{Stage: "s", ID: id, Host: "host-" + id, Do: r.do, Log: slog.New(slog.DiscardHandler)})
	}()
	l.t.Cleanup(func() {
		stop()
		<-ended
	})
	time.Sleep(10 * time.Millisecond) // in the bubble: it is subscribed then
	return r
}

// Each replica that an order is for carries it out and says so; one that does not answer
// is missing after the patience.
func TestEachReplicaAnswersWhatItDid(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		a, b, c := l.serve("a"), l.serve("b"), l.serve("c")
		three := 3
		began := time.Now()
		answers, err := Send(t.Context(), l.nc, "s", Order{Verb: Pause, Partition: &three, Replicas: []string{"a", "b"}, By: By{User: "u", Host: "h"}})
		if err != nil || len(answers) != 2 || answers["a"].Outcome != Done || answers["b"].Text != "as told" || answers["b"].Host != "host-b" {
			t.Errorf("got %+v, error %v", answers, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v though all have answered", took)
		}
		answers, err = Send(t.Context(), l.nc, "s", Order{Verb: Drain, Replicas: []string{"c", "gone"}})
		if err != nil || len(answers) != 1 || answers["c"].Outcome != Refused {
			t.Errorf("got %+v, error %v, want that c has refused", answers, err)
		}
		if took := time.Since(began); took < Patience {
			t.Errorf("gave up after %v", took)
		}
		for _, r := range []struct {
			*replica
			want string
		}{{a, "pause partition 3 by u@h"}, {b, "pause partition 3 by u@h"}, {c, "drain by somebody"}} {
			if got := r.did(); got != r.want {
				t.Errorf("did %q, want %q", got, r.want)
			}
		}
	})
}

// An order is carried out once however often it comes: each copy gets the same answer.
// Noise changes nothing.
func TestAnOrderIsCarriedOutOnce(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		r := l.serve("a")
		order := func(id string, at time.Time) []byte {
			body := stagetest.Value(json.Marshal(Order{Format: Format, ID: id, Time: at, Verb: Pause}))(t)
			return body
		}
		ask := func(body []byte) string {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the library's own timers are shared by bubbles
			defer cancel()
			m, err := l.nc.RequestWithContext(ctx, Subject("s"), body)
			if err != nil {
				return err.Error()
			}
			return string(m.Data)
		}
		for _, noise := range []string{"", "{}", "\x00", `{"id":"ABCDEFGH"}`, `[[[[`} {
			stagetest.Must(t, l.nc.Publish(Subject("s"), []byte(noise)))
		}
		now := time.Now()
		first := ask(order("ABCDEFGH", now))
		if second := ask(order("ABCDEFGH", now)); second != first || !strings.Contains(first, `"outcome":"done"`) {
			t.Errorf("first %s, second %s", first, second)
		}
		if err := l.nc.Publish(Subject("s"), order("ABCDEFGH", now)); err != nil { // without a reply subject
			t.Fatal(err)
		}
		if late := ask(order("IJKLMNOP", now.Add(-5*time.Minute))); !strings.Contains(late, `"outcome":"refused"`) || !strings.Contains(late, "it is late") {
			t.Errorf("a late one: %s", late)
		}
		for i := range 3 * remembered { // what is remembered is bounded
			ask(order(fmt.Sprintf("%08d", i), now))
		}
		if got := strings.Count(r.did(), "pause"); got != 1+3*remembered {
			t.Errorf("carried out %d times, want %d", got, 1+3*remembered)
		}
	})
}

// Without a connection nothing is sent, so that it does not arrive when there is one again.
func TestNothingIsSentWithoutAConnection(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		l.nc.Close()
		if _, err := Send(t.Context(), l.nc, "s", Order{Verb: Pause, Replicas: []string{"a"}}); err == nil {
			t.Error("no error")
		}
	})
}
