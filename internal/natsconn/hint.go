package natsconn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

// withHint adds to the error of the first connection what to do about it, with the
// variable that is likely wrong.
func withHint(n *config.NATSConfig, err error) error { return addHint(n, err, true) }

// withLaterHint is withHint for errors after a connection was made. The settings of how
// TLS begins are right then: a server that says nothing, or hangs up, has gone.
func withLaterHint(n *config.NATSConfig, err error) error { return addHint(n, err, false) }

func addHint(n *config.NATSConfig, err error, first bool) error {
	if err == nil {
		return nil
	}
	if hint := hintOf(n, err, first); hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	return err
}

// hintOf returns what to do about the error, or empty if it is unknown. first: there has
// been no connection yet.
func hintOf(n *config.NATSConfig, err error, first bool) string {
	switch {
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return "renew the credentials of the stage, " + loginOf(n)
	case errors.Is(err, nats.ErrAuthorization):
		if login := loginOf(n); login != "" {
			return "check " + login
		}
		return "the server requires a login: set STAGE_NATS_CREDS, _NKEY, _TOKEN or _USER and _PASSWORD, or name a context of the nats CLI with --context"
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return "somebody has stored a message whose header block is damaged; it counts as a message without headers, and nothing else is affected"
	case errors.Is(err, nats.ErrNkeysNotSupported):
		return "the server does not support NKeys: unset STAGE_NATS_NKEY"
	case n.Creds != "" && strings.Contains(err.Error(), n.Creds): // the file was replaced by one that cannot be read
		return "check STAGE_NATS_CREDS"
	case n.NKey != "" && strings.Contains(err.Error(), n.NKey):
		return "check STAGE_NATS_NKEY"
	}
	if hint := limitHint(err); hint != "" {
		return hint
	}
	if hint := tlsHint(n, err, first); hint != "" {
		return hint
	}
	if errors.Is(err, nats.ErrNoServers) {
		return "check that the server is running and that host and port are correct"
	}
	return ""
}

// limitHint returns what to do about a limit of the server for which it closes a
// connection; empty means that it is none. The library has no errors of its own for
// these, only the server's words.
func limitHint(err error) string {
	switch text := strings.ToLower(err.Error()); {
	case strings.Contains(text, "maximum control line"):
		return "the server's max_control_line is too small for the subjects of the stage: raise it there (the default is 4096)"
	case strings.Contains(text, "maximum payload violation"):
		return "max_payload was lowered while the server runs: results and events that are larger now become errors and are cut"
	case strings.Contains(text, "maximum connections"), strings.Contains(text, "maximum account active connections"):
		return "raise max_connections of the server or the account, or run fewer clients"
	}
	return ""
}

// tlsHint returns what to do about an error of TLS; empty means that it is not one.
// Certificates may expire or be replaced at any time; that both sides do not agree on TLS
// is found out by the first connection.
func tlsHint(n *config.NATSConfig, err error, first bool) string {
	ifFirst := func(hint string) string {
		if !first {
			return ""
		}
		return hint
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "name the CA that signed the server's certificate with STAGE_NATS_TLS_CA"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the server's certificate is for other hosts: change the host in STAGE_NATS_URL, or the certificate"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "renew the server's certificate, or check this machine's clock"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok && n.TLSFirst {
		return ifFirst("the server does not begin with TLS: unset STAGE_NATS_TLS_FIRST, or set handshake_first there")
	}
	// A TLS alert, or the end of a connection whose handshake went well on this side.
	if remote, ok := errors.AsType[*net.OpError](err); ok && remote.Op == "remote error" || errors.Is(err, nats.ErrTLS) {
		return "the server refuses the client's certificate: check STAGE_NATS_TLS_CERT and STAGE_NATS_TLS_KEY"
	}
	if errors.Is(err, nats.ErrSecureConnWanted) {
		return ifFirst("the server has no TLS: unset STAGE_NATS_TLS_CA and STAGE_NATS_TLS_CERT, or set it up there")
	}
	// Both sides wait for the other to begin, until one of them times out.
	if timeout, ok := errors.AsType[net.Error](err); (ok && timeout.Timeout() || errors.Is(err, io.EOF)) && !n.TLSFirst {
		return ifFirst("the server sends nothing: if it expects TLS from the first byte on, set STAGE_NATS_TLS_FIRST")
	}
	return ""
}

// loginOf returns the variables by which the stage logs in, or empty.
func loginOf(n *config.NATSConfig) string {
	switch {
	case n.Creds != "":
		return "STAGE_NATS_CREDS"
	case n.NKey != "":
		return "STAGE_NATS_NKEY"
	case n.Token.IsSet():
		return "STAGE_NATS_TOKEN"
	case n.User != "":
		return "STAGE_NATS_USER and STAGE_NATS_PASSWORD"
	case strings.Contains(n.URL.String(), "@"):
		return "the user in STAGE_NATS_URL"
	case n.TLSCert != "":
		return "STAGE_NATS_TLS_CERT"
	}
	return ""
}
