package natsconn

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

// optionList collects the options of a connection, and the problems found on the way.
type optionList struct {
	opts     []nats.Option
	problems []error
}

// add tries the option, which reads files of certificates, and checks what it set; check
// may be nil.
func (l *optionList) add(variable string, opt nats.Option, check func(*nats.Options) error) {
	var tried nats.Options
	err := opt(&tried)
	if err == nil && check != nil {
		err = check(&tried)
	}
	if err != nil {
		l.problems = append(l.problems, config.Invalid(fmt.Errorf("%s: %w", variable, err)))
	}
	l.opts = append(l.opts, opt)
}

// natsOptions returns the options for the server of the configuration. Files of secrets,
// credentials and certificates are read again at each reconnect; only the public part of
// an NKey is read once. The error joins a [config.Error] for each file that cannot be
// used, with the name of its variable.
func natsOptions(cfg *config.Config, log *slog.Logger) ([]nats.Option, error) {
	n := &cfg.NATS
	l := &optionList{opts: append(commonOptions(n, log), nats.Name("stage "+cfg.Name))}
	if n.InboxPrefix != "" {
		l.add("STAGE_NATS_INBOX_PREFIX", nats.CustomInboxPrefix(n.InboxPrefix), nil)
	}
	l.addLogin(n, cfg.Secrets(), log)
	l.addTLS(n)
	return l.opts, errors.Join(l.problems...)
}

func (l *optionList) addLogin(n *config.NATSConfig, secrets *config.Secrets, log *slog.Logger) {
	if n.Creds != "" {
		l.add("STAGE_NATS_CREDS", renewing(secrets, nats.UserCredentials(n.Creds)), checkCredentials)
	}
	if n.NKey != "" {
		opt, err := nats.NkeyOptionFromSeed(n.NKey)
		if err != nil {
			opt = func(*nats.Options) error { return err }
		}
		l.add("STAGE_NATS_NKEY", renewing(secrets, opt), nil)
	}
	read := func(variable string, s config.Secret) string {
		secrets.Renew()
		value, err := s.Value()
		if err != nil {
			log.Error("secret not read", slog.String("variable", variable), slog.Any("error", err))
		}
		return value
	}
	if n.Token.IsSet() {
		l.add("STAGE_NATS_TOKEN", nats.TokenHandler(func() string { return read("STAGE_NATS_TOKEN", n.Token) }), nil)
	}
	if n.User != "" {
		l.add("STAGE_NATS_USER", nats.UserInfoHandler(func() (string, string) { return n.User, read("STAGE_NATS_PASSWORD", n.Password) }), nil)
	}
}

// addTLS adds the certificates, and which side begins.
func (l *optionList) addTLS(n *config.NATSConfig) {
	if n.TLSCA != "" {
		l.add("STAGE_NATS_TLS_CA", nats.RootCAs(n.TLSCA), nil)
	}
	if n.TLSCert != "" {
		l.add("STAGE_NATS_TLS_CERT, STAGE_NATS_TLS_KEY", nats.ClientCert(n.TLSCert, n.TLSKey), nil)
	}
	if n.TLSFirst {
		l.add("STAGE_NATS_TLS_FIRST", nats.TLSHandshakeFirst(), nil)
	}
}

// renewing renews the secrets of s whenever the files of opt are read, as they may have
// been rotated.
func renewing(s *config.Secrets, opt nats.Option) nats.Option {
	return func(o *nats.Options) error {
		if err := opt(o); err != nil {
			return err
		}
		if user := o.UserJWT; user != nil {
			o.UserJWT = func() (string, error) {
				s.Renew()
				return user()
			}
		}
		sign := o.SignatureCB
		o.SignatureCB = func(nonce []byte) ([]byte, error) {
			s.Renew()
			return sign(nonce)
		}
		return nil
	}
}

// checkCredentials reads a credentials file as a connection would.
func checkCredentials(o *nats.Options) error {
	const want = "give the path of a file with the user's JWT and its seed, as nsc makes it"
	token, err := o.UserJWT()
	if err == nil {
		_, err = o.SignatureCB([]byte("nonce"))
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s", err, want)
	case token == "":
		return errors.New(want)
	}
	return nil
}
