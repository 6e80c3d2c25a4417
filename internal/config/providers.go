package config

import (
	"fmt"
	"slices"
	"strings"
)

// provider describes what the configuration has to know about one provider.
type provider struct {
	name        string
	baseURL     string                           // the provider's own; "" if the user must give one (azure) or none is used (mock)
	model       string                           // default model
	keyless     bool                             // no key, whatever the base URL
	compatible  bool                             // others serve the same format, often without a key
	ownSettings func(*LLMConfig) *ProviderConfig // its own variables, STAGE_LLM_<PROVIDER>_…
}

// Providers are all that STAGE_LLM_PROVIDER may name, in the order of the documentation.
var Providers = []provider{
	{
		name: "openai", baseURL: "https://api.openai.com/v1", compatible: true,
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.OpenAI },
	},
	{
		name: "openai-responses", baseURL: "https://api.openai.com/v1", compatible: true,
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.OpenAIResponses },
	},
	{
		name: "openrouter", baseURL: "https://openrouter.ai/api/v1",
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.OpenRouter },
	},
	{
		name:        "azure",
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.Azure },
	},
	{
		name: "anthropic", baseURL: "https://api.anthropic.com/v1",
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.Anthropic },
	},
	{
		name: "gemini", baseURL: "https://generativelanguage.googleapis.com/v1beta",
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.Gemini },
	},
	{
		name: "mock", model: "mock", keyless: true,
		ownSettings: func(c *LLMConfig) *ProviderConfig { return &c.Mock },
	},
}

func providerNames() []string {
	names := make([]string, len(Providers))
	for i, p := range Providers {
		names[i] = p.name
	}
	return names
}

func isProvider(name string) bool { return slices.Contains(providerNames(), name) }

func unknownProvider(name string) error {
	return fmt.Errorf("unknown provider %q: it is one of %s", name, strings.Join(providerNames(), ", "))
}

func lookUpProvider(name string) (provider, bool) {
	i := slices.IndexFunc(Providers, func(p provider) bool { return p.name == name })
	if i < 0 {
		return provider{}, false
	}
	return Providers[i], true
}

// ProviderVariables is how the names of the provider's own variables begin.
func ProviderVariables(name string) string {
	return VariablePrefix + "LLM_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
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
	p, ok := lookUpProvider(name)
	if !ok {
		return Endpoint{}
	}
	own := p.ownSettings(c)
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
		e.BaseURL = p.baseURL
	}
	e.BaseURL = strings.TrimRight(e.BaseURL, "/")
	return e
}

// needsKey says whether calls to the endpoint need a key. A server that merely speaks a provider's format often
// needs none.
func (e Endpoint) needsKey() bool {
	p, ok := lookUpProvider(e.Provider)
	return ok && !p.keyless && (!p.compatible || e.BaseURL == p.baseURL)
}
