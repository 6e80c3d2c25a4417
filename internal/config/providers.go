package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm"
)

// unknownProvider is the error for a provider that does not exist.
func unknownProvider(name string) error {
	return fmt.Errorf("unknown provider %q: it is one of %s", name,
		strings.Join(llm.Providers(), ", "))
}

// ProviderVariables returns the prefix of the provider's own variables, without an
// underscore at its end.
func ProviderVariables(name string) string {
	return VariablePrefix + "LLM_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// own returns the settings in the provider's own variables, such as
// STAGE_LLM_AZURE_BASE_URL.
func (c *LLMConfig) own(name string) ProviderConfig {
	i := slices.Index(llm.Providers(), name)
	if i < 0 || i >= len(c.Own) { // a Config that was not loaded has none
		return ProviderConfig{}
	}
	return c.Own[i]
}

// Endpoint is the address of one provider, and what authorises calls to it.
type Endpoint struct {
	Provider string // one of the providers of STAGE_LLM_PROVIDER
	BaseURL  string // with the version path, without a final slash, or "" for the built-in mock
	Auth     string // one of llm.AuthKey, llm.AuthAWS, llm.AuthGoogle, llm.AuthEntra
	APIKey   Secret // for llm.AuthKey; may be unset if the server asks for none
	Region   string // region of a cloud
	Project  string // project of Google Cloud
}

// Endpoint returns the endpoint of the named provider, as the first provider or as a
// fallback. For the first provider STAGE_LLM_BASE_URL, STAGE_LLM_API_KEY and so on take
// precedence over its own variables. It is zero for an unknown name.
func (c *LLMConfig) Endpoint(name string) Endpoint {
	p, ok := llm.LookupProvider(name)
	if !ok {
		return Endpoint{}
	}
	own := c.own(name)
	if name == c.Provider {
		own = ProviderConfig{
			BaseURL: cmp.Or(c.BaseURL, own.BaseURL),
			APIKey:  cmp.Or(c.APIKey, own.APIKey),
			Auth:    cmp.Or(c.Auth, own.Auth),
			Region:  cmp.Or(c.Region, own.Region),
			Project: cmp.Or(c.Project, own.Project),
		}
	}
	e := Endpoint{
		Provider: name, APIKey: own.APIKey, Auth: own.Auth, Region: own.Region,
		Project: own.Project,
	}
	e.BaseURL = strings.TrimRight(cmp.Or(own.BaseURL, p.Address(own.Region)), "/")
	switch {
	case e.Auth != "":
	case e.APIKey.IsSet():
		e.Auth = llm.AuthKey
	default:
		e.Auth = cmp.Or(p.Auth, llm.AuthKey)
	}
	return e
}

// NeedsKey reports whether calls to the endpoint need a key. A compatible server at
// another address, such as Ollama, often needs none, so a missing key is no error there.
func (e Endpoint) NeedsKey() bool {
	p, ok := llm.LookupProvider(e.Provider)
	return ok && e.Auth == llm.AuthKey && !p.Keyless && (!p.Compatible || e.BaseURL == p.BaseURL)
}
