package results_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/ops/results"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// planted is a result as a test has stored it; its body is {"n":at}.
type planted struct {
	at        uint64
	partition int
	row       uint64
	replaces  uint64
	failed    bool
	stored    time.Time
}

func (p planted) line() string { return fmt.Sprintf(`{"n":%d}`, p.at) }

// plant stores a result and says where.
func plant(b *stagetest.Bench, p planted) planted {
	b.T.Helper()
	m := &nats.Msg{Subject: fmt.Sprintf("results.stage.%d.rows", p.partition), Header: nats.Header{
		"Stage-Source-Seq": {strconv.FormatUint(p.row, 10)}, "Stage-Status": {"success"}, "Stage-Source-Subject": {"rows.a"},
	}}
	if p.failed {
		m.Header.Set("Stage-Status", "error")
	}
	if p.replaces > 0 {
		m.Header.Set("Stage-Replaces", strconv.FormatUint(p.replaces, 10))
	}
	s := stagetest.Value(b.JS.Stream(b.T.Context(), "RESULTS"))(b.T)
	p.at, p.stored = s.CachedInfo().State.LastSeq+1, time.Now()
	m.Data = []byte(p.line())
	if at := b.Publish(m); at != p.at {
		b.T.Fatalf("stored at %d, want %d", at, p.at)
	}
	return p
}

// plantMany stores results of three partitions, some of them errors, of which some are
// replaced, once or more often, between messages that are no results.
func plantMany(b *stagetest.Bench, random *rand.Rand, n int) (all []planted) {
	var failures []uint64
	for _, i := range random.Perm(n) { // results need not be in the order of their rows
		row := uint64(i) + 1 //nolint:gosec // small
		p := planted{partition: random.IntN(3), row: row, failed: random.IntN(4) == 0}
		if len(failures) > 0 && random.IntN(4) == 0 {
			p.replaces = failures[random.IntN(len(failures))]
		} else if p.failed {
			failures = append(failures, row)
		}
		all = append(all, plant(b, p))
		for random.IntN(3) == 0 {
			b.Publish(&nats.Msg{Subject: []string{"results.stage.load.rows", "results.stage.0.claim", "results.other.0.rows", "results.stage.redrive.0.7"}[random.IntN(4)]})
		}
		time.Sleep(time.Second)
	}
	return all
}

// wanted is the simplest selection.
func wanted(all []planted, o results.Options) (lines []string) {
	last := make(map[uint64]uint64) // by row, the last result
	for _, p := range all {
		last[max(p.row*btoi(p.replaces == 0), p.replaces)] = p.at
	}
	var chosen []planted
	for _, p := range all {
		stands := last[max(p.row*btoi(p.replaces == 0), p.replaces)] == p.at
		if (o.Partition < 0 || p.partition == o.Partition) && !p.stored.Before(o.Since) && (!o.Failed || p.failed && stands) {
			chosen = append(chosen, p)
		}
	}
	if o.Last >= 0 {
		chosen = chosen[len(chosen)-min(o.Last, len(chosen)):]
	}
	if !o.Merged {
		slices.SortStableFunc(chosen, func(a, b planted) int { return a.partition - b.partition })
	}
	for _, p := range chosen {
		lines = append(lines, p.line())
	}
	return lines
}

func btoi(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func TestASelectionIsThatOfAPlainList(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
		b := stagetest.NewBench(t, nil)
		all := plantMany(b, random, 150)
		for range stagetest.Runs(0, 60, 300) {
			o := results.Options{
				Partition: random.IntN(4) - 1, Failed: random.IntN(2) == 0, Last: results.All, Merged: random.IntN(2) == 0,
			}
			if random.IntN(2) == 0 {
				o.Last, o.Merged = random.IntN(len(all)*5/4), true
			}
			if random.IntN(2) == 0 {
				o.Since = all[random.IntN(len(all))].stored.Add(-500 * time.Millisecond)
			}
			if o.Failed && o.Partition >= 0 {
				o.Partition = results.AllPartitions // a row may be replaced in another partition only here
			}
			var text strings.Builder
			out := bufio.NewWriter(&text)
			stagetest.Must(t, errors.Join(results.NewPrinter(b.Cfg, out, o).Print(t.Context(), b.JS), out.Flush()))
			if got, want := strings.Fields(text.String()), wanted(all, o); !slices.Equal(got, want) {
				t.Fatalf("%+v:\ngot  %v\nwant %v", o, got, want)
			}
		}
		counts, err := results.Count(t.Context(), b.JS, b.Cfg)
		failed := uint64(len(wanted(all, results.Options{Partition: -1, Failed: true, Last: -1})))
		firsts := uint64(0)
		for _, p := range all {
			firsts += btoi(p.replaces == 0)
		}
		if want := (results.Counts{Results: 150, Failed: failed, Succeeded: firsts - failed}); err != nil || counts != want {
			t.Errorf("counted %+v, %v; want %+v", counts, err, want)
		}
	})
}

// follow starts to follow, and returns what was printed so far, and how it ends.
func follow(b *stagetest.Bench, o results.Options, waiting func()) (printed func() []string, stop func() error) {
	o.Merged = true
	ctx, cancel := context.WithCancel(b.T.Context())
	text, ended := new(stagetest.Buffer), make(chan error, 1)
	go func() { ended <- results.NewPrinter(b.Cfg, bufio.NewWriter(text), o).Follow(ctx, b.JS, waiting) }()
	return func() []string { synctest.Wait(); return strings.Fields(text.String()) }, func() error { cancel(); return <-ended }
}

