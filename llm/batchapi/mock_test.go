package batchapi_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/llm-stage/stage/llm/redact"
)

// The built-in servers and this package agree: a batch is submitted, lost, found, answered, judged, and deleted.
func TestAgainstTheBuiltInServers(t *testing.T) {
	for provider, base := range map[string]string{llm.OpenAI: "/v1", llm.Mock: "/v1", llm.Azure: "", llm.Anthropic: "/v1", llm.Gemini: "/v1beta"} {
		t.Run(provider, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := must.Value(llmtest.New(llmtest.Config{Seed: 3, Batches: batches.Config{
					Delay: time.Hour, LoseCreate: 1, ListLag: 5 * time.Second, Fail: map[int]float64{429: .1, 400: .1},
				}}))(t)
				pipe, stop := server.Pipe()
				defer stop()
				client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{
					BaseURL: "http://llm.test" + base, DialContext: pipe.DialContext, Model: "m", APIKey: redact.NewSecret(secret),
				}))(t)
				defer client.Close()
				api := must.Value(batchapi.New(client))(t)
				const rows = 100
				prepared := map[string]*llm.Prepared{}
				var body []byte
				for i := range rows {
					id := fmt.Sprintf("%s-%d", token, i)
					prepared[id] = must.Value(client.Prepare(&llm.Request{Prompt: id}))(t)
					body = api.AppendLine(body, id, prepared[id])
				}
				lines := batchapi.Lines{Open: func() io.Reader { return bytes.NewReader(body) }, Size: int64(len(body)), Rows: rows}
				job, since := batchapi.Job{Token: token, Model: "m", Lines: lines}, time.Now()
				if !api.Limits().Inline {
					job.File = must.Value(api.Upload(t.Context(), token, lines))(t)
				}
				if b, err := api.Create(t.Context(), job); !batchapi.Uncertain(err) {
					t.Fatalf("created %+v, %v; want a lost answer", b, err)
				}
				time.Sleep(10 * time.Second)
				found, err := api.Find(t.Context(), token, since, rows)
				if err != nil || len(found) != 1 {
					t.Fatalf("found %+v, %v", found, err)
				}
				time.Sleep(2 * time.Hour)
				b, err := api.Get(t.Context(), found[0].ID)
				if err != nil || b.State != batchapi.Ended {
					t.Fatalf("got %+v, %v", b, err)
				}
				answers, failures := 0, 0
				err = api.Results(t.Context(), b, func(l batchapi.Line) error {
					p := prepared[l.ID]
					if p == nil || l.Kind != batchapi.Answered {
						t.Errorf("line %+v", l)
						return nil
					}
					delete(prepared, l.ID)
					if x, err := client.ReadReply(p, l.Status, l.Body); err != nil {
						failures++
					} else if x.Reply.Text != "" {
						answers++
					}
					return nil
				})
				if err != nil || len(prepared) != 0 || answers+failures != rows || failures == 0 || answers < rows/2 {
					t.Errorf("%d answers, %d failures, %d missing, %v", answers, failures, len(prepared), err)
				}
				if err := api.Delete(t.Context(), b); err != nil {
					t.Error(err)
				}
				if err := api.Delete(t.Context(), b); err != nil {
					t.Errorf("a second time: %v", err)
				}
			})
		})
	}
}
