package call

import (
	"context"
	"errors"
	"net"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm/llmtest"
)

// Targets are the first provider and the fallbacks, and the built-in LLM that serves those whose provider is mock and
// has no base URL. Safe for concurrent use; to be closed with [Targets.Close].
type Targets struct {
	all     []*Target     // the first provider, then the fallbacks; never empty
	headers config.Secret // the extra headers of all targets
	secrets *config.Secrets
	mock    *llmtest.PipeListener // nil: no target needs it
	endMock func()                // stops it
}

// dialFunc opens the connections to providers.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Open makes the clients of the configured providers, and connects to none. mock is the behaviour of the built-in LLM,
// if a target needs it. dial opens connections; nil: TCP. The error is a [*config.Error] that lists every problem.
func Open(cfg *config.Config, dial dialFunc, mock llmtest.Config) (*Targets, error) {
	t := &Targets{headers: cfg.LLM.ExtraHeaders, secrets: cfg.Secrets()}
	all, err := newTargets(cfg, dial, func() (dialFunc, error) {
		if t.mock == nil {
			server, err := llmtest.New(mock)
			if err != nil {
				return nil, err
			}
			t.mock, t.endMock = server.Pipe() // real HTTP, without sockets: it takes no port, and no descriptors
		}
		return t.mock.DialContext, nil
	})
	if err != nil {
		t.Close()
		return nil, config.Invalid(err)
	}
	t.all = all
	return t, nil
}

// At returns a target by its index, less than [Targets.Len]: 0 is the first provider, then come the fallbacks.
func (t *Targets) At(i int) *Target { return t.all[i] }

// Len returns how many targets there are; at least 1.
func (t *Targets) Len() int { return len(t.all) }

// Close closes the clients and stops the built-in LLM.
func (t *Targets) Close() {
	for _, one := range t.all {
		one.Close()
	}
	if t.mock != nil {
		t.endMock()
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
