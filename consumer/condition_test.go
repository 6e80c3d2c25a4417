package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The whole protocol rests on one property of the server: an append with a condition on the last sequence of a subject
// filter is refused when anything that the filter matches was stored since, and by nothing else.
func TestAFencedWriterStoresNothing(t *testing.T) { fightForPartitions(t, 1) }

func fightForPartitions(t *testing.T, replicas int) {
	t.Helper()
	servers := cluster.Start(t, replicas)
	connect := func() *nats.Conn {
		nc := stagetest.Value(nats.Connect(servers[rand.N(len(servers))].ClientURL()))(t)
		t.Cleanup(nc.Close)
		return nc
	}
	nc := connect()
	cluster.CreateStream(t, nc, resultsStream(replicas))
	for i, way := range []appendWay{oneByOne, atomicGroup, fastGroup} {
		race := &conditionRace{rows: 400, way: way, partition: 2 * i}
		race.moved.L = &race.mu
		var wg sync.WaitGroup
		for i := range 2 {
			w := newConditionWriter(t, connect(), race.partition, i)
			wg.Go(func() { race.rival(t, w) })
		}
		neighbour := newConditionWriter(t, connect(), race.partition+1, 2)
		wg.Go(func() { race.alone(t, neighbour) })
		wg.Wait()
		checkLog(t, nc, race.partition, race.rows)
		checkLog(t, nc, race.partition+1, race.rows)
		t.Logf("way %v: terms %d, zombies that woke up and stored nothing %d", way, race.terms, race.fenced)
	}
}

// resultsStream is a results stream as stages create it.
func resultsStream(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "RESULTS", Subjects: []string{"results.>"}, Replicas: replicas,
		Discard: jetstream.DiscardNew, DenyDelete: true, AllowAtomicPublish: true, AllowBatchPublish: true, AllowDirect: true,
	}
}

// conditionRace is one partition that two writers fight for.
type conditionRace struct {
	partition int
	rows      uint64
	way       appendWay

	mu     sync.Mutex
	moved  sync.Cond
	mark   [2]uint64 // what each rival has seen stored
	over   bool
	terms  int
	fenced int
}

type conditionWriter struct {
	*Consumer
	id int
}

func newConditionWriter(t *testing.T, nc *nats.Conn, partition, id int) conditionWriter {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c := stagetest.Value(New(nc, Config{
		DurableConfig: streams.DurableConfig{Name: "stage", Partition: partition, InputStream: "ROWS", InputSubject: "rows", ResultStream: "RESULTS"},
		RunID:         fmt.Sprintf("w%d", id), ResultSubject: "results", Executor: noExecutor{}, Logger: log,
		Recorder: recorder.New(nc, recorder.Config{Subject: "audit", Name: "stage", Logger: log}),
	}))(t)
	return conditionWriter{Consumer: c, id: id}
}

type noExecutor struct{}

func (noExecutor) Start(*Row) {}

// begin claims the partition; it tries until it wins, also through an election.
func (w conditionWriter) begin(t *testing.T) *emitter {
	t.Helper()
	for {
		end, err := w.results.readEnd(t.Context())
		if err == nil {
			owner := w.newOwner()
			if end, err = w.results.claim(t.Context(), owner, end, time.Unix(1, 0)); err == nil {
				return &emitter{c: w.Consumer, owner: owner, end: end}
			}
		}
		if t.Context().Err() != nil {
			t.Error(err)
			return nil
		}
	}
}

// group is the next few rows after the end of the log.
func (w conditionWriter) group(after uint64, n int) []*Row {
	rows := make([]*Row, n)
	for i := range rows {
		seq := after + uint64(i) + 1
		rows[i] = &Row{Seq: seq, Subject: "rows", inTerm: inTerm{after: logMark{low: seq}}, answer: answer{reply: &Reply{Body: []byte("row")}}}
	}
	return rows
}

func (r *conditionRace) groupSize(after uint64) int {
	if r.way == oneByOne {
		return 1
	}
	return int(min(2+rand.Uint64N(8), r.rows-after))
}

