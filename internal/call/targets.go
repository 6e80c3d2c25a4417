package call

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/identity"
)

// Targets are the first provider and the fallbacks, and the built-in LLM that serves
// those whose provider is mock and has no base URL. They are safe for concurrent use, and
// must be closed with [Targets.Close].
type Targets struct {
	all     []*Target     // the first provider, then the fallbacks; never empty
	headers config.Secret // the extra headers of all targets
	ids     *identity.Identities
	secrets *config.Secrets
	endMock func() // stops the built-in LLM; nil if no target needs one
}

var errNoMock = errors.New("there is no built-in LLM here: set STAGE_LLM_BASE_URL to the address " +
	"of one")

// dialFunc opens the connections to providers.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// MockLLM starts the built-in LLM, which answers for the provider mock where it has no
// base URL. It returns how to connect to it, and how to stop it. Whoever starts a stage
// decides which LLM that is, so that a stage imports none.
type MockLLM func() (dial func(ctx context.Context, network, address string) (net.Conn, error),
	stop func(), err error)

// Open makes the clients of the configured providers, and connects to none. mock is
// called at most once, when a target needs it. Without a mock such a target is an error.
// dial opens connections; the default is TCP. The error is a [*config.Error] that lists
// every problem.
func Open(cfg *config.Config, dial dialFunc, mock MockLLM) (*Targets, error) {
	t := &Targets{
		headers: cfg.LLM.ExtraHeaders, ids: newIdentities(cfg, dial), secrets: cfg.Secrets(),
	}
	var dialMock dialFunc
	all, err := newTargets(cfg, t.ids, dial, func() (_ dialFunc, err error) {
		switch {
		case mock == nil:
			return nil, errNoMock
		case dialMock == nil:
			dialMock, t.endMock, err = mock()
		}
		return dialMock, err
	})
	if err != nil {
		t.Close()
		return nil, config.Invalid(err)
	}
	t.all = all
	return t, nil
}

// At returns a target by its index, less than [Targets.Len]: 0 is the first provider,
// then come the fallbacks.
func (t *Targets) At(i int) *Target { return t.all[i] }

// Len returns how many targets there are; at least 1.
func (t *Targets) Len() int { return len(t.all) }

// Close closes the clients, ends what renews credentials, and stops the built-in LLM.
func (t *Targets) Close() {
	for _, one := range t.all {
		one.Close()
	}
	t.ids.Close()
	if t.endMock != nil {
		t.endMock()
	}
}

// ReloadKey reloads the API keys and extra headers that are in files, and reports whether
// some have changed. A target whose key or headers can't be read keeps both; the error lists
// them all.
func (t *Targets) ReloadKey() (changed bool, err error) {
	t.secrets.Renew()
	problems := make([]error, len(t.all))
	for i, one := range t.all {
		var other bool
		other, problems[i] = one.reloadKey(t.headers)
		changed = changed || other
	}
	return changed, errors.Join(problems...)
}

// keysEvery is the time between two looks at the files of keys. A key that was replaced is
// in use within ten seconds.
const keysEvery = 5 * time.Second

// WatchKeys has keys and extra headers that are in files be used soon after the files have
// changed, until ctx ends. After each such change it calls then. What can't be read is
// logged once, and the old ones stay in use. It logs likewise when the credential of a
// cloud is not renewed.
func (t *Targets) WatchKeys(ctx context.Context, log *slog.Logger, then func()) {
	inFile := slices.ContainsFunc(t.all,
		func(one *Target) bool { return one.endpoint.APIKey.InFile() }) || t.headers.InFile()
	identified := slices.ContainsFunc(t.all,
		func(one *Target) bool { return one.endpoint.Auth != llm.AuthKey })
	if !inFile && !identified {
		return
	}
	for _, one := range t.all {
		if text := one.identity(); text != "" {
			log.Info("calls are authorised by a cloud's identity", slog.String("identity", text))
		}
	}
	ticker := time.NewTicker(keysEvery)
	defer ticker.Stop()
	for files, clouds := "", ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if inFile {
			changed, err := t.ReloadKey()
			if changed {
				log.Info("key reloaded, its file has changed")
				then()
			}
			if isNews(err, &files) {
				log.Warn("key not reloaded, keeping the old one", slog.Any("error", err))
			}
		}
		if err := errors.Join(t.ids.Problems()...); isNews(err, &clouds) {
			log.Warn("credential not renewed, trying again", slog.Any("error", err))
		}
	}
}

// isNews reports whether an error differs from the one before. last has the text of that,
// or is empty if there was none, and gets the new text.
func isNews(err error, last *string) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	news := text != "" && text != *last
	*last = text
	return news
}

// replaced reports whether the key that a call was made with has been replaced since. It
// reads the files again first: a provider may refuse the old key before the next look at
// them.
func (t *Targets) replaced(target int, x *llm.Exchange) bool {
	_, _ = t.ReloadKey() // a key that can't be read is as good as the old one
	return t.At(target).Outdated(x)
}
