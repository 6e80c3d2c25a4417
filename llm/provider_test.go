package llm

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
)

func TestAddressesAreMendedAsPeopleCopyThem(t *testing.T) {
	tests := []struct{ provider, base, want string }{
		{OpenAI, "", "https://api.openai.com/v1/chat/completions"},
		{OpenAI, "http://localhost:8000/v1/", "http://localhost:8000/v1/chat/completions"},
		{OpenAI, "http://localhost:8000/v1/chat/completions", "http://localhost:8000/v1/chat/completions"},
		{OpenAI, "https://api.perplexity.ai", "https://api.perplexity.ai/chat/completions"},
		{OpenAIResponses, "", "https://api.openai.com/v1/responses"},
		{OpenAIResponses, "https://eu.api.openai.com/v1/responses", "https://eu.api.openai.com/v1/responses"},
		{OpenRouter, "", "https://openrouter.ai/api/v1/chat/completions"},
		{Azure, "https://r.openai.azure.com/", "https://r.openai.azure.com/openai/v1/chat/completions"},
		{Azure, "https://r.openai.azure.com/openai/v1/", "https://r.openai.azure.com/openai/v1/chat/completions"},
		{Azure, "https://r.openai.azure.com/openai", "https://r.openai.azure.com/openai/v1/chat/completions"},
		{Anthropic, "", "https://api.anthropic.com/v1/messages"},
		{Anthropic, "https://proxy.test/anthropic", "https://proxy.test/anthropic/v1/messages"},
		{Anthropic, "https://proxy.test/v1/messages", "https://proxy.test/v1/messages"},
		{Gemini, "", "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"},
		{Gemini, "https://generativelanguage.googleapis.com/v1", "https://generativelanguage.googleapis.com/v1/models/m:generateContent"},
		{Anthropic, "https://bedrock-mantle.us-east-1.api.aws/anthropic/v1/messages", "https://bedrock-mantle.us-east-1.api.aws/anthropic/v1/messages"},
		{Anthropic, "https://bedrock-runtime.us-east-1.amazonaws.com/anthropic", "https://bedrock-runtime.us-east-1.amazonaws.com/anthropic/v1/messages"},
		{OpenAI, "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions"},
		{Bedrock, "https://bedrock-runtime.eu-central-1.amazonaws.com/", "https://bedrock-runtime.eu-central-1.amazonaws.com/model/m/converse"},
		{Mock, "http://127.0.0.1:9000/v1", "http://127.0.0.1:9000/v1/chat/completions"},
	}
	for _, tt := range tests {
		c, err := NewProvider(tt.provider, ProviderConfig{BaseURL: tt.base, APIKey: redact.NewSecret("key"), Model: "m"})
		if err != nil {
			t.Errorf("%s %q: %v", tt.provider, tt.base, err)
			continue
		}
		if got := c.own.url.String(); got != tt.want {
			t.Errorf("%s %q asks %s, want %s", tt.provider, tt.base, got, tt.want)
		}
	}
}

func TestTokenLimitGoesByTheNameThatTheServerKnows(t *testing.T) {
	tests := []struct {
		provider string
		cfg      ProviderConfig
		want     string
	}{
		{OpenAI, ProviderConfig{}, "max_completion_tokens"},
		// The regions and the host for client certificates: openai-python 3.3.1, _data_residency.py and README.
		{OpenAI, ProviderConfig{BaseURL: "https://us.api.openai.com/v1"}, "max_completion_tokens"},
		{OpenAI, ProviderConfig{BaseURL: "https://ae.api.openai.com/v1"}, "max_completion_tokens"},
		{OpenAI, ProviderConfig{BaseURL: "https://mtls.api.openai.com/v1"}, "max_completion_tokens"},
		// An Azure address may serve models of others, which know the old name alone: provider azure sends the new one.
		{OpenAI, ProviderConfig{BaseURL: "https://r.services.ai.azure.com/openai/v1"}, "max_tokens"},
		{OpenAI, ProviderConfig{BaseURL: "http://localhost:11434/v1"}, "max_tokens"},
		{OpenAI, ProviderConfig{BaseURL: "https://api.openai.com.example.org/v1"}, "max_tokens"},
		{Azure, ProviderConfig{BaseURL: "https://r.test"}, "max_completion_tokens"},
		{Azure, ProviderConfig{BaseURL: "https://r.test", AzureAPIVersion: "2024-02-01"}, "max_tokens"},
		{Azure, ProviderConfig{BaseURL: "https://r.test", AzureAPIVersion: "2025-01-01-preview"}, "max_completion_tokens"},
		{OpenRouter, ProviderConfig{}, "max_tokens"},
	}
	for _, tt := range tests {
		tt.cfg.APIKey, tt.cfg.Model = redact.NewSecret("key"), "m"
		c := newClient(t, tt.provider, tt.cfg)
		p := must.Value(c.Prepare(&Request{MaxTokens: new(7)}))(t)
		if !strings.Contains(string(p.Body), `"`+tt.want+`":7`) {
			t.Errorf("%s %+v sends %s, want %s", tt.provider, tt.cfg, p.Body, tt.want)
		}
	}
}

