// Command photos carries pictures through a pipeline: it puts the photos that a JSONL file
// names into an object store, publishes a row for each line that names its photo there, and
// prints the answers in the order of the lines.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bucket is the object store of the photos.
const bucket = "photos"

func main() {
	url := flag.String("url", "", "NATS server; empty: the embedded server of a stage that runs on the data directory")
	data := flag.String("data-dir", "stage-data", "data directory")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: photos [flags] FILE")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *url, *data, flag.Arg(0)); err != nil {
		log.Fatalf("photos: %v", err) //nolint:gocritic // there is nothing left to clean up
	}
}

func run(ctx context.Context, url, data, path string) error {
	nc, err := connect(url, data)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	photos, err := js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: bucket})
	if err != nil {
		return err
	}
	lines, err := publish(ctx, js, photos, path)
	if err != nil {
		return err
	}
	fmt.Println(len(lines), "rows published")
	return show(ctx, js, lines)
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
		return nil, fmt.Errorf("no stage runs on %s: start it first", data)
	}
	return nats.Connect(address.URL, nats.Token(address.Token))
}

// publish stores the photo of each line before it publishes the row that names it. So the
// stage never sees a row whose photo is not there. It returns which line each sequence is.
func publish(ctx context.Context, js jetstream.JetStream, photos jetstream.ObjectStore, path string) (lines map[string]int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	lines = make(map[string]int)
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		row := map[string]any{}
		if err := json.Unmarshal(scanner.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(lines)+1, err)
		}
		if photo, _ := row["photo"].(string); photo != "" {
			picture, err := os.ReadFile(filepath.Join(filepath.Dir(path), photo))
			if err != nil {
				return nil, err
			}
			if _, err := photos.Put(ctx, jetstream.ObjectMeta{Name: photo}, bytes.NewReader(picture)); err != nil {
				return nil, err
			}
			row["photo"] = "nats://" + bucket + "/" + photo
		}
		body, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		ack, err := js.Publish(ctx, "rows.photos", body)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w (does the stage run? it creates the stream)", len(lines)+1, err)
		}
		lines[strconv.FormatUint(ack.Sequence, 10)] = len(lines) + 1
	}
	return lines, scanner.Err()
}

// show prints the results of the lines until all of them have one. The stream may have
// results of other rows, too.
func show(ctx context.Context, js jetstream.JetStream, lines map[string]int) error {
	results, err := js.OrderedConsumer(ctx, "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results.stage.*.rows"}})
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
		line, ours := lines[m.Headers().Get("Stage-Source-Seq")]
		if !ours {
			continue
		}
		delete(lines, m.Headers().Get("Stage-Source-Seq"))
		var result struct {
			Answer string          `json:"llm_response"`
			Failed json.RawMessage `json:"llm_response_error"`
		}
		if err := json.Unmarshal(m.Data(), &result); err != nil {
			return err
		}
		fmt.Printf("line %d: %s%s\n", line, result.Answer, result.Failed)
	}
	return nil
}
