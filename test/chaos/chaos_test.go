package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func quiet(fs *flag.FlagSet) { fs.SetOutput(io.Discard) }

func mustPlan(t *testing.T, args ...string) *plan {
	t.Helper()
	p := stagetest.Value(parsePlan(args, quiet))(t)
	return p
}

func TestASeedRepeatsTheSchedule(t *testing.T) {
	args := []string{"-servers", "3", "-partitions", "8", "-rows", "20000", "-seed"}
	one, again, other := mustPlan(t, append(args, "5")...), mustPlan(t, append(args, "5")...), mustPlan(t, append(args, "6")...)
	if !reflect.DeepEqual(one.schedule(), again.schedule()) {
		t.Error("the same seed drew another schedule")
	}
	if reflect.DeepEqual(one.schedule(), other.schedule()) {
		t.Error("another seed drew the same schedule")
	}
	counts := make(map[kind]int)
	for _, f := range one.schedule() {
		counts[f.kind]++
		if f.at <= 0 || f.at >= 1 {
			t.Errorf("%s at %v of the run", f.kind, f.at)
		}
	}
	if !maps.Equal(counts, one.counts) || len(counts) != len(kinds)-1 {
		t.Errorf("the schedule has %v, the plan %v; want all %d kinds but one", counts, one.counts, len(kinds))
	}
}

