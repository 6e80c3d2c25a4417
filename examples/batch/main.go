// Command batch leaves a batch of prompts with a stage, and fetches the answers later: in
// another process, an hour later, whatever has become of the stage's replicas meanwhile.
//
//	batch submit questions.json     prints the id of the batch
//	batch get ID                    waits for the answers, and prints them
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

func main() {
	url := flag.String("url", nats.DefaultURL, "NATS server")
	stage := flag.String("stage", "stage", "name of the stage (STAGE_NAME)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *url, *stage+".llm_batch.", flag.Arg(0), flag.Arg(1)); err != nil {
		log.Fatalf("batch: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
}

func run(ctx context.Context, url, subjects, command, arg string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	switch command {
	case "submit":
		return submit(ctx, nc, subjects, arg)
	case "get":
		return get(ctx, nc, subjects, arg)
	}
	return errors.New("give submit FILE, or get ID")
}

// submit leaves the batch of a file with the stage. The client chooses the id: if the
// reply gets lost, the same request again is still the same batch.
func submit(ctx context.Context, nc *nats.Conn, subjects, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	request := make(map[string]any)
	if err := json.Unmarshal(text, &request); err != nil {
		return err
	}
	request["id"] = nats.NewInbox()[len(nats.InboxPrefix):] // any text that is not used twice
	request["keep"] = "48h"
	var reply struct {
		ID string `json:"id"`
	}
	for range 3 {
		if err = ask(ctx, nc, subjects+"submit", 10*time.Second, request, &reply); err == nil {
			fmt.Println(reply.ID)
			return nil
		}
	}
	return err
}

// get waits for the end of a batch and prints its answers, a line each.
func get(ctx context.Context, nc *nats.Conn, subjects, id string) error {
	var reply struct {
		State string `json:"state"`
		Done  int    `json:"done"`
		Total int    `json:"total"`
		llm.BatchReply
	}
	for {
		request := map[string]any{"id": id, "wait": "30s"}
		if err := ask(ctx, nc, subjects+"get", time.Minute, request, &reply); err != nil {
			return err
		}
		if reply.State == "done" || reply.State == "cancelled" {
			break
		}
		log.Printf("%s: %d of %d answered", reply.State, reply.Done, reply.Total)
	}
	for i, r := range reply.Results {
		if r.Status != llm.BatchSuccess {
			log.Printf("prompt %d: %s", i, r.Error)
			continue
		}
		fmt.Println(r.Content)
	}
	return nil
}

// ask sends a request and reads its reply. A service error has its code and message in the
// headers.
func ask(ctx context.Context, nc *nats.Conn, subject string, timeout time.Duration, request, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return fmt.Errorf("%s: %s", code, m.Header.Get(micro.ErrorHeader))
	}
	return json.Unmarshal(m.Data, reply)
}
