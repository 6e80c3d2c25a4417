package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/llmtest"
)

// caller is the clients of all targets, and the built-in LLM behind those whose provider is mock and has no address.
type caller struct {
	targets []*target // the first provider, then the fallbacks; never empty
	headers Secret    // extra ones of all targets
	secrets *secrets
	mock    *http.Server
	mockURL string
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// newCaller makes the clients of the configured providers. mock says how the built-in LLM behaves where that is asked;
// dial nil is TCP.
func newCaller(cfg *Config, dial dialFunc, mock llmtest.Config) (*caller, error) {
	c := &caller{headers: cfg.LLM.ExtraHeaders, secrets: cfg.secrets}
	targets, err := newTargets(cfg, dial, func(e Endpoint) (string, error) {
		if e.Provider != llm.Mock || c.mockURL != "" {
			return c.mockURL, nil
		}
		var err error
		c.mockURL, err = c.startMock(mock)
		return c.mockURL, err
	})
	if err != nil {
		c.close()
		return nil, invalid(err)
	}
	c.targets = targets
	return c, nil
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

// close ends the clients and the built-in LLM.
func (c *caller) close() {
	for _, t := range c.targets {
		t.Close()
	}
	if c.mock != nil {
		_ = c.mock.Close()
	}
}

// reloadKey reads the keys again where they are in files. One that cannot be read stays as it was, and with it the extra
// headers.
func (c *caller) reloadKey() error {
	c.secrets.renew()
	faults := make([]error, len(c.targets))
	for i, t := range c.targets {
		faults[i] = t.reloadKey(c.headers)
	}
	return errors.Join(faults...)
}
