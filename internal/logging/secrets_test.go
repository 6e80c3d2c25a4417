package logging

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestSecretsOfTheProcessAreInNoLogLine logs what libraries might put into their errors.
func TestSecretsOfTheProcessAreInNoLogLine(t *testing.T) {
	const seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
	creds := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(creds, []byte("-----BEGIN USER NKEY SEED-----\n"+seed+"\n------END USER NKEY SEED------\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := map[string]string{
		"STAGE_LLM_API_KEY": "sk-in-no-log", "STAGE_LLM_EXTRA_HEADERS": `{"x-gateway":"Bearer gateway-token"}`, "STAGE_LLM_EXTRA_BODY": `{"api_key":"body-secret"}`,
		"STAGE_NATS_URL": "nats://user:url-password@host", "STAGE_NATS_CREDS": creds, "HTTPS_PROXY": "http://user:proxy-password@host",
		"OTEL_EXPORTER_OTLP_HEADERS": "Authorization: Bearer otel-token-1,x-key=otel%2Dtoken-2", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:otel-password@host",
	}
	cfg := stagetest.Value(config.Source{Environ: environ}.Load(t.Context(), config.NeedNothing))(t)
	var out bytes.Buffer
	log := NewConfigured(cfg, &out)
	words := "sk-in-no-log gateway-token body-secret url-password proxy-password otel-token-1 otel-token-2 otel-password " + seed
	for word := range strings.FieldsSeq(words) {
		log.Warn("failed", slog.Any("error", fmt.Errorf("401 %s: %q", word, `\"`+word)))
		if err := cfg.Secrets().RedactError(fmt.Errorf("parse %s: no", word)); err.Error() != "parse [redacted]: no" {
			t.Errorf("the error is %v", err)
		}
		if strings.Contains(out.String(), word) {
			t.Errorf("%s is in the log: %s", word, &out)
		}
		out.Reset()
	}
	// The log's own words stay.
	if log.Info("started", slog.String("provider", "openai")); !strings.Contains(out.String(), `"msg":"started","provider":"openai"`) {
		t.Errorf("got %s", &out)
	}
}
