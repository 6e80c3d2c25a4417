package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// append stores bare results as the stage has just stored its own: in groups of the same
// sizes, which are in the file, each on condition of the log's end and after the
// acknowledgement of the last.
func (l *loop) append(ctx context.Context, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var groups []int
	if err := json.Unmarshal(raw, &groups); err != nil {
		return err
	}
	body := bytes.Repeat([]byte("x"), 1300)
	var end uint64
	for n, i := 0, 0; n < l.rows; i++ {
		msgs := make([]*nats.Msg, min(groups[i%len(groups)], l.rows-n))
		for i := range msgs {
			msgs[i] = &nats.Msg{Subject: "results.stage.0.rows", Data: body, Header: nats.Header{"Stage-Source-Seq": {strconv.Itoa(n + i)}}}
		}
		msgs[0].Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(end, 10))
		msgs[0].Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", "results.stage.0.>")
		seq, err := streams.Append(ctx, l.nc, msgs)
		if err != nil {
			return err
		}
		end = seq
		n += len(msgs)
	}
	return nil
}

// groupsFile holds the sizes of the stage's last groups, for the appends.
func (s *site) groupsFile() string { return filepath.Join(s.dir, "groups.json") }

// noteGroups writes the sizes of the groups in which the results went into the log, and
// returns their mean.
func (s *site) noteGroups(ctx context.Context, rows int) (float64, error) {
	var groups []int
	last := ""
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{resultSubject}, HeadersOnly: true}
	err := s.read(ctx, "RESULTS", cfg, rows, func(m jetstream.Msg) error {
		// All results of an atomic batch have its id, and all of a fast one but the first
		// a condition on the stream's last sequence.
		id := m.Headers().Get("Nats-Batch-Id")
		if (id == "" || id != last) && m.Headers().Get(jetstream.ExpectedLastSeqHeader) == "" {
			groups = append(groups, 0)
		}
		groups[len(groups)-1]++
		last = id
		return nil
	})
	if err != nil {
		return 0, err
	}
	raw, err := json.Marshal(groups)
	if err != nil {
		return 0, err
	}
	return float64(rows) / float64(len(groups)), os.WriteFile(s.groupsFile(), raw, 0o600)
}

// echo answers each row at once.
type echo struct{}

func (echo) Start(row *consumer.Row) {
	row.Reply(consumer.Reply{Body: row.Body, Event: auditlog.Row{Source: auditlog.SourceCall}})
}

// noop is the stage without an LLM: the protocol, order, audit of rows, and nothing else.
func (l *loop) noop(ctx context.Context) error {
	log := slog.New(slog.DiscardHandler)
	hard, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	rec := recorder.New(l.nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: log})
	var wg sync.WaitGroup
	wg.Go(func() { _ = rec.Run(hard) })
	c, err := consumer.New(l.nc, consumer.Config{
		DurableConfig: streams.DurableConfig{
			Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", WindowRows: 4096, Create: true,
		},
		RunID: "bench", ResultSubject: "results", Executor: echo{}, Recorder: rec, Logger: log,
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx, hard)
	stop()
	wg.Wait()
	return err
}
