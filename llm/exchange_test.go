package llm_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// A redirect that names no location is the answer: it does not lead to where it came from.
func TestOnlyARedirectWithALocationIsFollowed(t *testing.T) {
	for name, c := range map[string]struct {
		status   int
		location string
		got      int // status
		requests int
	}{
		"relative":    {http.StatusFound, "../content", http.StatusOK, 2},
		"no location": {http.StatusFound, "", http.StatusFound, 1},
		"no redirect": {http.StatusNotModified, "", http.StatusNotModified, 1},
		"in a circle": {http.StatusFound, "/v1/files/1", http.StatusFound, 4},
	} {
		requests := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests++
			if r.URL.Path == "/v1/content" {
				return
			}
			if c.location != "" {
				w.Header().Set("Location", c.location)
			}
			w.WriteHeader(c.status)
		}))
		defer server.Close()
		client := newClient(t, "openai", llm.ProviderConfig{BaseURL: server.URL + "/v1", APIKey: redact.NewSecret(secret), Model: "m"})
		reply, err := client.Exchange(t.Context(), &llm.RawRequest{Method: http.MethodGet, URL: "/files/1", MaxBytes: 100})
		if (err == nil) != (c.got == http.StatusOK) || reply.Status != c.got || requests != c.requests {
			t.Errorf("%s: status %d after %d requests, %v", name, reply.Status, requests, err)
		}
	}
}
