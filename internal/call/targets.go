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

// Targets are the clients of the first provider and of the fallbacks, and the built-in LLM behind those whose provider is
// mock and has no address.
type Targets struct {
	all     []*target     // the first provider, then the fallbacks; never empty
	headers config.Secret // extra ones of all targets
	secrets *config.Secrets
	mock    *http.Server
	mockURL string
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Open makes the clients of the configured providers. mock says how the built-in LLM behaves where that is asked;
// dial nil is TCP.
func Open(cfg *config.Config, dial dialFunc, mock llmtest.Config) (*Targets, error) {
	c := &Targets{headers: cfg.LLM.ExtraHeaders, secrets: cfg.Secrets()}
	all, err := newTargets(cfg, dial, func(e config.Endpoint) (string, error) {
		if e.Provider != llm.Mock || c.mockURL != "" {
			return c.mockURL, nil
		}
		var err error
		c.mockURL, err = c.startMock(mock)
		return c.mockURL, err
	})
	if err != nil {
		c.Close()
		return nil, config.Invalid(err)
	}
	c.all = all
	return c, nil
}

// startMock serves the built-in flaky LLM on a free port of the loopback interface: its calls go over real HTTP.
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
	go func() { _ = t.mock.Serve(listener) }() // ends with close
	return "http://" + listener.Addr().String() + "/v1", nil
}

// At returns a target by its place: 0 is the first provider, then the fallbacks.
func (t *Targets) At(i int) *target { return t.all[i] }

// Len returns how many targets there are; at least 1.
func (t *Targets) Len() int { return len(t.all) }

// Mocked says whether the built-in LLM is among them.
func (t *Targets) Mocked() bool { return t.mock != nil }

// Close ends the clients and the built-in LLM.
func (t *Targets) Close() {
	for _, one := range t.all {
		one.Close()
	}
	if t.mock != nil {
		_ = t.mock.Close()
	}
}

// ReloadKey reads the keys again where they are in files. One that cannot be read stays as it was, and with it the extra
// headers.
func (t *Targets) ReloadKey() error {
	t.secrets.Renew()
	faults := make([]error, len(t.all))
	for i, one := range t.all {
		faults[i] = one.reloadKey(t.headers)
	}
	return errors.Join(faults...)
}
