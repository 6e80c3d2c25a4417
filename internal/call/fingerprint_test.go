package call

import (
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// What the account of a batch is must survive a restart, and change with the key and the address.
func TestAFingerprintIsThatOfTheAccount(t *testing.T) {
	fingerprint := func(vars map[string]string) string {
		t.Helper()
		vars["STAGE_TEMPLATE"] = "x"
		cfg, err := config.Source{Environ: vars}.Load(t.Context(), config.NeedCalls)
		if err != nil {
			t.Fatal(err)
		}
		targets, err := Open(cfg, nil, llmtest.Config{}.Start)
		if err != nil {
			t.Fatal(err)
		}
		defer targets.Close()
		return targets.At(0).Fingerprint()
	}
	openai := func(key, base string) string {
		return fingerprint(map[string]string{"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_MODEL": "m", "STAGE_LLM_API_KEY": key, "STAGE_LLM_BASE_URL": base})
	}
	one := openai("sk-first-secret", "http://a.test/v1")
	if again := openai("sk-first-secret", "http://a.test/v1"); again != one {
		t.Errorf("%s, then %s", one, again)
	}
	for _, other := range []string{openai("sk-second-secret", "http://a.test/v1"), openai("sk-first-secret", "http://b.test/v1")} {
		if other == one {
			t.Error("another account has the same fingerprint")
		}
	}
	mock := map[string]string{"STAGE_LLM_PROVIDER": "mock"}
	if first, second := fingerprint(mock), fingerprint(mock); first != second {
		t.Errorf("the built-in LLM: %s, then %s", first, second)
	}
}
