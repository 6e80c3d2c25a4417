// Command producer publishes the lines of a JSONL file as rows for a stage, each with a
// header that its result carries on. Other rows may be in the stream: those of this
// producer have a header with the name of its run.
package main

import (
	"bufio"
	"context"
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
	subject := flag.String("subject", "rows.reviews", "subject of the rows")
	run := flag.String("run", time.Now().UTC().Format("20060102T150405.000"), "name of this run; the same one again publishes no row twice within two minutes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n, err := produce(ctx, *url, *subject, *run, flag.Arg(0))
	if err != nil {
		log.Fatalf("producer: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
	fmt.Println(n, "rows published")
}

// produce publishes each line and waits until it is stored: a row counts only then.
func produce(ctx context.Context, url, subject, run, path string) (n int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close() //nolint:errcheck // read only
	nc, err := nats.Connect(url)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		n++
		row := &nats.Msg{
			Subject: subject,
			Data:    lines.Bytes(),
			Header: nats.Header{
				"Order":       {strconv.Itoa(n)}, // both go on to the result
				"Run":         {run},
				"Nats-Msg-Id": {fmt.Sprintf("%s/%d", run, n)}, // the server stores no id twice within two minutes
			},
		}
		if _, err := js.PublishMsg(ctx, row); err != nil {
			return n - 1, fmt.Errorf("row %d: %w (is the stage running? it creates the stream)", n, err)
		}
	}
	return n, lines.Err()
}
