package sdk

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"google.golang.org/genai"
)

// generate is a request of Gemini's generateContent, of which the SDK has the parts.
type generate struct {
	SystemInstruction *genai.Content          `json:"systemInstruction"`
	Contents          []*genai.Content        `json:"contents"`
	GenerationConfig  *genai.GenerationConfig `json:"generationConfig,omitempty"`
	Tools             []*genai.Tool           `json:"tools,omitempty"`
	ToolConfig        *genai.ToolConfig       `json:"toolConfig,omitempty"`
}

// Requests to Gemini, live and in batches, have the members of its SDK.
func TestRequestsFitGooglesSDK(t *testing.T) {
	r := record(t, llm.Gemini, "http://llm.test/v1beta", llm.ProviderConfig{})
	r.left = "extended" // its member is not Gemini's
	calls := r.live(t, ":generateContent")
	r.submit(t)
	lines, _, _ := r.last("/files") // the first one says what will come
	for raw := range bytes.Lines(lines) {
		var line struct {
			Key     string   `json:"key"`
			Request generate `json:"request"`
		}
		strict(t, raw, &line)
		body := calls[strings.TrimPrefix(line.Key, token+"-")]
		if !customID.MatchString(line.Key) || len(line.Request.Contents) == 0 || len(body) == 0 || !bytes.Contains(raw, body) {
			t.Errorf("the line is\n%s, the call\n%s", raw, body)
		}
	}
	body, _ := r.one(t, ":batchGenerateContent")
	var created struct {
		Batch struct {
			DisplayName string `json:"displayName"`
			InputConfig struct {
				FileName string `json:"fileName"`
			} `json:"inputConfig"`
		} `json:"batch"`
	}
	strict(t, body, &created)
	if created.Batch.DisplayName != token || !strings.HasPrefix(created.Batch.InputConfig.FileName, "files/") {
		t.Errorf("created by %s", body)
	}
}

// gemini is the SDK's client of a server.
func gemini(t *testing.T, base string) *genai.Client {
	t.Helper()
	return must.Value(genai.NewClient(t.Context(), &genai.ClientConfig{
		APIKey: "x", Backend: genai.BackendGeminiAPI, HTTPOptions: genai.HTTPOptions{BaseURL: base, APIVersion: "v1beta"},
	}))(t)
}

// queued uploads a file of n lines and creates a batch of it.
func queued(t *testing.T, client *genai.Client, n int) (*genai.File, *genai.BatchJob) {
	t.Helper()
	var lines bytes.Buffer
	for i := range n {
		fmt.Fprintf(&lines, `{"key":"row-%d","request":{"contents":[{"role":"user","parts":[{"text":"%d"}]}]}}`+"\n", i, i)
	}
	size := int64(lines.Len())
	file := must.Value(client.Files.Upload(t.Context(), &lines, &genai.UploadFileConfig{MIMEType: "application/jsonl", DisplayName: "input"}))(t)
	if file.DisplayName != "input" || file.SizeBytes == nil || *file.SizeBytes != size || file.State != genai.FileStateActive || file.ExpirationTime.IsZero() {
		t.Errorf("uploaded %+v", file)
	}
	job := must.Value(client.Batches.Create(t.Context(), "m", &genai.BatchJobSource{FileName: file.Name}, &genai.CreateBatchJobConfig{DisplayName: "b"}))(t)
	if job.DisplayName != "b" || job.State != genai.JobStatePending && job.State != genai.JobStateRunning || job.Model != "models/m" || job.CreateTime.IsZero() {
		t.Errorf("created %+v", job)
	}
	return file, job
}

