// Command consumer prints the ordered results of a stage and notices gaps, doubles and
// disorder.
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
	stage := flag.String("stage", "stage", "name of the stage")
	rows := flag.Int("rows", 0, "end after so many results; 0: never")
	onlyNew := flag.Bool("new", false, "read only results that are stored from now on; default: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := consume(ctx, *url, *stage, *rows, *onlyNew); err != nil {
		log.Fatalf("consumer: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
}

// consume reads results. Their order in the stream is that of the rows.
func consume(ctx context.Context, url, stage string, rows int, onlyNew bool) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	from := jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results." + stage + ".0.rows"}}
	if onlyNew {
		from.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	results, err := js.OrderedConsumer(ctx, "RESULTS", from)
	if err != nil {
		return fmt.Errorf("%w (is the stage running? it creates the stream)", err)
	}
	seen := make(map[string]int) // by run of the producer: its last row
	for n := 0; rows == 0 || n < rows; {
		batch, err := results.Fetch(100, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			ours, err := check(seen, m.Headers())
			if err != nil {
				return err
			}
			if !ours || rows != 0 && n == rows {
				continue
			}
			n++
			if err := show(m); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	fmt.Println("no gap, no double, in order")
	return nil
}

// check reports whether a result is of a row that the producer has published, and wants
// it to be the next of its run. Others are passed over: rows of other publishers, and
// those that stage redrive has published again, which have a place of their own.
func check(seen map[string]int, h nats.Header) (ours bool, err error) {
	run := h.Get("Run")
	if run == "" || h.Get("Order") == "" || h.Get("Stage-Replaces") != "" {
		return false, nil
	}
	order, err := strconv.Atoi(h.Get("Order"))
	if err != nil || order != seen[run]+1 {
		return false, fmt.Errorf("run %s: after row %d came row %q", run, seen[run], h.Get("Order"))
	}
	seen[run] = order
	return true, nil
}

// show prints one result.
func show(m jetstream.Msg) error {
	var r struct {
		Text  string `json:"text"`
		Reply string `json:"llm_response"`
	}
	if err := json.Unmarshal(m.Data(), &r); err != nil {
		return err
	}
	h := m.Headers()
	fmt.Printf("%4s  %-7s  %.50s  →  %.50s\n", h.Get("Order"), h.Get("Stage-Status"), r.Text, r.Reply)
	return nil
}
