package llm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/llm-stage/stage/llm/redact"
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
	APIKey redact.Secret `json:"-"`
	// ExtraHeaders and Redactor are those of [ClientConfig].
	ExtraHeaders redact.Secret    `json:"-"`
	Redactor     *redact.Redactor `json:"-"`
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

// NewProvider makes a client for a provider known by name. "mock" speaks
// [ChatCompletions] to the base URL, where package llmtest serves. Its errors
// are all the faults of name and cfg, each a [*SettingError] that names the
// field of cfg (or "Provider"), joined.
func NewProvider(name string, cfg ProviderConfig) (*Client, error) {
	p, ok := LookupProvider(name)
	if !ok {
		return nil, &SettingError{Setting: "Provider", Err: fmt.Errorf("%q is unknown; use one of %s", name, strings.Join(Providers(), ", "))}
	}
	var faults []error
	if !cfg.APIKey.IsSet() && p.needsKey(cfg.BaseURL) {
		faults = append(faults, &SettingError{Setting: "APIKey", Err: errors.New("missing; " + name + " needs one")})
	}
	cfg.BaseURL = cmp.Or(cfg.BaseURL, p.BaseURL)
	cfg.Model = cmp.Or(cfg.Model, p.Model)
	client := ClientConfig{
		Provider:        name,
		Wire:            p.wire(&cfg),
		BaseURL:         p.base(cfg.BaseURL),
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
