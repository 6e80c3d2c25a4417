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

// Source returns the source of these settings. A deprecated one is a default of the test,
// as it would be of a command: it has its effect, and no stage warns of it.
func Source(settings map[string]string) config.Source {
	s := config.Source{Environ: make(map[string]string), Defaults: make(map[string]string)}
	for variable, value := range settings {
		if config.IsDeprecated(variable) {
			s.Defaults[variable] = value
		} else {
			s.Environ[variable] = value
		}
	}
	return s
}

func load(tb testing.TB, need config.Need, pairs []string) *config.Config {
	tb.Helper()
	environ := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		environ[pairs[i]] = pairs[i+1]
	}
	cfg, err := Source(environ).Load(tb.Context(), need)
	if err != nil {
		tb.Fatal(err)
	}
	return cfg
}
