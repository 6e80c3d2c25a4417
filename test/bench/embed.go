package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// embedRows is how many rows share a call of embeddings.
const embedRows = 64

// embedAndStore calls for 64 rows at a time, in a pool: the results are stored, then the
// rows are acked. It stores no event.
func (l *loop) embedAndStore(ctx context.Context) error {
	client := l.client()
	work := make(chan []jetstream.Msg, l.pool)
	group, ctx := errgroup.WithContext(ctx)
	for range l.pool {
		group.Go(func() error {
			for rows := range work {
				if err := l.embed(ctx, client, rows); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(work)
		var rows []jetstream.Msg
		if err := l.take(ctx, func(m jetstream.Msg) error {
			if rows = append(rows, m); len(rows) < embedRows {
				return nil
			}
			full := rows
			rows = nil
			return send(ctx, work, full)
		}); err != nil || len(rows) == 0 {
			return err
		}
		return send(ctx, work, rows)
	})
	return group.Wait()
}

// embed makes one call for some rows.
func (l *loop) embed(ctx context.Context, client *http.Client, rows []jetstream.Msg) error {
	texts := make([]string, len(rows))
	for i, m := range rows {
		var row struct {
			Q string `json:"q"`
		}
		if err := json.Unmarshal(m.Data(), &row); err != nil {
			return err
		}
		texts[i] = row.Q
	}
	body, err := json.Marshal(map[string]any{"model": "m", "input": texts})
	if err != nil {
		return err
	}
	raw, err := l.post(ctx, client, "/embeddings", body)
	if err != nil {
		return err
	}
	var reply struct {
		Data []struct {
			Index     int             `json:"index"`
			Embedding json.RawMessage `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &reply); err != nil {
		return err
	}
	if len(reply.Data) != len(rows) {
		return fmt.Errorf("%d vectors for %d rows", len(reply.Data), len(rows))
	}
	var acks []jetstream.PubAckFuture
	for _, vector := range reply.Data {
		row := bytes.TrimSuffix(rows[vector.Index].Data(), []byte{'}'})
		result := slices.Concat(row, []byte(`,"llm_response":`), vector.Embedding, []byte{'}'})
		f, err := l.js.PublishAsync(resultSubject, result)
		if err != nil {
			return err
		}
		acks = append(acks, f)
	}
	if err := stored(acks...); err != nil {
		return err
	}
	for _, m := range rows {
		if err := m.Ack(); err != nil {
			return err
		}
	}
	return nil
}
