package recorder

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
)

func TestOnlyTheAnswerThatAllIsStoredStoresAGroup(t *testing.T) {
	nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
	defer nc.Close()
	for _, c := range []struct {
		name, token, data   string
		stored, still, lone int // reported, in the group, one by one
	}{
		{"all of it", "ID.1000.fail.5.2.$FI", `{"stream":"AUDIT","seq":9,"batch":"ID","count":5}`, 5, 0, 0},
		{"how far it is", "ID.1000.fail.1.0.$FI", `{"type":"ack","seq":0,"msgs":500}`, 0, 5, 0},
		{"how far it is, all", "ID.1000.fail.5.2.$FI", `{"type":"ack","seq":5,"msgs":500}`, 0, 5, 0},
		{"another group", "other.1000.fail.5.2.$FI", `{"stream":"AUDIT","seq":9,"batch":"other","count":5}`, 0, 5, 0},
		{"a part", "ID.1000.fail.5.2.$FI", `{"stream":"AUDIT","seq":8,"batch":"ID","count":4}`, 0, 0, 5},
		{"a message is missing", "ID.1000.fail.4.1.$FI", `{"type":"gap","last_seq":3,"seq":4}`, 0, 0, 5},
		{"a message is refused", "ID.1000.fail.3.1.$FI", `{"type":"err","seq":3,"error":{"code":400,"err_code":10077,"description":"maximum bytes exceeded"}}`, 0, 0, 5},
		{"a message was not written", "ID.1000.fail.3.1.$FI", `{"stream":"AUDIT","seq":0,"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}`, 0, 0, 5},
		{"fast batches are not allowed", "ID.1000.fail.1.0.$FI", `{"error":{"code":400,"err_code":10205,"description":"batch publish is disabled"},"stream":"AUDIT","seq":0}`, 0, 0, 5},
		{"a server that knows no batches", "ID.1000.fail.1.0.$FI", `{"stream":"AUDIT","seq":5}`, 0, 0, 5},
		{"not what a server says", "ID.1000.fail.5.2.$FI", `{`, 0, 0, 5},
		{"nothing", "ID.1000.fail.5.2.$FI", ``, 0, 0, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(nc, Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler)})
			told := 0
			for i := range 5 {
				r.RecordCall(&auditlog.Call{CallIndex: i}, func() { told++ })
			}
			r.mu.Lock()
			r.ways.takes.Fast, r.link.listening = true, true
			r.flush(time.Now().Add(gatherFor))
			id := r.inFlight.group.id
			r.mu.Unlock()
			r.answered(&nats.Msg{Subject: r.link.prefix + strings.ReplaceAll(c.token, "ID", id), Data: []byte(strings.ReplaceAll(c.data, "ID", id))})
			if told != c.stored || r.inFlight.group.size() != c.still || len(r.inFlight.single) != c.lone {
				t.Errorf("%d reported, %d in the group, %d one by one; want %d, %d, %d", told, r.inFlight.group.size(), len(r.inFlight.single), c.stored, c.still, c.lone)
			}
		})
	}
}

// A disk that syncs each message makes fast batches slow; then atomic ones are cheaper by
// far.
func TestAServerThatIsSlowForEachMessageGetsAtomicBatches(t *testing.T) {
	nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
	defer nc.Close()
	for _, c := range []struct {
		name   string
		each   time.Duration
		takes  groups
		events int
		atomic bool
		size   int
	}{
		{"fast server", 20 * time.Microsecond, groups{Atomic: true, Fast: true}, 900, false, 900},
		{"slow server", time.Millisecond, groups{Atomic: true, Fast: true}, 900, true, 900},
		{"slow server, few events", time.Millisecond, groups{Atomic: true, Fast: true}, 10, false, 10},
		{"slow server that has no atomic batches", time.Millisecond, groups{Fast: true}, 900, false, 64},
		{"an older server", 20 * time.Microsecond, groups{Atomic: true}, 900, true, 900},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(nc, Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler)})
			for i := range c.events {
				r.RecordCall(&auditlog.Call{CallIndex: i}, nil)
			}
			for range 100 {
				r.ways.fast.Add(64*c.each, 64)
			}
			r.ways.takes, r.link.listening = c.takes, true
			r.flush(time.Now().Add(gatherFor))
			if g := r.inFlight.group; g.size() != c.size || g.atomic != c.atomic {
				t.Errorf("a group of %d, atomic %v; want %d, %v", g.size(), g.atomic, c.size, c.atomic)
			}
		})
	}
}

func TestManyEventsGather(t *testing.T) {
	p := pace{wake: func() {}}
	start := time.Unix(100, 0)
	defer p.stop()
	for i, c := range []struct {
		after time.Duration
		n     int
		goes  bool
	}{
		{0, 1, true}, // and 15 more
		{gatherFor / 2, 1, false},
		{gatherFor / 2, gatherMany, true},
		{gatherFor / 2, gatherMany - 1, false},
		{gatherFor, gatherFew, true},
		{gatherFor + 1, 1, false}, // they come as fast as before
		{2 * gatherFor, gatherFew - 1, true},
		{2*gatherFor + 1, 1, true}, // they don't
		{9 * gatherFor, 1, true},
	} {
		if got := p.mayGo(start.Add(c.after), c.n); got != c.goes {
			t.Errorf("step %d: may go %v, want %v", i, got, c.goes)
		}
		for i == 0 && p.departures < gatherFew {
			if !p.mayGo(start, 1) {
				t.Fatalf("departure %d has to wait", p.departures)
			}
		}
	}
}
