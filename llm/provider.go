package llm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// ProviderConfig configures a client for one of the providers known by name.
// The zero value of a field is its default.
type ProviderConfig struct {
	// BaseURL replaces the provider's own address. Required for "azure"
	// (https://NAME.openai.azure.com) and "mock". For "openai" it may be any
	// compatible server, with its version: http://localhost:11434/v1.
	BaseURL string
	// APIKey is the credential. Required at the provider's own address and for
	// "azure".
	APIKey Secret `json:"-"`
	// ExtraHeaders and Redactor are those of [ClientConfig].
	ExtraHeaders Secret    `json:"-"`
	Redactor     *Redactor `json:"-"`
	// Model is asked where the request names none; for "azure" the name of the
	// deployment. Required, except for "mock".
	Model string
	// AzureAPIVersion, such as 2024-10-21, chooses Azure's dated path. Empty: its
	// v1 path.
	AzureAPIVersion string
	// CAFile is a file of further certificate authorities in PEM. Empty: none.
	CAFile string
	// Concurrency, Timeout, MaxReplyBytes, AcceptTruncated and DialContext are
	// those of [ClientConfig].
	Concurrency     int
	Timeout         time.Duration
	MaxReplyBytes   int64
	AcceptTruncated bool
	DialContext     func(ctx context.Context, network, address string) (net.Conn, error)
}

// The providers known by name.
const (
	OpenAI          = "openai"
	OpenAIResponses = "openai-responses"
	OpenRouter      = "openrouter"
	Azure           = "azure"
	Anthropic       = "anthropic"
	Gemini          = "gemini"
	Mock            = "mock"
)

// Providers returns the names that [NewProvider] knows.
func Providers() []string {
	return []string{OpenAI, OpenAIResponses, OpenRouter, Azure, Anthropic, Gemini, Mock}
}

// DefaultBaseURL returns the provider's own address, or "" if it has none.
func DefaultBaseURL(provider string) string {
	switch provider {
	case OpenAI, OpenAIResponses:
		return "https://api.openai.com/v1"
	case OpenRouter:
		return "https://openrouter.ai/api/v1"
	case Anthropic:
		return "https://api.anthropic.com/v1"
	case Gemini:
		return "https://generativelanguage.googleapis.com/v1beta"
	}
	return ""
}

// NewProvider makes a client for a provider known by name. "mock" speaks
// [ChatCompletions] to the base URL, where package llmtest serves. Its errors
// are all the faults of name and cfg, each a [*SettingError] that names the
// field of cfg (or "Provider"), joined.
func NewProvider(name string, cfg ProviderConfig) (*Client, error) {
	if !slices.Contains(Providers(), name) {
		return nil, &SettingError{Setting: "Provider", Err: fmt.Errorf("%q is unknown; use one of %s", name, strings.Join(Providers(), ", "))}
	}
	own := DefaultBaseURL(name)
	var faults []error
	if !cfg.APIKey.IsSet() && (cfg.BaseURL == "" && own != "" || name == Azure) {
		faults = append(faults, &SettingError{Setting: "APIKey", Err: errors.New("missing; " + name + " needs one")})
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = own
	}
	if name == Mock && cfg.Model == "" {
		cfg.Model = "mock"
	}
	client := ClientConfig{
		Provider:        name,
		Wire:            wireOf(name, &cfg),
		BaseURL:         baseURL(name, cfg.BaseURL),
		APIKey:          cfg.APIKey,
		ExtraHeaders:    cfg.ExtraHeaders,
		Redactor:        cfg.Redactor,
		Model:           cfg.Model,
		Concurrency:     cfg.Concurrency,
		Timeout:         cfg.Timeout,
		MaxReplyBytes:   cfg.MaxReplyBytes,
		AcceptTruncated: cfg.AcceptTruncated,
		DialContext:     cfg.DialContext,
	}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err == nil {
			_, err = rootCAs(pem)
		}
		if err != nil {
			faults = append(faults, &SettingError{Setting: "CAFile", Err: err})
		} else {
			client.CAPEM = pem
		}
	}
	c, err := NewClient(client)
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, err
	}
	return c, nil
}

func wireOf(name string, cfg *ProviderConfig) Wire {
	switch name {
	case OpenAIResponses:
		return Responses{}
	case Anthropic:
		return Messages{}
	case Gemini:
		return GenerateContent{}
	case Azure:
		v := cfg.AzureAPIVersion
		return ChatCompletions{Azure: true, AzureAPIVersion: v, MaxCompletionTokens: v == "" || v >= "2024-09-01"}
	case OpenAI:
		// Azure and OpenAI itself refuse max_tokens for newer models; of the
		// compatible servers some know nothing else.
		u, err := url.Parse(cfg.BaseURL)
		return ChatCompletions{MaxCompletionTokens: err == nil && isOpenAI(u.Hostname())}
	}
	return ChatCompletions{}
}

func isOpenAI(host string) bool {
	return host == "api.openai.com" || strings.HasSuffix(host, ".api.openai.com")
}

// baseURL mends the address as people copy it from a provider's page: without
// the version, or with the path that the wire format appends itself.
func baseURL(name, raw string) string {
	raw = strings.TrimRight(raw, "/")
	switch name {
	case Azure:
		raw = strings.TrimSuffix(raw, "/openai/v1")
		return strings.TrimSuffix(raw, "/openai")
	case Anthropic:
		raw = strings.TrimSuffix(raw, "/messages")
		return versioned(raw, "/v1")
	case Gemini:
		return versioned(raw, "/v1beta")
	case OpenAIResponses:
		return strings.TrimSuffix(raw, "/responses")
	}
	return strings.TrimSuffix(raw, "/chat/completions")
}

// versioned appends version unless the address ends with one already.
func versioned(raw, version string) string {
	last := path.Base(raw)
	if raw == "" || len(last) > 1 && last[0] == 'v' && last[1] >= '0' && last[1] <= '9' {
		return raw
	}
	return raw + version
}