// Google's client works with the stand-in, and reads what it says of a batch's life.
func TestGooglesClientUnderstandsTheStandIn(t *testing.T) {
	client := gemini(t, served(t, batches.Config{Fail: map[int]float64{http.StatusBadRequest: .4}}).URL)
	ctx := t.Context()
	const rows = 20
	file, job := queued(t, client, rows)
	job = must.Value(client.Batches.Get(ctx, job.Name, nil))(t)
	if job.State != genai.JobStateSucceeded || job.Dest == nil || job.Dest.FileName == "" || job.EndTime.IsZero() {
		t.Fatalf("got %+v", job)
	}
	content := must.Value(client.Files.Download(ctx, genai.NewDownloadURIFromFile(&genai.File{DownloadURI: job.Dest.FileName}), nil))(t)
	answered, failed := 0, 0
	for raw := range bytes.Lines(content) {
		var line struct {
			Key      string                         `json:"key"`
			Response *genai.GenerateContentResponse `json:"response"`
			Error    *genai.JobError                `json:"error"`
		}
		strict(t, raw, &line)
		switch {
		case line.Response != nil && line.Response.Text() != "" && line.Response.UsageMetadata != nil:
			answered++
		case line.Error != nil && line.Error.Message != "" && line.Error.Code != nil:
			failed++
		default:
			t.Errorf("line %s", raw)
		}
	}
	if answered+failed != rows || failed == 0 {
		t.Errorf("%d answered, %d failed", answered, failed)
	}
	if stored, err := client.Files.Get(ctx, file.Name, nil); err != nil || stored.Name != file.Name {
		t.Errorf("file %+v, %v", stored, err)
	}
	if _, err := client.Files.Delete(ctx, file.Name, nil); err != nil {
		t.Error(err)
	}
	if _, err := client.Files.Get(ctx, file.Name, nil); err == nil {
		t.Error("the deleted file is there")
	}
	if _, err := client.Batches.Delete(ctx, job.Name, nil); err != nil {
		t.Error(err)
	}
	if _, err := client.Batches.Get(ctx, job.Name, nil); err == nil {
		t.Error("the deleted batch is there")
	}
}

// A batch is found in pages, and cancelled.
func TestGooglesClientListsAndCancels(t *testing.T) {
	client := gemini(t, served(t, batches.Config{Delay: time.Hour}).URL)
	ctx := t.Context()
	var made, found []string
	for range 5 {
		_, job := queued(t, client, 2)
		made = append([]string{job.Name}, made...)
	}
	page, err := client.Batches.List(ctx, &genai.ListBatchJobsConfig{PageSize: 2})
	for ; err == nil; page, err = page.Next(ctx) {
		for _, job := range page.Items {
			found = append(found, job.Name)
		}
	}
	if !slices.Equal(found, made) {
		t.Errorf("listed %v, want %v, %v", found, made, err)
	}
	files := 0
	for file, err := range client.Files.All(ctx) {
		if files++; err != nil || file.Name == "" {
			t.Fatalf("listed %+v, %v", file, err)
		}
	}
	if files != 5 {
		t.Errorf("listed %d files", files)
	}
	must.Do(t, client.Batches.Cancel(ctx, made[0], nil))
	if job, err := client.Batches.Get(ctx, made[0], nil); err != nil || job.State != genai.JobStateCancelled {
		t.Errorf("cancelled: %+v, %v", job, err)
	}
}

// Small batches may bring their requests along, and take their results.
func TestGooglesClientSendsRequestsInline(t *testing.T) {
	client := gemini(t, served(t, batches.Config{}).URL)
	job := must.Value(client.Batches.Create(t.Context(), "m", &genai.BatchJobSource{InlinedRequests: []*genai.InlinedRequest{
		{Contents: genai.Text("one"), Metadata: map[string]string{"key": "row-1"}},
	}}, &genai.CreateBatchJobConfig{DisplayName: "b"}))(t)
	job = must.Value(client.Batches.Get(t.Context(), job.Name, nil))(t)
	if job.Dest == nil || len(job.Dest.InlinedResponses) != 1 {
		t.Fatalf("%+v", job)
	}
	if one := job.Dest.InlinedResponses[0]; one.Metadata["key"] != "row-1" || one.Response == nil || one.Response.Text() == "" {
		t.Errorf("answered %+v", one)
	}
}
