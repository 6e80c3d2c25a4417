package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// shouter answers each row with its body in capitals.
type shouter struct{}

func (shouter) Start(row *consumer.Row) {
	go row.Reply(consumer.Reply{Body: bytes.ToUpper(row.Body)})
}

// Rows go in, results come out in their order, on a server inside the process. Errors are left out for brevity.
func Example() {
	dir, _ := os.MkdirTemp("", "example-")
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	srv, _ := natsd.Start(natsd.Config{Dir: dir, NoListen: true})
	defer srv.Stop()
	nc, _ := srv.Connect()
	defer nc.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	_ = streams.Ensure(ctx, nc, streams.Config{
		Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Replicas: 1,
	})
	log := slog.New(slog.DiscardHandler)
	rec := recorder.New(nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: log})
	go func() { _ = rec.Run(ctx) }()
	c, _ := consumer.New(nc, consumer.Config{
		DurableConfig: streams.DurableConfig{Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", Create: true},
		RunID:         "run", ResultSubject: "results", Executor: shouter{}, Recorder: rec, Logger: log,
	})
	soft, drain := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- c.Run(soft, ctx) }()

	js, _ := jetstream.New(nc)
	for _, row := range []string{`"one"`, `"two"`, `"three"`} {
		_, _ = js.Publish(ctx, "rows.a", []byte(row))
	}
	results, _ := js.OrderedConsumer(ctx, "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results.stage.0.rows"}})
	batch, _ := results.Fetch(3)
	for m := range batch.Messages() {
		fmt.Printf("row %s: %s\n", m.Headers().Get(streams.HeaderSourceSeq), m.Data())
	}
	drain()
	fmt.Println("stopped:", <-ended)
	// Output:
	// row 1: "ONE"
	// row 2: "TWO"
	// row 3: "THREE"
	// stopped: <nil>
}
