// Command mapreduce answers a question about a text that is too long for one prompt: a
// stage answers it for each paragraph, all in one batched request (map), and then for the
// answers together (reduce).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

func main() {
	url := flag.String("url", nats.DefaultURL, "NATS server")
	stage := flag.String("stage", "stage", "name of the stage (STAGE_NAME)")
	question := flag.String("question", "Which facts does this text state? One per line.", "what to ask")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *url, *stage+".llm_batch", *question, flag.Arg(0)); err != nil {
		log.Fatalf("mapreduce: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
}

func run(ctx context.Context, url, subject, question, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()

	// Map: the paragraphs are the contexts of one and the same question.
	request := llm.BatchRequest{MaxParallel: 10}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		request.Prompts = append(request.Prompts, question)
		request.Contexts = append(request.Contexts, &paragraph)
	}
	reply, err := ask(ctx, nc, subject, &request)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	for _, failed := range reply.ErrorReport() { // a paragraph that failed does not affect the others
		log.Printf("paragraph %d: %s", failed.Index+1, failed.Error)
	}
	parts := reply.Successes()
	fmt.Printf("map: %d of %d paragraphs answered in %d ms\n", len(parts), len(reply.Results), reply.TotalTimeMS)

	// Reduce: one prompt about all answers.
	all := strings.Join(parts, "\n")
	reply, err = ask(ctx, nc, subject, &llm.BatchRequest{
		Prompts:  []string{"Put these together, each fact once. " + question},
		Contexts: []*string{&all},
	})
	if err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	fmt.Println("reduce:", reply.Results[0].Content)
	return nil
}

// ask sends one batched request. A service error has its code and message in the headers
// and the details in the body.
func ask(ctx context.Context, nc *nats.Conn, subject string, request *llm.BatchRequest) (*llm.BatchReply, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // the client's own limit; the stage does not know it
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return nil, fmt.Errorf("%s: %s: %s", code, m.Header.Get(micro.ErrorHeader), m.Data)
	}
	var reply llm.BatchReply
	return &reply, json.Unmarshal(m.Data, &reply)
}