func TestFollowedPartitionsAreMergedAsTheyCome(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		var all []planted
		for i := range 9 {
			all = append(all, plant(b, planted{partition: i % 3, row: uint64(i) + 1}))
		}
		printed, stop := follow(b, results.Options{Partition: results.AllPartitions, Last: 4}, nil)
		time.Sleep(time.Second)
		if got, want := printed(), wanted(all[5:], results.Options{Partition: -1, Last: -1, Merged: true}); !slices.Equal(got, want) {
			t.Fatalf("at first: got %v, want %v", got, want)
		}
		for i := 9; i < 20; i++ { // of partitions that did not exist, too
			all = append(all, plant(b, planted{partition: i % 7, row: uint64(i) + 1}))
			time.Sleep(10 * time.Millisecond) // no result waits for the next one
			if got, want := printed(), wanted(all[5:], results.Options{Partition: -1, Last: -1, Merged: true}); !slices.Equal(got, want) {
				t.Fatalf("result %d: got %v, want %v", i, got, want)
			}
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("ended by %v", err)
		}
	})
}

// A stream that does not exist yet is waited for; one that is deleted is not the one that
// comes after it.
func TestFollowWaitsForTheStream(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		create := func() {
			if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}, Storage: jetstream.MemoryStorage}); err != nil {
				t.Fatal(err)
			}
		}
		b.Drop("RESULTS")
		waits := 0
		printed, stop := follow(b, results.Options{Partition: results.AllPartitions, Last: results.All}, func() { waits++ })
		time.Sleep(time.Hour)
		if got := printed(); len(got) > 0 || waits != 1 {
			t.Fatalf("without a stream: got %v, waits %d", got, waits)
		}
		create()
		first, second := plant(b, planted{row: 1}), plant(b, planted{row: 2, partition: 1})
		time.Sleep(10 * time.Second)
		if got, want := printed(), []string{first.line(), second.line()}; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		b.Drop("RESULTS")
		time.Sleep(5 * time.Second) // less than a reader takes to give up
		create()
		again := plant(b, planted{row: 1, partition: 2})
		time.Sleep(time.Minute)
		if got, want := printed(), []string{first.line(), second.line(), again.line()}; !slices.Equal(got, want) {
			t.Errorf("the next stream: got %v, want %v", got, want)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("ended by %v", err)
		}
	})
}

func TestMetaNamesWhatTheHeadersHold(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name       string
		header     nats.Header // added
		low, order string      // in the meta
	}{
		{"in stream order", nil, "", ""},
		{"in order by key", nats.Header{"Stage-Low": {"5"}, "Stage-Ahead": {"1"}, "Stage-Key": {"north"}}, "low_water_mark:5 ", "order_key:north "},
		{"without a key", nats.Header{"Stage-Low": {"0"}, "Stage-Key": {""}}, "low_water_mark:0 ", "order_key: "},
		{"in no order", nats.Header{"Stage-Low": {"7"}}, "low_water_mark:7 ", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			h := nats.Header{
				"Stage-Source-Stream": {"ROWS"}, "Stage-Source-Seq": {"7"}, "Stage-Source-Subject": {"rows.x"}, "Stage-Status": {"success"},
				"Stage-State-Id": {"stage/ROWS/2/7"}, "Stage-Owner": {"run.term"}, "Stage-Replaces": {"3"}, "Customer": {"A&B", "C"}, "Nats-Msg-Id": {"x"},
			}
			maps.Copy(h, tt.header)
			b.Publish(&nats.Msg{Subject: "results.stage.2.rows", Data: []byte("{\"a\": \"<\",\n\"n\":1.0}"), Header: h})
			want := "map[headers:map[Customer:[A&B C]] " + tt.low + tt.order + "owner:run.term partition:2 replaces:3 sequence:1 source_sequence:7 " +
				"source_stream:ROWS source_subject:rows.x state_id:stage/ROWS/2/7 status:success stream:RESULTS]"
			checkMeta(t, b, want)
		})
	}
}

// checkMeta prints the only result with its meta.
func checkMeta(t *testing.T, b *stagetest.Bench, want string) {
	t.Helper()
	var text strings.Builder
	out := bufio.NewWriter(&text)
	p := results.NewPrinter(b.Cfg, out, results.Options{Partition: results.AllPartitions, Last: results.All, WithMeta: true})
	stagetest.Must(t, errors.Join(p.Print(t.Context(), b.JS), out.Flush()))
	var line struct {
		Meta   map[string]any
		Result json.RawMessage
	}
	if err := json.Unmarshal([]byte(text.String()), &line); err != nil {
		t.Fatalf("%v: %s", err, text.String())
	}
	if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(line.Meta["stored_at"])); err != nil || time.Since(at) > time.Hour {
		t.Errorf("stored at %v", line.Meta["stored_at"])
	}
	delete(line.Meta, "stored_at")
	if got := fmt.Sprint(line.Meta); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if string(line.Result) != `{"a":"<","n":1.0}` {
		t.Errorf("the body is %s", line.Result)
	}
}

// A result that is none ends the command; the writer's error does, too.
func TestWhatCannotBePrintedIsAnError(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	printTo := func(w io.Writer) error {
		out := bufio.NewWriter(w)
		return errors.Join(results.NewPrinter(b.Cfg, out, results.Options{Partition: results.AllPartitions, Last: results.All}).Print(t.Context(), b.JS), out.Flush())
	}
	plant(b, planted{row: 1})
	if err := printTo(failing{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v, want %v", err, io.ErrShortWrite)
	}
	b.Publish(&nats.Msg{Subject: "results.stage.0.rows", Data: []byte("{}")})
	if err := printTo(io.Discard); err == nil || !strings.Contains(err.Error(), "message 2 has no Stage-Source-Seq header") {
		t.Errorf("got %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
