package batchapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
)

// Each request about a batch has the token of the identity, and no key.
func TestAnIdentityAuthorisesAllOfABatch(t *testing.T) {
	for name, cfg := range map[string]llm.ProviderConfig{"v1": {}, "dated": {AzureAPIVersion: "2024-10-21"}} {
		t.Run(name, func(t *testing.T) {
			path, requests := map[string]string{"v1": " /openai/v1", "dated": " /openai"}[name], 0
			recorder := &recorder{answers: map[string]string{}}
			for at, answer := range answersOf["/v1"] {
				recorder.answers[strings.Replace(at, " /v1", path, 1)] = answer
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer token" || r.Header.Get("Api-Key") != "" {
					t.Errorf("%s %s has %q", r.Method, r.URL.Path, r.Header)
				}
				requests++
				recorder.ServeHTTP(w, r)
			}))
			cfg.Auth = llmtest.Bearer("token")
			api := open(t, llm.Azure, server, cfg)
			wholeLife(t, api, linesOf(t, llm.Azure, api, cfg))
			if requests < 8 {
				t.Errorf("%d requests", requests)
			}
		})
	}
}
