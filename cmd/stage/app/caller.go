package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/llmtest"
)

// caller is the client of the provider, and the built-in LLM behind it where the provider is mock and has no address.
type caller struct {
	*llm.Client
	endpoint Endpoint
	mock     *http.Server
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// newCaller makes the client of the configured provider. mock says how the built-in LLM behaves where that is asked;
// dial nil is TCP.
func newCaller(cfg *Config, dial dialFunc, mock llmtest.Config) (*caller, error) {
	c := &caller{endpoint: cfg.LLM.Endpoint(cfg.LLM.Provider)}
	if c.endpoint.Provider == llm.Mock && c.endpoint.BaseURL == "" {
		url, err := c.startMock(mock)
		if err != nil {
			return nil, err
		}
		c.endpoint.BaseURL = url
	}
	return c, c.open(cfg, dial)
}

// open makes the client for the endpoint.
func (c *caller) open(cfg *Config, dial dialFunc) error {
	key, err := c.endpoint.APIKey.Value()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("STAGE_LLM_API_KEY_FILE: %w", err))
	}
	c.Client, err = llm.NewProvider(c.endpoint.Provider, llm.ProviderConfig{
		BaseURL: c.endpoint.BaseURL, APIKey: key, Model: cfg.LLM.Model, AzureAPIVersion: cfg.LLM.AzureAPIVersion,
		CAFile: cfg.LLM.CAFile, Concurrency: cfg.Pool.Size, Timeout: cfg.LLM.Timeout,
		MaxReplyBytes: int64(cfg.LLM.MaxReplyBytes), AcceptTruncated: cfg.LLM.AcceptTruncated, DialContext: dial,
	})
	if err != nil {
		c.close()
		return exitWith(exitUsage, nameSettings(err))
	}
	return nil
}

// startMock serves the built-in flaky LLM on a free port of the loopback interface: its calls go over real HTTP.
func (c *caller) startMock(cfg llmtest.Config) (url string, err error) {
	handler, err := llmtest.New(cfg)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		return "", fmt.Errorf("built-in LLM: %w", err)
	}
	c.mock = &http.Server{Handler: handler, ReadHeaderTimeout: httpReadTimeout}
	go func() { _ = c.mock.Serve(listener) }() // ends with close
	return "http://" + listener.Addr().String() + "/v1", nil
}

// close ends the client and the built-in LLM.
func (c *caller) close() {
	if c.Client != nil {
		c.Close()
	}
	if c.mock != nil {
		_ = c.mock.Close()
	}
}

// reloadKey reads the key again where it is in a file: it may have been mended or rotated.
func (c *caller) reloadKey() error {
	key, err := c.endpoint.APIKey.Value()
	if err != nil {
		return err
	}
	return c.SetAPIKey(key)
}

// reloadKeys reads the key again at each SIGHUP.
func (s *stage) reloadKeys(ctx context.Context, reloads <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reloads:
		}
		if err := s.caller.reloadKey(); err != nil {
			s.log.Error("key not read again, the old one stays", slog.Any("error", err))
			continue
		}
		s.log.Info("key read again")
	}
}

// nameSettings names the variable of each setting that the client found wrong.
func nameSettings(err error) error {
	variables := map[string]string{
		"Provider": "STAGE_LLM_PROVIDER", "BaseURL": "STAGE_LLM_BASE_URL", "APIKey": "STAGE_LLM_API_KEY", "Model": "STAGE_LLM_MODEL",
		"CAFile": "STAGE_LLM_CA_FILE", "CAPEM": "STAGE_LLM_CA_FILE", "Timeout": "STAGE_LLM_TIMEOUT", "MaxReplyBytes": "STAGE_LLM_MAX_REPLY_BYTES",
		"Concurrency": "STAGE_POOL_SIZE",
	}
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // the faults one by one, as llm joined them
	if !ok {
		joined = errors.Join(err).(interface{ Unwrap() []error }) //nolint:errorlint // a list of one
	}
	var named []error
	for _, fault := range joined.Unwrap() {
		if e, ok := errors.AsType[*llm.SettingError](fault); ok && variables[e.Setting] != "" {
			fault = fmt.Errorf("%s: %w", variables[e.Setting], e.Err)
		}
		named = append(named, fault)
	}
	return errors.Join(named...)
}
