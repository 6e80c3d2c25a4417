package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// The loops are what one writes in an afternoon, with the libraries used well: the floor
// that the stage is measured against. None of them keeps order, survives a kill without
// duplicates, or retries.

// loop is one of them, with what it needs.
type loop struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	llm  string
	rows int
	pool int
	done atomic.Int64 // calls of a loop that stores nothing
}

// acksAhead bounds the publishes that wait for an acknowledgement.
const acksAhead = 1024

// runLoop runs a loop until ctx ends: its figures are scraped once all is done.
func runLoop(ctx context.Context, kind, url, addr string, l *loop, groups string) error {
	if err := serveMeters(ctx, addr, &l.done); err != nil {
		return err
	}
	if url != "" {
		var err error
		if l.nc, err = nats.Connect(url); err != nil {
			return err
		}
		defer l.nc.Close()
		if l.js, err = jetstream.New(l.nc, jetstream.WithPublishAsyncMaxPending(acksAhead)); err != nil {
			return err
		}
	}
	var err error
	switch kind {
	case "c":
		err = l.copyRows(ctx, false)
	case "d":
		err = l.copyRows(ctx, true)
	case "dh":
		err = l.callAndCopy(ctx)
	case "e":
		err = l.embedAndStore(ctx)
	case "h":
		err = l.callOnly(ctx)
	case "a":
		err = l.append(ctx, groups)
	case "noop":
		return l.noop(ctx)
	default:
		return fmt.Errorf("no loop %q", kind)
	}
	if ctx.Err() != nil {
		return nil // stopped on purpose
	}
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// take calls each with all rows, in their order.
func (l *loop) take(ctx context.Context, each func(jetstream.Msg) error) error {
	durable, err := l.js.CreateOrUpdateConsumer(ctx, "ROWS", jetstream.ConsumerConfig{
		Durable: "loop", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 4096, AckWait: time.Minute,
	})
	if err != nil {
		return err
	}
	messages, err := durable.Messages(jetstream.PullMaxMessages(500))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range l.rows {
		m, err := messages.Next()
		if err == nil {
			err = each(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stored waits until what was published is stored.
func stored(acks ...jetstream.PubAckFuture) error {
	for _, f := range acks {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		}
	}
	return nil
}

// send passes a value on, unless ctx ends.
func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// copyRows takes rows, publishes a result for each, with an audit event if audited, and
// acks the row once they are stored.
func (l *loop) copyRows(ctx context.Context, audited bool) error {
	type pending struct {
		m    jetstream.Msg
		acks []jetstream.PubAckFuture
	}
	line := make(chan pending, acksAhead/2)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for p := range line {
			if err := stored(p.acks...); err != nil {
				return err
			}
			if err := p.m.Ack(); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() error {
		defer close(line)
		return l.take(ctx, func(m jetstream.Msg) error {
			p := pending{m: m}
			f, err := l.js.PublishAsync(resultSubject, m.Data())
			if err != nil {
				return err
			}
			if p.acks = append(p.acks, f); audited {
				if f, err = l.js.PublishAsync("audit.stage.0.call", event(m.Data())); err != nil {
					return err
				}
				p.acks = append(p.acks, f)
			}
			return send(ctx, line, p)
		})
	})
	return group.Wait()
}

// event is a simple audit event: what was asked and answered.
func event(body []byte) []byte {
	return fmt.Appendf(nil, `{"event":"call","time":%q,"request":%s}`, time.Now().Format(time.RFC3339Nano), body)
}

func (l *loop) client() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: l.pool, MaxIdleConnsPerHost: l.pool, MaxConnsPerHost: l.pool}}
}

// call makes one call, and reads the reply as a whole.
func (l *loop) call(ctx context.Context, client *http.Client, prompt []byte) ([]byte, error) {
	return l.post(ctx, client, "/chat/completions", fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":%q}]}`, prompt))
}

func (l *loop) post(ctx context.Context, client *http.Client, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.llm+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer none")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	return io.ReadAll(resp.Body)
}

// callAndCopy calls for each row, in a pool: result and event are stored, then the row is
// acked.
func (l *loop) callAndCopy(ctx context.Context) error {
	client := l.client()
	work := make(chan jetstream.Msg, l.pool)
	group, ctx := errgroup.WithContext(ctx)
	for range l.pool {
		group.Go(func() error {
			for m := range work {
				if err := l.one(ctx, client, m); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(work)
		return l.take(ctx, func(m jetstream.Msg) error { return send(ctx, work, m) })
	})
	return group.Wait()
}

func (l *loop) one(ctx context.Context, client *http.Client, m jetstream.Msg) error {
	reply, err := l.call(ctx, client, m.Data()[:min(len(m.Data()), 200)])
	if err != nil {
		return err
	}
	result := append(append(m.Data()[:len(m.Data())-1:len(m.Data())-1], `,"llm_response":`...), append(strconv.AppendQuote(nil, string(reply)), '}')...)
	first, err := l.js.PublishAsync(resultSubject, result)
	if err != nil {
		return err
	}
	second, err := l.js.PublishAsync("audit.stage.0.call", event(result))
	if err != nil {
		return err
	}
	if err := stored(first, second); err != nil {
		return err
	}
	return m.Ack()
}

// callOnly makes as many calls as there are rows, and nothing else.
func (l *loop) callOnly(ctx context.Context) error {
	client := l.client()
	prompt := bytes.Repeat([]byte("x"), 200)
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range l.pool {
		group.Go(func() error {
			for next.Add(1) <= int64(l.rows) {
				if _, err := l.call(ctx, client, prompt); err != nil {
					return err
				}
				l.done.Add(1)
			}
			return nil
		})
	}
	return group.Wait()
}
