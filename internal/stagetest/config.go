package stagetest

import (
	"testing"

	"github.com/llm-stage/stage/internal/config"
)

// Config reads a configuration from pairs of variable and text, for what needs no provider.
func Config(t testing.TB, pairs ...string) *config.Config {
	t.Helper()
	return load(t, config.NeedNothing, pairs)
}

// ConfigOfCalls is [Config] for what makes calls.
func ConfigOfCalls(t testing.TB, pairs ...string) *config.Config {
	t.Helper()
	return load(t, config.NeedCalls, pairs)
}

func load(t testing.TB, need config.Need, pairs []string) *config.Config {
	t.Helper()
	environ := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		environ[pairs[i]] = pairs[i+1]
	}
	cfg, err := config.Source{Environ: environ}.Load(t.Context(), need)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
