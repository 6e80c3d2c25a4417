package natsconn

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// TestRotatedCredentialsOfNATSAreKnown rotates each file, and reads it as a reconnect does.
func TestRotatedCredentialsOfNATSAreKnown(t *testing.T) {
	seeds := [2]string{"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY", "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"}
	jwts := [2]string{"eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5In0.first", "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5In0.second"}
	creds := func(i int) string {
		return "-----BEGIN NATS USER JWT-----\n" + jwts[i] + "\n------END NATS USER JWT------\n" +
			"-----BEGIN USER NKEY SEED-----\n" + seeds[i] + "\n------END USER NKEY SEED------\n"
	}
	sign := func(o *nats.Options) error { _, err := o.SignatureCB([]byte("nonce")); return err }
	for _, tt := range []struct {
		variable string
		texts    [2]string
		secrets  [2]string
		read     func(o *nats.Options) error
	}{
		{"STAGE_NATS_TOKEN_FILE", [2]string{"nats-token-1", "nats-token-2"}, [2]string{"nats-token-1", "nats-token-2"}, func(o *nats.Options) error { o.TokenHandler(); return nil }},
		{"STAGE_NATS_PASSWORD_FILE", [2]string{"password-1", "password-2"}, [2]string{"password-1", "password-2"}, func(o *nats.Options) error { o.UserInfo(); return nil }},
		{"STAGE_NATS_CREDS", [2]string{creds(0), creds(1)}, jwts, func(o *nats.Options) error { _, err := o.UserJWT(); return err }},
		{"STAGE_NATS_CREDS", [2]string{creds(0), creds(1)}, seeds, sign},
		{"STAGE_NATS_NKEY", seeds, seeds, sign},
	} {
		file := filepath.Join(t.TempDir(), "file")
		environ := map[string]string{"STAGE_NATS_URL": "nats://host", tt.variable: file}
		if tt.variable == "STAGE_NATS_PASSWORD_FILE" {
			environ["STAGE_NATS_USER"] = "user"
		}
		var cfg *config.Config
		var o nats.Options
		for i, text := range tt.texts {
			stagetest.Must(t, os.WriteFile(file, []byte(text), 0o600))
			if i == 0 {
				var err error
				if cfg, err = (config.Source{Environ: environ}).Load(t.Context(), config.NeedNothing); err != nil {
					t.Fatal(err)
				}
				opts, err := natsOptions(cfg, slog.New(slog.DiscardHandler))
				for _, opt := range opts {
					err = errors.Join(err, opt(&o))
				}
				if err != nil {
					t.Fatalf("%s: %v", tt.variable, err)
				}
			}
			if err := tt.read(&o); err != nil {
				t.Errorf("%s: %v", tt.variable, err)
			}
			if got := string(cfg.Secrets().Redact([]byte(tt.secrets[i]))); got != "[redacted]" {
				t.Errorf("%s: number %d of its secrets becomes %q", tt.variable, i+1, got)
			}
		}
	}
}
