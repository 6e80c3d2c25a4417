package stagetest

import (
	"testing"

	"github.com/llm-stage/stage/internal/config"
)

// Config reads a configuration from pairs of variable and text, for what needs no provider.
func Config(tb testing.TB, pairs ...string) *config.Config {
	tb.Helper()
	return load(tb, config.NeedNothing, pairs)
}

// ConfigOfCalls is [Config] for what makes calls.
func ConfigOfCalls(tb testing.TB, pairs ...string) *config.Config {
	tb.Helper()
	return load(tb, config.NeedCalls, pairs)
}

func load(tb testing.TB, need config.Need, pairs []string) *config.Config {
	tb.Helper()
	environ := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		environ[pairs[i]] = pairs[i+1]
	}
	cfg, err := config.Source{Environ: environ}.Load(tb.Context(), need)
	if err != nil {
		tb.Fatal(err)
	}
	return cfg
}
