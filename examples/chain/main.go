// Command chain publishes the lines of a JSONL file as rows for the first stage of a
// chain, and prints what the last stage makes of them: each result names the row that it
// goes back to, through any number of stages.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	url := flag.String("url", "", "NATS server; empty: the embedded server of a stage that runs on the data directory")
	data := flag.String("data-dir", "stage-data", "data directory")
	flag.Usage = func() {
		log.SetFlags(0)
		log.Print("usage: chain [flags] FILE STAGE FIELD\n\n" +
			"publishes the lines of FILE, such as articles.jsonl, on articles.rows, and prints FIELD of the results of STAGE, the last one")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 3 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *url, *data, flag.Arg(0), flag.Arg(1), flag.Arg(2)); err != nil {
		log.Fatalf("chain: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
}

func run(ctx context.Context, url, data, path, stage, field string) error {
	nc, err := connect(url, data)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	stream, lines, err := publish(ctx, js, path, name+".rows")
	if err != nil {
		return err
	}
	fmt.Println(len(lines), "rows published")
	return show(ctx, js, stage, field, stream, lines)
}

func connect(url, data string) (*nats.Conn, error) {
	if url != "" {
		return nats.Connect(url)
	}
	address, ok, err := natsd.Discover(data)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("no stage runs on %s: start the stages first", data)
	}
	return nats.Connect(address.URL, nats.Token(address.Token))
}

// publish publishes each line and waits until it is stored. It returns the stream that
// has stored them, and which line each sequence is.
func publish(ctx context.Context, js jetstream.JetStream, path, subject string) (stream string, lines map[string]int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	lines = make(map[string]int)
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		ack, err := js.Publish(ctx, subject, scanner.Bytes())
		if err != nil {
			return "", nil, fmt.Errorf("line %d on %s: %w (do the stages run? the first creates the stream)", len(lines)+1, subject, err)
		}
		stream = ack.Stream
		lines[strconv.FormatUint(ack.Sequence, 10)] = len(lines) + 1
	}
	return stream, lines, scanner.Err()
}

// show prints the results of the lines until all of them have one. The stream has results
// of other rows, too.
func show(ctx context.Context, js jetstream.JetStream, stage, field, stream string, lines map[string]int) error {
	results, err := js.OrderedConsumer(ctx, "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results." + stage + ".*.rows"}})
	if err != nil {
		return err
	}
	messages, err := results.Messages(jetstream.WithMessagesErrOnMissingHeartbeat(false))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for len(lines) > 0 {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		origin := m.Headers().Get("Stage-Origin-Seq")
		line, ours := lines[origin]
		if !ours || m.Headers().Get("Stage-Origin-Stream") != stream {
			continue
		}
		delete(lines, origin)
		if status := m.Headers().Get("Stage-Status"); status != "success" {
			fmt.Printf("line %d: %s: %s\n", line, status, m.Data())
			continue
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(m.Data(), &members); err != nil {
			return err
		}
		fmt.Printf("line %d: %s\n", line, members[field])
	}
	return nil
}