func TestAPlanNamesItsFaults(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-rows 5 -duration 1m", "choose one"},
		{"-servers 2", "1 or 3"},
		{"-faults kill=x", "KIND=NUMBER"},
		{"-faults flood=3", "KIND=NUMBER"},
		{"-faults stepdown=3", "-servers 3"},
		{"-faults move=1", "-partitions 2 or more"},
		{"-dedupe twice", "off, inflight or stored"},
		{"-replicas 1", "from 2 to 20"},
		{"-partitions 0", "from 1 to 64"},
		{"-order keys", "stream, key or none"},
		{"-order key -keys 0", "from 1 to 1000000"},
		{"-lane -dedupe stored", "not with -dedupe"},
		{"-chain -dedupe stored", "-chain: not with"},
		{"-chain -order none", "-chain: not with"},
		{"-lane -api mistral", "openai, azure, anthropic or gemini"},
		{"-pool 30 -window 20", "the window no smaller"},
		{"now", "unexpected arguments"},
	} {
		if _, err := parsePlan(strings.Fields(c.args), quiet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
	if p := mustPlan(t, "-faults", "kill=2,server=0"); !maps.Equal(p.counts, map[kind]int{kill: 2, server: 0}) || len(p.schedule()) != 2 {
		t.Errorf("chosen faults: %v", p.counts)
	}
}

// planted are the results of some rows, and what each test changes about them.
type planted struct{ results []result }

type result struct {
	header nats.Header
	body   []byte
}

func plant(rows []row) *planted {
	p := &planted{}
	for _, r := range rows {
		status, body := "success", slices.Concat(bytes.TrimSuffix(r.body, []byte("}")), []byte(`,"llm_response":`+strconv.Quote(llmtest.Answer(prompt(r.question)))+`}`))
		switch kindOf(r.n) {
		case refused:
			status, body = "error", slices.Concat(bytes.TrimSuffix(r.body, []byte("}")), []byte(`,"llm_response_error":{"reason":"api_call_failed"}}`))
		case invalid:
			status, body = "error", []byte(`{"llm_response_error":{"reason":"invalid_row"}}`)
		case ordinary:
		}
		p.results = append(p.results, result{nats.Header{streams.HeaderSourceSeq: {strconv.FormatUint(r.seq, 10)}, streams.HeaderStatus: {status}}, body})
	}
	return p
}

func TestTheCheckFindsWhatMustNotBe(t *testing.T) {
	const n = 250 // with rows of each kind
	plan := mustPlan(t, "-seed", "1", "-dedupe", "stored")
	for _, c := range []struct {
		name  string
		spoil func(*planted)
		want  map[string]int
	}{
		{"nothing", func(*planted) {}, map[string]int{}},
		{"a lost result", func(p *planted) { p.results = append(p.results[:40], p.results[41:]...) }, map[string]int{"lost": 1}},
		{"the last one lost", func(p *planted) { p.results = p.results[:n-1] }, map[string]int{"lost": 1}},
		{"a doubled one", func(p *planted) { p.results = append(p.results, p.results[n-1]) }, map[string]int{"doubled": 1}},
		{"two swapped", func(p *planted) { p.results[9], p.results[10] = p.results[10], p.results[9] }, map[string]int{"disorder": 1}},
		{"another's answer", func(p *planted) { p.results[19].body = p.results[20].body }, map[string]int{"bytes": 1}},
		{"a failed row", func(p *planted) { p.results[19].header.Set(streams.HeaderStatus, "error") }, map[string]int{"bytes": 1}},
		{"bytes not kept", func(p *planted) {
			p.results[19].body = bytes.Replace(p.results[19].body, []byte(`"n": `), []byte(`"n":`), 1)
		}, map[string]int{"bytes": 1}},
		{"no JSON", func(p *planted) { p.results[19].body = nil }, map[string]int{"bytes": 1}},
		{"a result of no row", func(p *planted) { p.results[19].header.Set(streams.HeaderSourceSeq, "7777") }, map[string]int{"invented": 1, "lost": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for i := 1; i <= n; i++ {
				rows = append(rows, row{seq: uint64(2 * i), n: i, question: plan.question(i), body: plan.rowBody(i)})
			}
			p := plant(rows)
			c.spoil(p)
			found := newNotes(io.Discard, nil)
			check := newChecker(streams.OrderStream, rows, found)
			for _, r := range p.results {
				check.result(0, r.header, r.body)
			}
			check.end(rows)
			if !maps.Equal(found.violations, c.want) {
				t.Errorf("found %v, want %v", found.violations, c.want)
			}
		})
	}
}

func TestTheCheckKnowsTheOrder(t *testing.T) {
	const n = 12 // no row is refused or invalid but the seventh, and the third: both are in the order, too
	plan := mustPlan(t, "-seed", "1", "-order", "key", "-keys", "3")
	swap := func(i, j int) func(*planted) {
		return func(p *planted) { p.results[i], p.results[j] = p.results[j], p.results[i] }
	}
	header := func(i int, name, value string) func(*planted) {
		return func(p *planted) { p.results[i].header.Set(name, value) }
	}
	for _, c := range []struct {
		name  string
		order streams.Order
		spoil func(*planted)
		want  map[string]int
	}{
		{"nothing", streams.OrderKey, func(*planted) {}, map[string]int{}},
		{"two of a key swapped", streams.OrderKey, swap(0, 3), map[string]int{"disorder": 1, "low": 4}},
		{"another key", streams.OrderKey, header(4, streams.HeaderKey, "rows.k0"), map[string]int{"key": 1}},
		{"a mark too high", streams.OrderKey, header(4, streams.HeaderLow, "12"), map[string]int{"low": 1}},
		{"a mark that falls", streams.OrderKey, header(4, streams.HeaderLow, "2"), map[string]int{"low": 1}},
		{"no mark", streams.OrderNone, header(4, streams.HeaderLow, ""), map[string]int{"low": 1}},
		{"swapped where it matters not", streams.OrderNone, func(p *planted) {
			p.results[0], p.results[1] = p.results[1], p.results[0]
			p.results[0].header.Set(streams.HeaderLow, "0")
			p.results[1].header.Set(streams.HeaderLow, "4")
		}, map[string]int{}},
		{"a lost one", streams.OrderNone, func(p *planted) { p.results = p.results[:n-1] }, map[string]int{"lost": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for i := 1; i <= n; i++ {
				rows = append(rows, row{seq: uint64(2 * i), n: i, question: i, subject: fmt.Sprintf("rows.k%d", i%3), body: plan.rowBody(i)})
			}
			p := plant(rows)
			for i, r := range rows {
				p.results[i].header.Set(streams.HeaderLow, strconv.FormatUint(r.seq, 10))
				if c.order == streams.OrderKey {
					p.results[i].header.Set(streams.HeaderKey, r.key())
				}
			}
			c.spoil(p)
			found := newNotes(io.Discard, nil)
			check := newChecker(c.order, rows, found)
			for _, r := range p.results {
				check.result(0, r.header, r.body)
			}
			check.end(rows)
			if !maps.Equal(found.violations, c.want) {
				t.Errorf("found %v, want %v", found.violations, c.want)
			}
		})
	}
}

// echo is a server that sends back what it gets.
func echo(t *testing.T) (address string) {
	t.Helper()
	listener := stagetest.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func TestAStalledProxyKeepsBytesAndASeveredOneConnections(t *testing.T) {
	p := stagetest.Value(newProxy(t.Context()))(t)
	defer p.close()
	p.aim(echo(t))
	dial := func() net.Conn {
		t.Helper()
		c := stagetest.Value(new(net.Dialer).DialContext(t.Context(), "tcp", p.address()))(t)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	send := func(c net.Conn, text string) {
		t.Helper()
		stagetest.Value(io.WriteString(c, text))(t)
	}
	receive := func(c net.Conn, want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("got %q and %v, want %q", got, err, want)
		}
	}
	c := dial()
	send(c, "one")
	receive(c, "one")
	p.set(stalled)
	send(c, "two")
	late := dial() // a connection that comes meanwhile waits, too
	send(late, "three")
	p.set(open)
	receive(c, "two")
	receive(late, "three")
	p.set(severed)
	for _, c := range []net.Conn{c, late, dial()} {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes through a severed proxy", n)
		}
	}
	p.set(open)
	c = dial()
	send(c, "four")
	receive(c, "four")
}
