package call

import (
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// target is one model of one provider, and the client that asks it.
type target struct {
	*llm.Client
	endpoint config.Endpoint
	variable string // how the variables of its base URL and its key begin
	models   string // the variable that names its model
	builtIn  bool   // at an address that each process chooses anew
}

// Key identifies what is asked of whom, in all processes alike.
func (t *target) Key(p *llm.Prepared) string {
	whom := p.Target()
	if t.builtIn {
		whom = t.Provider()
	}
	var short [1024]byte // most are hashed without an allocation
	text := append(append(short[:0], whom...), '\n')
	return llm.Hash(append(text, p.Body...))
}

// newTargets makes the clients of the first provider and of the fallbacks, in the order in which they are asked. own is
// the base URL of a provider that has none, the built-in LLM. The error lists every fault.
func newTargets(cfg *config.Config, dial dialFunc, own func(config.Endpoint) (string, error)) ([]*target, error) {
	first := &target{endpoint: cfg.LLM.Endpoint(cfg.LLM.Provider), variable: config.VariablePrefix + "LLM", models: "STAGE_LLM_MODEL"}
	models, targets := []string{cfg.LLM.Model}, []*target{first}
	for _, m := range cfg.Fallback.Models {
		t := &target{endpoint: cfg.LLM.Endpoint(m.Provider), variable: config.ProviderVariables(m.Provider), models: "STAGE_FALLBACKS"}
		if m.Provider == cfg.LLM.Provider {
			t.variable = first.variable
		}
		models, targets = append(models, m.Model), append(targets, t)
	}
	var faults []error
	for i, t := range targets {
		var err error
		if t.endpoint.BaseURL == "" {
			t.endpoint.BaseURL, err = own(t.endpoint)
			t.builtIn = t.endpoint.BaseURL != ""
		}
		if err == nil {
			err = t.open(cfg, models[i], dial)
		}
		if err != nil {
			faults = append(faults, err)
		}
	}
	return targets, errors.Join(faults...)
}

// Check makes the clients as run and process do, and closes them again. It connects to nobody.
func Check(cfg *config.Config) error {
	targets, err := newTargets(cfg, nil, func(config.Endpoint) (string, error) { return "http://localhost/v1", nil })
	for _, t := range targets {
		if t.Client != nil {
			t.Close()
		}
	}
	return err
}

// open makes the client.
func (t *target) open(cfg *config.Config, model string, dial dialFunc) error {
	key, err := t.endpoint.APIKey.Value()
	if err != nil {
		return fmt.Errorf("%s_API_KEY%s: %w", t.variable, config.FileSuffix, err)
	}
	t.Client, err = llm.NewProvider(t.endpoint.Provider, llm.ProviderConfig{
		BaseURL: t.endpoint.BaseURL, APIKey: redact.NewSecret(key), Model: model, AzureAPIVersion: cfg.LLM.AzureAPIVersion,
		ExtraHeaders: cfg.LLM.ExtraHeaders, Redactor: cfg.Redactor(),
		CAFile: cfg.LLM.CAFile, Concurrency: cfg.Pool.Size, Timeout: cfg.LLM.Timeout,
		MaxReplyBytes: int64(cfg.LLM.MaxReplyBytes), AcceptTruncated: cfg.LLM.AcceptTruncated, DialContext: dial,
	})
	if err != nil {
		return t.nameSettings(err, "")
	}
	return nil
}

// reloadKey reads the key and the extra headers again where they are in files: they may have been corrected or rotated.
// Both are replaced together, or neither is: a credential may move from one to the other.
func (t *target) reloadKey(headers config.Secret) error {
	err := t.SetLogin(t.endpoint.APIKey, headers)
	return t.nameSettings(err, config.FileSuffix) // nothing but the content of a file can have changed
}

// nameSettings names the variable, with this suffix, of each setting that the client found wrong.
func (t *target) nameSettings(err error, suffix string) error {
	if err == nil {
		return nil
	}
	variables := map[string]string{
		"Provider": "STAGE_LLM_PROVIDER", "BaseURL": t.variable + "_BASE_URL", "APIKey": t.variable + "_API_KEY", "Model": t.models,
		"CAFile": "STAGE_LLM_CA_FILE", "CAPEM": "STAGE_LLM_CA_FILE", "Timeout": "STAGE_LLM_TIMEOUT", "MaxReplyBytes": "STAGE_LLM_MAX_REPLY_BYTES",
		"Concurrency": "STAGE_POOL_SIZE", "ExtraHeaders": "STAGE_LLM_EXTRA_HEADERS",
	}
	joined, ok := err.(interface{ Unwrap() []error }) // the faults one by one, as llm joined them
	if !ok {
		joined = errors.Join(err).(interface{ Unwrap() []error }) // a list of one
	}
	var named []error
	for _, fault := range joined.Unwrap() {
		if e, ok := errors.AsType[*llm.SettingError](fault); ok && variables[e.Setting] != "" {
			fault = fmt.Errorf("%s%s: %w", variables[e.Setting], suffix, e.Err)
		}
		named = append(named, fault)
	}
	return errors.Join(named...)
}
