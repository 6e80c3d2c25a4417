package call

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/llmtest"
)

// Targets are the first provider and the fallbacks, and the built-in LLM that serves those whose provider is mock and
// has no base URL. Safe for concurrent use; to be closed with [Targets.Close].
type Targets struct {
	all     []*Target     // the first provider, then the fallbacks; never empty
	headers config.Secret // the extra headers of all targets
	secrets *config.Secrets
	mock    *http.Server // nil: no target needs it; mockURL is empty then
	mockURL string
}

// dialFunc opens the connections to providers.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Open makes the clients of the configured providers, and connects to none. mock is the behaviour of the built-in LLM,
// if a target needs it. dial opens connections; nil: TCP. The error is a [*config.Error] that lists every problem.
func Open(cfg *config.Config, dial dialFunc, mock llmtest.Config) (*Targets, error) {
	t := &Targets{headers: cfg.LLM.ExtraHeaders, secrets: cfg.Secrets()}
	all, err := newTargets(cfg, dial, func(e config.Endpoint) (string, error) {
		if e.Provider != llm.Mock || t.mockURL != "" {
			return t.mockURL, nil
		}
		var err error
		t.mockURL, err = t.startMock(mock)
		return t.mockURL, err
	})
	if err != nil {
		t.Close()
		return nil, config.Invalid(err)
	}
	t.all = all
	return t, nil
}

// startMock serves the built-in LLM on a free port of the loopback interface: its calls go over real HTTP.
func (t *Targets) startMock(cfg llmtest.Config) (url string, err error) {
	handler, err := llmtest.New(cfg)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		return "", fmt.Errorf("built-in LLM: %w", err)
	}
	t.mock = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = t.mock.Serve(listener) }() // ends with Close
	return "http://" + listener.Addr().String() + "/v1", nil
}

// At returns a target by its index, less than [Targets.Len]: 0 is the first provider, then come the fallbacks.
func (t *Targets) At(i int) *Target { return t.all[i] }

// Len returns how many targets there are; at least 1.
func (t *Targets) Len() int { return len(t.all) }

// Mocked reports whether the built-in LLM is among the targets.
func (t *Targets) Mocked() bool { return t.mock != nil }

// Close closes the clients and stops the built-in LLM.
func (t *Targets) Close() {
	for _, one := range t.all {
		one.Close()
	}
	if t.mock != nil {
		_ = t.mock.Close()
	}
}

// ReloadKey reloads the API keys and extra headers that are in files. A target whose key or headers can't be read keeps
// both; the error lists them all.
func (t *Targets) ReloadKey() error {
	t.secrets.Renew()
	problems := make([]error, len(t.all))
	for i, one := range t.all {
		problems[i] = one.reloadKey(t.headers)
	}
	return errors.Join(problems...)
}
