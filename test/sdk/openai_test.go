package sdk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

// openAI is the SDK's client of a server.
func openAI(base string) openai.Client {
	return openai.NewClient(option.WithBaseURL(base+"/v1/"), option.WithAPIKey("sk-x"), option.WithMaxRetries(0))
}

// input is a file of n lines.
func input(n int) io.Reader {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"row-%d","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"%d"}]}}`+"\n", i, i)
	}
	return openai.File(&b, "input.jsonl", "application/jsonl")
}

// submitted uploads a file of n lines and creates a batch of it.
func submitted(t *testing.T, client openai.Client, n int) (*openai.FileObject, *openai.Batch) {
	t.Helper()
	file := must.Value(client.Files.New(t.Context(), openai.FileNewParams{
		File: input(n), Purpose: openai.FilePurposeBatch, ExpiresAfter: openai.FileNewParamsExpiresAfter{Seconds: 86400},
	}))(t)
	known(t, file)
	batch := must.Value(client.Batches.New(t.Context(), openai.BatchNewParams{
		InputFileID: file.ID, Endpoint: openai.BatchNewParamsEndpointV1ChatCompletions,
		CompletionWindow: openai.BatchNewParamsCompletionWindow24h, Metadata: map[string]string{"a": "b"},
	}))(t)
	known(t, batch)
	if batch.InputFileID != file.ID || batch.Metadata["a"] != "b" || batch.Status != openai.BatchStatusValidating {
		t.Errorf("created %s", batch.RawJSON())
	}
	return file, batch
}

// OpenAI's client works with the stand-in, and understands all that it says of a batch's life.
func TestOpenAIsClientUnderstandsTheStandIn(t *testing.T) {
	server := served(t, batches.Config{Fail: map[int]float64{400: .4}})
	client := openAI(server.URL)
	ctx := t.Context()
	const rows = 20
	file, batch := submitted(t, client, rows)
	if file.ExpiresAt != file.CreatedAt+86400 {
		t.Errorf("uploaded %s", file.RawJSON())
	}
	batch = must.Value(client.Batches.Get(ctx, batch.ID))(t)
	known(t, batch)
	counts := batch.RequestCounts
	if batch.Status != openai.BatchStatusCompleted || counts.Total != rows || counts.Completed+counts.Failed != rows || counts.Failed == 0 {
		t.Errorf("got %s", batch.RawJSON())
	}
	for id, want := range map[string]int64{batch.OutputFileID: counts.Completed, batch.ErrorFileID: counts.Failed} {
		output := must.Value(client.Files.Get(ctx, id))(t)
		known(t, output)
		content := contentOf(t, client, id)
		if n := bytes.Count(content, []byte("\n")); int64(n) != want || output.Bytes != int64(len(content)) || output.Purpose != openai.FileObjectPurposeBatchOutput {
			t.Errorf("%d lines, want %d: %s", n, want, output.RawJSON())
		}
		for raw := range bytes.Lines(content) {
			readLine(t, raw, id == batch.OutputFileID)
		}
		deleted, err := client.Files.Delete(ctx, id)
		if err != nil || !deleted.Deleted {
			t.Fatal(deleted, err)
		}
		known(t, deleted)
	}
	var failure *openai.Error
	if _, err := client.Files.Get(ctx, batch.OutputFileID); !errors.As(err, &failure) || failure.StatusCode != http.StatusNotFound || failure.Message == "" {
		t.Errorf("a deleted file: %v", err)
	}
	if content := contentOf(t, client, file.ID); bytes.Count(content, []byte("\n")) != rows {
		t.Errorf("the input file is\n%s", content)
	}
}

func contentOf(t *testing.T, client openai.Client, id string) []byte {
	t.Helper()
	response := must.Value(client.Files.Content(t.Context(), id))(t)
	defer func() { _ = response.Body.Close() }()
	return must.Value(io.ReadAll(response.Body))(t)
}

// readLine checks a line of results, whose form no SDK has, and the reply in it.
func readLine(t *testing.T, raw []byte, answered bool) {
	t.Helper()
	var line struct {
		ID       string `json:"id"`
		CustomID string `json:"custom_id"`
		Response *struct {
			StatusCode int                   `json:"status_code"`
			RequestID  string                `json:"request_id"`
			Body       openai.ChatCompletion `json:"body"`
		} `json:"response"`
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	strict(t, raw, &line)
	if line.ID == "" || !strings.HasPrefix(line.CustomID, "row-") || line.Error != nil || line.Response == nil ||
		line.Response.RequestID == "" || (line.Response.StatusCode == http.StatusOK) != answered {
		t.Errorf("line %s", raw)
	} else if answered {
		known(t, line.Response.Body)
	}
}

// A batch is found in pages, cancelled, and fails with the lines that are wrong.
func TestOpenAIsClientListsAndCancels(t *testing.T) {
	server := served(t, batches.Config{Delay: time.Hour})
	client := openAI(server.URL)
	ctx := t.Context()
	var made, found, files []string
	for range 5 {
		_, batch := submitted(t, client, 2)
		made = append([]string{batch.ID}, made...)
	}
	pages := client.Batches.ListAutoPaging(ctx, openai.BatchListParams{Limit: openai.Int(2)})
	for pages.Next() {
		batch := pages.Current()
		known(t, batch)
		found = append(found, batch.ID)
	}
	if pages.Err() != nil || !slices.Equal(found, made) {
		t.Errorf("listed %v, want %v, %v", found, made, pages.Err())
	}
	stored := client.Files.ListAutoPaging(ctx, openai.FileListParams{Purpose: openai.String("batch"), Limit: openai.Int(2), Order: openai.FileListParamsOrderAsc})
	for stored.Next() {
		file := stored.Current()
		known(t, file)
		files = append(files, file.ID)
	}
	if stored.Err() != nil || len(files) != 5 || !slices.IsSorted(files) {
		t.Errorf("listed %v, %v", files, stored.Err())
	}
	batch := must.Value(client.Batches.Cancel(ctx, made[0]))(t)
	known(t, batch)
	if batch.Status != openai.BatchStatusCancelling && batch.Status != openai.BatchStatusCancelled || batch.CancellingAt == 0 {
		t.Errorf("cancelled: %s", batch.RawJSON())
	}
	if _, err := client.Batches.Get(ctx, "batch_none"); err == nil {
		t.Error("a batch that is not there was found")
	}
}

// A batch that is refused as a whole says which lines are wrong.
func TestOpenAIsClientReadsTheErrorsOfABatch(t *testing.T) {
	server := served(t, batches.Config{Poison: func(id string, _ []byte) bool { return id == "row-1" }})
	client := openAI(server.URL)
	_, batch := submitted(t, client, 3)
	batch = must.Value(client.Batches.Get(t.Context(), batch.ID))(t)
	known(t, batch)
	if data := batch.Errors.Data; batch.Status != openai.BatchStatusFailed || len(data) != 1 || data[0].Line != 2 || data[0].Message == "" {
		t.Errorf("got %s", batch.RawJSON())
	}
}

// The live endpoints answer what the client understands.
func TestOpenAIsClientCallsTheStandIn(t *testing.T) {
	client := openAI(served(t, batches.Config{}).URL)
	chat := must.Value(client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("s"), openai.UserMessage("u")},
	}))(t)
	known(t, chat)
	response := must.Value(client.Responses.New(t.Context(), responses.ResponseNewParams{
		Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("u")},
	}))(t)
	known(t, response)
	if response.OutputText() == "" || chat.Choices[0].Message.Content == "" {
		t.Errorf("answered %s\n%s", chat.RawJSON(), response.RawJSON())
	}
}
