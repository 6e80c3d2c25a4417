package natsconn

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestHintsAboutHowTLSBeginsAreForFirstConnections(t *testing.T) {
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, tt := range []struct {
		name         string
		n            config.NATSConfig
		err          error
		first, later string
	}{
		{"hung up", config.NATSConfig{}, io.EOF, "set STAGE_NATS_TLS_FIRST", ""},
		{"silent", config.NATSConfig{}, timeout, "set STAGE_NATS_TLS_FIRST", ""},
		{"no TLS", config.NATSConfig{}, nats.ErrSecureConnWanted, "unset STAGE_NATS_TLS_CA", ""},
		{"no TLS at first", config.NATSConfig{TLSFirst: true}, fmt.Errorf("%w: %w", nats.ErrTLS, tls.RecordHeaderError{}), "unset STAGE_NATS_TLS_FIRST", ""},
		{"unknown CA", config.NATSConfig{}, x509.UnknownAuthorityError{}, "with STAGE_NATS_TLS_CA", "with STAGE_NATS_TLS_CA"},
		{"expired", config.NATSConfig{}, x509.CertificateInvalidError{Reason: x509.Expired}, "renew the server's certificate", "renew the server's certificate"},
		{"login", config.NATSConfig{User: "u"}, nats.ErrAuthorization, "check STAGE_NATS_USER", "check STAGE_NATS_USER"},
		{"damaged headers", config.NATSConfig{}, nats.ErrBadHeaderMsg, "counts as a message without headers", "counts as a message without headers"},
		{"not there", config.NATSConfig{}, nats.ErrNoServers, "check that the server is running", "check that the server is running"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := fmt.Errorf("connect: %w", tt.err)
			for want, got := range map[string]error{"first " + tt.first: withHint(&tt.n, err), "later " + tt.later: withLaterHint(&tt.n, err)} {
				_, hint, _ := strings.Cut(want, " ")
				if hint == "" && got.Error() != err.Error() || !strings.Contains(got.Error(), hint) {
					t.Errorf("%s: got %q", want, got)
				}
			}
		})
	}
}

// lines passes on each line that a logger writes.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestALostConnectionIsNoMatterOfTLS(t *testing.T) {
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	url := strings.Replace(srv.URL(), "nats://", "nats://"+srv.Token()+"@", 1)
	cfg, err := config.Source{Environ: map[string]string{"STAGE_NATS_URL": url}}.Load(t.Context(), config.NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	logged := make(lines, 100)
	conn := stagetest.Value(Connect(t.Context(), cfg, "", slog.New(slog.NewTextHandler(logged, nil))))(t)
	defer conn.Close()
	srv.Stop()
	if line := <-logged; !strings.Contains(line, "connection to NATS lost") || strings.Contains(line, "TLS") {
		t.Errorf("log: %s", line)
	}
	if why := conn.Down(); !strings.HasPrefix(why, "not connected to NATS") || strings.Contains(why, "TLS") {
		t.Errorf("down: %s", why)
	}
}