func TestEveryWrongSettingIsNamedAtOnce(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(bad, []byte("no PEM"), 0o600))
	tests := []struct {
		name, provider string
		cfg            ProviderConfig
		want           []string
	}{
		{"nothing", OpenAI, ProviderConfig{}, []string{"APIKey", "Model"}},
		{"own server without key", OpenAI, ProviderConfig{BaseURL: "http://localhost/v1"}, []string{"Model"}},
		{"azure", Azure, ProviderConfig{}, []string{"APIKey", "BaseURL", "Model"}},
		{"azure without key", Azure, ProviderConfig{BaseURL: "https://r.test", Model: "m"}, []string{"APIKey"}},
		{"mock", Mock, ProviderConfig{}, []string{"BaseURL"}},
		{"unknown", "bard", ProviderConfig{}, []string{"Provider"}},
		{"all", Anthropic, ProviderConfig{
			BaseURL: "ftp://x", APIKey: redact.NewSecret("a b"), CAFile: bad, Concurrency: -1, Timeout: -1, MaxReplyBytes: -1,
		}, []string{"APIKey", "BaseURL", "CAFile", "Concurrency", "MaxReplyBytes", "Model", "Timeout"}},
		{"no file", Gemini, ProviderConfig{APIKey: redact.NewSecret("k"), Model: "m", CAFile: bad + "x"}, []string{"CAFile"}},
		{"vertex", Vertex, ProviderConfig{Model: "m"}, []string{"APIKey", "Project"}},
		{"vertex with an identity", Vertex, ProviderConfig{Model: "m", Auth: llmtest.Bearer("t")}, []string{"Project"}},
		{"vertex's region", Vertex, ProviderConfig{Model: "m", Auth: llmtest.Bearer("t"), Region: "x.test/", Project: "a/b", BaseURL: "https://x.test/v1"}, []string{"Project", "Region"}},
		{"publisher of another format", Vertex, ProviderConfig{Model: "meta/llama", APIKey: redact.NewSecret("secret-key")}, []string{"Model"}},
		{"anthropic without a project", Vertex, ProviderConfig{Model: "anthropic/m", APIKey: redact.NewSecret("secret-key")}, []string{"Model"}},
		{"model that leads away", Gemini, ProviderConfig{APIKey: redact.NewSecret("k"), Model: "../files"}, []string{"Model"}},
	}
	for _, base := range []string{"localhost:8000/v1", "http://", "http://u:p4ssword@h/v1", "http://h/v1?key=p4ssword", "http://h/v1#x", "http://[::1/p4ssword", "http://h:p4ssword/"} {
		tests = append(tests, struct {
			name, provider string
			cfg            ProviderConfig
			want           []string
		}{base, OpenAI, ProviderConfig{BaseURL: base, Model: "m"}, []string{"BaseURL"}})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewProvider(tt.provider, tt.cfg)
			got := settings(err)
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("problems of %v, want %v: %v", got, tt.want, err)
			}
			if err != nil && (strings.Contains(err.Error(), "p4ssword") || strings.Contains(err.Error(), "a b")) {
				t.Errorf("a credential is in %q", err)
			}
		})
	}
}

// settings names the settings of a tree of joined errors.
func settings(err error) []string {
	if e, ok := err.(*SettingError); ok { //nolint:errorlint // walks the tree itself
		return []string{e.Setting}
	}
	if e, ok := err.(interface{ Unwrap() []error }); ok {
		var names []string
		for _, err := range e.Unwrap() {
			names = append(names, settings(err)...)
		}
		return names
	}
	return nil
}

func TestUnsendableRequestIsPermanent(t *testing.T) {
	c := newClient(t, OpenAI, ProviderConfig{APIKey: redact.NewSecret("key"), Model: "m"})
	for name, r := range map[string]Request{
		"no number": {Temperature: new(math.NaN())},
		"infinite":  {Temperature: new(math.Inf(1))},
		"no object": {ExtraBody: []byte("[]")},
		"stream":    {ExtraBody: []byte(`{"stream":true}`)},
	} {
		_, err := c.Prepare(&r)
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != Permanent || e.Reason != ReasonAPICallFailed {
			t.Errorf("%s: Prepare = %v", name, err)
		}
	}
}

// A row may name the model: one that leads to another address is an error of the row.
func TestAModelThatLeadsAwayIsAnInvalidRow(t *testing.T) {
	for _, p := range []string{Gemini, Bedrock, OpenAI} {
		c := newClient(t, p, ProviderConfig{APIKey: redact.NewSecret("key"), Model: "m", Region: "eu-west-1"})
		_, err := c.Prepare(&Request{Model: "../../v1/files", Prompt: "x"})
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != Permanent || e.Reason != ReasonInvalidRow || !strings.Contains(err.Error(), `model "../../v1/files"`) {
			t.Errorf("%s: Prepare = %v", p, err)
		}
	}
}
