// Command consumer prints the ordered results of a stage and notices gaps, doubles and disorder.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	url := flag.String("url", nats.DefaultURL, "NATS server")
	rows := flag.Int("rows", 0, "end after so many results; 0: never")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := consume(ctx, *url, *rows); err != nil {
		log.Fatalf("consumer: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
}

// consume reads the results from the first on. Their order in the stream is that of the rows.
func consume(ctx context.Context, url string, rows int) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	results, err := js.OrderedConsumer(ctx, "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results.stage.0.rows"}})
	if err != nil {
		return fmt.Errorf("%w (is the stage running? it creates the stream)", err)
	}
	var order int
	for n := 0; rows == 0 || n < rows; {
		batch, err := results.Fetch(100, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			n++
			next, err := strconv.Atoi(m.Headers().Get("Order"))
			if err != nil || next != order+1 {
				return fmt.Errorf("after row %d came row %q", order, m.Headers().Get("Order"))
			}
			order = next
			var r struct {
				Text  string `json:"text"`
				Reply string `json:"llm_response"`
			}
			if err := json.Unmarshal(m.Data(), &r); err != nil {
				return err
			}
			fmt.Printf("%4d  %-7s  %.50s  →  %.50s\n", order, m.Headers().Get("Stage-Status"), r.Text, r.Reply)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	fmt.Println("no gap, no double, in order")
	return nil
}
