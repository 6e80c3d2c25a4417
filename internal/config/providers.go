package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/llm-stage/stage/llm"
)

func unknownProvider(name string) error {
	return fmt.Errorf("unknown provider %q: it is one of %s", name, strings.Join(llm.Providers(), ", "))
}

// ProviderVariables is how the names of the provider's own variables begin.
func ProviderVariables(name string) string {
	return VariablePrefix + "LLM_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// own returns what the provider's own variables set, those that begin as [ProviderVariables] says.
func (c *LLMConfig) own(name string) *ProviderConfig {
	prefix := strings.TrimPrefix(ProviderVariables(name), VariablePrefix+"LLM_") + "_"
	for field, value := range reflect.ValueOf(c).Elem().Fields() {
		own, ok := reflect.TypeAssert[*ProviderConfig](value.Addr())
		if _, tag, _ := strings.Cut(field.Tag.Get("env"), "prefix="); ok && tag == prefix {
			return own
		}
	}
	return &ProviderConfig{} // a test checks that each has some
}

// Endpoint is where and how one provider is called.
type Endpoint struct {
	Provider string // one of the providers of STAGE_LLM_PROVIDER
	BaseURL  string // with the version path, without a slash at the end; "" is the built-in mock
	APIKey   Secret // may be unset where the server asks for none
}

// Endpoint returns how the named provider is called, as the first provider or as a fallback. For the first provider
// STAGE_LLM_BASE_URL and STAGE_LLM_API_KEY come before its own variables. A name that is no provider gives the zero
// Endpoint.
func (c *LLMConfig) Endpoint(name string) Endpoint {
	p, ok := llm.LookupProvider(name)
	if !ok {
		return Endpoint{}
	}
	own := c.own(name)
	e := Endpoint{Provider: name, BaseURL: own.BaseURL, APIKey: own.APIKey}
	if name == c.Provider {
		if c.BaseURL != "" {
			e.BaseURL = c.BaseURL
		}
		if c.APIKey.IsSet() {
			e.APIKey = c.APIKey
		}
	}
	if e.BaseURL == "" {
		e.BaseURL = p.BaseURL
	}
	e.BaseURL = strings.TrimRight(e.BaseURL, "/")
	return e
}

// needsKey says whether calls to the endpoint need a key. A server that merely speaks a provider's format often
// needs none.
func (e Endpoint) needsKey() bool {
	p, ok := llm.LookupProvider(e.Provider)
	return ok && !p.Keyless && (!p.Compatible || e.BaseURL == p.BaseURL)
}
