package call

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm/batchapi"
)

// CancelBatch asks the provider to cancel a batch, by the key of the configuration. The
// error is a [config.Error] where that is missing, or where the provider knows no such
// batch: it was submitted with the key of another account.
func CancelBatch(ctx context.Context, cfg *config.Config, provider, model, id string) error {
	err := withBatches(cfg, provider, model, //nolint:contextcheck // opening makes no connection
		func(api batchapi.API) error { return api.Cancel(ctx, id) })
	if errors.Is(err, errBuiltIn) {
		return config.Invalid(errors.New("the built-in LLM works in the process of the stage, " +
			"which alone can cancel it: stop the stage with --cancel-batches"))
	}
	if errors.Is(err, batchapi.ErrNotFound) {
		return config.Invalid(fmt.Errorf("%s does not know %s under this key, so another account "+
			"has submitted it: give the key of that account (%w)", provider, id, err))
	}
	return err
}

// DeleteBatch deletes the files of a batch at its provider, or the batch itself if its
// results live in it, by the key of the configuration. It is no error if they are gone
// already. The error is a [config.Error] where the key is missing.
func DeleteBatch(ctx context.Context, cfg *config.Config, provider, model, id string) error {
	err := withBatches(cfg, provider, model, func(api batchapi.API) error { //nolint:contextcheck // opening makes no connection
		b, err := api.Get(ctx, id)
		if err == nil && !b.State.Over() {
			return fmt.Errorf("%s still works on it: cancel it first", provider)
		}
		if err == nil {
			err = api.Delete(ctx, b)
		}
		return err
	})
	if errors.Is(err, batchapi.ErrNotFound) || errors.Is(err, errBuiltIn) {
		return nil // the batches of the built-in LLM ended with its process
	}
	return err
}

// errBuiltIn says that a batch belongs to the built-in LLM.
var errBuiltIn = errors.New("it is a batch of the built-in LLM")

// withBatches calls f with the Batch API of a provider.
func withBatches(cfg *config.Config, provider, model string, f func(batchapi.API) error) error {
	t := &Target{
		endpoint: cfg.LLM.Endpoint(provider), variable: config.ProviderVariables(provider),
		models: "STAGE_LLM_MODEL",
	}
	if provider == cfg.LLM.Provider {
		t.variable = config.VariablePrefix + "LLM"
	}
	switch {
	case t.endpoint.BaseURL == "" && provider == "azure":
		return config.Invalid(fmt.Errorf("%s_BASE_URL: it was submitted to azure: give the base "+
			"URL of that resource", t.variable))
	case t.endpoint.BaseURL == "":
		return errBuiltIn
	case t.endpoint.NeedsKey() && !t.endpoint.APIKey.IsSet():
		return config.Invalid(fmt.Errorf("%s_API_KEY: it was submitted to %s: give the key of "+
			"that account", t.variable, provider))
	}
	ids := newIdentities(cfg, nil)
	defer ids.Close()
	if err := t.open(cfg, ids, model, nil); err != nil {
		return config.Invalid(err)
	}
	defer t.Close()
	api, err := batchapi.New(t.Client)
	if err != nil {
		return err
	}
	return f(api)
}
