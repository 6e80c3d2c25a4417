package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm"
)

func unknownProvider(name string) error {
	return fmt.Errorf("unknown provider %q: it is one of %s", name, strings.Join(llm.Providers(), ", "))
}

// ProviderVariables returns the prefix of the provider's own variables, without an
// underscore at its end.
func ProviderVariables(name string) string {
	return VariablePrefix + "LLM_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// own returns what the provider's own variables set.
func (c *LLMConfig) own(name string) ProviderConfig {
	i := slices.Index(llm.Providers(), name)
	if i < 0 || i >= len(c.Own) { // a Config that was not loaded has none
		return ProviderConfig{}
	}
	return c.Own[i]
}

// Endpoint is the address and the key of one provider.
type Endpoint struct {
	Provider string // one of the providers of STAGE_LLM_PROVIDER
	BaseURL  string // with the version path, without a slash at the end; "" is the built-in mock
	APIKey   Secret // may be unset where the server asks for none
}

// Endpoint returns the endpoint of the named provider, as the first provider or as a
// fallback. For the first provider STAGE_LLM_BASE_URL and STAGE_LLM_API_KEY take
// precedence over its own variables. It is zero for an unknown name.
func (c *LLMConfig) Endpoint(name string) Endpoint {
	p, ok := llm.LookupProvider(name)
	if !ok {
		return Endpoint{}
	}
	own := c.own(name)
	e := Endpoint{Provider: name, BaseURL: own.BaseURL, APIKey: own.APIKey}
	if name == c.Provider {
		e.BaseURL, e.APIKey = cmp.Or(c.BaseURL, e.BaseURL), cmp.Or(c.APIKey, e.APIKey)
	}
	e.BaseURL = strings.TrimRight(cmp.Or(e.BaseURL, p.BaseURL), "/")
	return e
}

// NeedsKey reports whether calls to the endpoint need a key. A compatible server often
// needs none.
func (e Endpoint) NeedsKey() bool {
	p, ok := llm.LookupProvider(e.Provider)
	return ok && !p.Keyless && (!p.Compatible || e.BaseURL == p.BaseURL)
}
