package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecretsAreReadAgainFromTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("one\r\n")
	c := loaded(t, "STAGE_LLM_API_KEY_FILE", path)
	for _, want := range []string{"one", "two"} {
		if got, err := c.LLM.APIKey.Value(); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
		write("two\n")
	}
	write("\n")
	if _, err := c.LLM.APIKey.Value(); err == nil || !strings.Contains(err.Error(), path+": the file is empty") {
		t.Errorf("got %v, want that the file is empty", err)
	}
	write(strings.Repeat("x", 70_000))
	if _, err := c.LLM.APIKey.Value(); err == nil || !strings.Contains(err.Error(), "larger than 65536 bytes") {
		t.Errorf("got %v, want that the file is too large", err)
	}
	_, err := load(t, NeedNothing, "STAGE_LLM_API_KEY_FILE", path+"x", "STAGE_NATS_TOKEN_FILE", path, "STAGE_NATS_TOKEN", "t", "STAGE_NATS_URL", "x")
	for i, want := range []string{"STAGE_NATS_TOKEN: both it and STAGE_NATS_TOKEN_FILE", "STAGE_LLM_API_KEY_FILE: " + path + "x: no such file"} {
		if got := problemLines(err)[i]; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q…", got, want)
		}
	}
}

func TestSecretsAreTakenWithoutTheirLastNewline(t *testing.T) {
	c := loaded(t, "STAGE_LLM_ANTHROPIC_API_KEY", "key\n", "STAGE_LLM_PROVIDER", "anthropic")
	if got, err := c.LLM.APIKey.Value(); got != "key" || err != nil {
		t.Errorf("got %q, %v; want key", got, err)
	}
	if got := c.from.origins["STAGE_LLM_API_KEY"]; got != fromEnviron {
		t.Errorf("got origin %s, want that of the provider's own variable", got)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	c := loaded(t, "STAGE_LLM_API_KEY", "hunter2", "STAGE_NATS_URL", "nats://hunter2@host,nats://u:hunter2@host", "STAGE_NATS_PASSWORD", "hunter2", "STAGE_NATS_USER", "u")
	var b strings.Builder
	must(t, WriteConfig(&b, c))
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&b, verb+" "+verb+" "+verb+"\n", c.LLM.APIKey, c.NATS.URL, *c)
	}
	// Nor as unexported fields, of which package fmt calls no method.
	fmt.Fprintf(&b, "%v %+v %#v\n", struct{ c Config }{*c}, struct{ n NATSConfig }{c.NATS}, struct{ s Secret }{c.LLM.APIKey})
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", slog.Any("key", c.LLM.APIKey), slog.Any("url", c.NATS.URL), slog.Any("nats", c.NATS))
	fmt.Fprint(&b, c.Settings())
	if strings.Contains(b.String(), "hunter2") {
		t.Errorf("a secret was printed:\n%s", b.String())
	}
	for _, text := range []string{"nats://a:hunter2@", "http://hunter2@host"} {
		if _, err := load(t, NeedNothing, "STAGE_NATS_URL", text); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want a problem without the secret", text, err)
		}
	}
}
