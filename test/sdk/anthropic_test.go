package sdk

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
)

// sampling are members of version 2023-06-01 of Anthropic's API, which the stage asks for.
// The SDK is made for a later version, which refuses them.
var sampling = []string{"temperature", "top_p"}

// Requests to Anthropic, live and in batches, are what its SDK would send.
func TestRequestsFitAnthropicsDescription(t *testing.T) {
	r := record(t, llm.Anthropic, "http://llm.test/v1", llm.ProviderConfig{})
	calls := r.live(t, "/messages")
	for _, raw := range calls {
		fits[anthropic.MessageNewParams](t, raw, sampling...)
	}
	r.submit(t)
	body, _ := r.one(t, "/messages/batches")
	fits[anthropic.MessageBatchNewParams](t, body, sampling...)
	var created struct {
		Requests []struct {
			CustomID string `json:"custom_id"`
			Params   any    `json:"params"`
		} `json:"requests"`
	}
	strict(t, body, &created)
	if len(created.Requests) != len(calls) {
		t.Errorf("%d requests, want %d", len(created.Requests), len(calls))
	}
	for _, one := range created.Requests {
		if !customID.MatchString(one.CustomID) {
			t.Errorf("custom id %q", one.CustomID)
		}
	}
}

// claude is the SDK's client of a server.
func claude(base string) anthropic.Client {
	return anthropic.NewClient(option.WithoutEnvironmentDefaults(), option.WithBaseURL(base), option.WithAPIKey("sk-x"), option.WithMaxRetries(0))
}

// asked creates a batch of n requests.
func asked(t *testing.T, client anthropic.Client, n int) *anthropic.MessageBatch {
	t.Helper()
	var params anthropic.MessageBatchNewParams
	for i := range n {
		params.Requests = append(params.Requests, anthropic.MessageBatchNewParamsRequest{
			CustomID: fmt.Sprintf("row-%d", i),
			Params: anthropic.MessageBatchNewParamsRequestParams{
				Model: "m", MaxTokens: 10, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(fmt.Sprint(i)))},
			},
		})
	}
	batch := must.Value(client.Messages.Batches.New(t.Context(), params))(t)
	known(t, batch)
	return batch
}

// Anthropic's client works with the stand-in, and understands all that it says of a batch's life.
func TestAnthropicsClientUnderstandsTheStandIn(t *testing.T) {
	client := claude(served(t, batches.Config{Fail: map[int]float64{http.StatusBadRequest: .4}}).URL)
	ctx := t.Context()
	const rows = 20
	batch := must.Value(client.Messages.Batches.Get(ctx, asked(t, client, rows).ID, anthropic.MessageBatchGetParams{}))(t)
	known(t, batch)
	counts := batch.RequestCounts
	if batch.ProcessingStatus != anthropic.MessageBatchProcessingStatusEnded || counts.Succeeded+counts.Errored != rows || counts.Errored == 0 || batch.ResultsURL == "" {
		t.Errorf("got %s", batch.RawJSON())
	}
	results := client.Messages.Batches.ResultsStreaming(ctx, batch.ID, anthropic.MessageBatchResultsParams{})
	var succeeded, errored int64
	for results.Next() {
		line := results.Current()
		known(t, line)
		switch result := line.Result.AsAny().(type) {
		case anthropic.MessageBatchSucceededResult:
			succeeded++
			known(t, result)
			if result.Message.Content[0].Text == "" {
				t.Errorf("line %s", line.RawJSON())
			}
		case anthropic.MessageBatchErroredResult:
			errored++
			known(t, result)
			if result.Error.Error.Type != "invalid_request_error" || result.Error.Error.Message == "" {
				t.Errorf("line %s", line.RawJSON())
			}
		default:
			t.Errorf("line %s", line.RawJSON())
		}
	}
	if results.Err() != nil || succeeded != counts.Succeeded || errored != counts.Errored {
		t.Errorf("%d succeeded, %d errored, %v: %s", succeeded, errored, results.Err(), batch.RawJSON())
	}
	deleted := must.Value(client.Messages.Batches.Delete(ctx, batch.ID, anthropic.MessageBatchDeleteParams{}))(t)
	known(t, deleted)
	if _, err := client.Messages.Batches.Get(ctx, batch.ID, anthropic.MessageBatchGetParams{}); err == nil {
		t.Error("the deleted batch is there")
	}
}

// A batch is found in pages, and what a cancelled one did not answer is said to be cancelled.
func TestAnthropicsClientListsAndCancels(t *testing.T) {
	client := claude(served(t, batches.Config{Delay: time.Hour}).URL)
	ctx := t.Context()
	var made, found []string
	for range 5 {
		made = append([]string{asked(t, client, 2).ID}, made...)
	}
	pages := client.Messages.Batches.ListAutoPaging(ctx, anthropic.MessageBatchListParams{Limit: anthropic.Int(2)})
	for pages.Next() {
		batch := pages.Current()
		known(t, batch)
		found = append(found, batch.ID)
	}
	if pages.Err() != nil || !slices.Equal(found, made) {
		t.Errorf("listed %v, want %v, %v", found, made, pages.Err())
	}
	batch := must.Value(client.Messages.Batches.Cancel(ctx, made[0], anthropic.MessageBatchCancelParams{}))(t)
	known(t, batch)
	if batch.CancelInitiatedAt.IsZero() {
		t.Errorf("cancelled: %s", batch.RawJSON())
	}
	results := client.Messages.Batches.ResultsStreaming(ctx, batch.ID, anthropic.MessageBatchResultsParams{})
	n := 0
	for ; results.Next(); n++ {
		line := results.Current()
		known(t, line)
		if _, ok := line.Result.AsAny().(anthropic.MessageBatchCanceledResult); !ok {
			t.Errorf("line %s", line.RawJSON())
		}
	}
	if results.Err() != nil || n != 2 {
		t.Errorf("%d lines, %v", n, results.Err())
	}
}

// The live endpoint answers what the client understands.
func TestAnthropicsClientCallsTheStandIn(t *testing.T) {
	client := claude(served(t, batches.Config{}).URL)
	message := must.Value(client.Messages.New(t.Context(), anthropic.MessageNewParams{
		Model: "m", MaxTokens: 10, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("u"))},
	}))(t)
	known(t, message)
}