// rival takes the partition over again and again. Half of its terms end in a suspension: it sleeps until the other has
// stored something and then sends the group that it had prepared.
func (r *conditionRace) rival(t *testing.T, w conditionWriter) {
	t.Helper()
	for {
		e := w.begin(t)
		if e == nil || e.end.low >= r.rows {
			r.finish()
			return
		}
		r.note(func() { r.terms++ })
		for range 1 + rand.N(8) {
			if e.end.low >= r.rows {
				break
			}
			_, err := e.store(t.Context(), r.way, w.group(e.end.low, r.groupSize(e.end.low)))
			if errors.Is(err, ErrFenced) {
				break
			}
			if err != nil {
				t.Error(err)
				r.finish()
				return
			}
			r.note(func() { r.mark[w.id] = e.end.low })
		}
		if rand.N(2) == 0 || e.end.low >= r.rows {
			continue
		}
		if !r.sleepUntilOtherMoved(w.id, e.end.low) {
			continue
		}
		if _, err := e.store(t.Context(), r.way, w.group(e.end.low, r.groupSize(e.end.low))); !errors.Is(err, ErrFenced) {
			t.Errorf("a writer that slept through a rival's term appended after %d: err %v, want %v", e.end.low, err, ErrFenced)
		}
		r.note(func() { r.fenced++ })
	}
}

// alone writes another partition of the same stream; what the rivals store does not affect its condition.
func (r *conditionRace) alone(t *testing.T, w conditionWriter) {
	t.Helper()
	e := w.begin(t)
	for e != nil && e.end.low < r.rows {
		if _, err := e.store(t.Context(), r.way, w.group(e.end.low, r.groupSize(e.end.low))); err != nil {
			t.Errorf("the only writer of its partition, after %d: %v", e.end.low, err)
			return
		}
	}
}

func (r *conditionRace) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.moved.Broadcast()
}

func (r *conditionRace) finish() { r.note(func() { r.over = true }) }

// sleepUntilOtherMoved returns false when the race is over.
func (r *conditionRace) sleepUntilOtherMoved(id int, mark uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.mark[1-id] <= mark && !r.over {
		r.moved.Wait()
	}
	return r.mark[1-id] > mark
}

// checkLog reads one partition's log: rows 1 to n, each once, in order, and each claim names the row before it.
func checkLog(t *testing.T, nc *nats.Conn, partition int, n uint64) {
	t.Helper()
	js := stagetest.Value(jetstream.New(nc))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := stagetest.Value(js.OrderedConsumer(ctx, "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{streams.LogFilter("results", "stage", partition)}}))(t)
	log := stagetest.Value(c.Messages())(t)
	defer log.Stop()
	var last uint64
	for last < n {
		m, err := log.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("partition %d after row %d: %v", partition, last, err)
		}
		seq := stagetest.Value(strconv.ParseUint(m.Headers().Get(streams.HeaderSourceSeq), 10, 64))(t)
		want := last + 1
		if m.Subject() == streams.ClaimSubject("results", "stage", partition) {
			want = last
			var cl streams.Claim
			if err := json.Unmarshal(m.Data(), &cl); err != nil || cl.HighWaterMark != last {
				t.Errorf("partition %d: claim %s after row %d (%v)", partition, m.Data(), last, err)
			}
		}
		if seq != want {
			t.Fatalf("partition %d: row %d on %s follows row %d", partition, seq, m.Subject(), last)
		}
		last = seq
	}
	s := stagetest.Value(js.Stream(ctx, "RESULTS"))(t)
	info := stagetest.Value(s.Info(ctx, jetstream.WithSubjectFilter(streams.LogFilter("results", "stage", partition))))(t)
	subject := streams.ResultSubject("results", "stage", partition)
	if got := info.State.Subjects[subject]; got != n {
		t.Errorf("partition %d: %d results, want %d", partition, got, n)
	}
}
