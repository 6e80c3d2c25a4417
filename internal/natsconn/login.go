package natsconn

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

// natsOptions are the options for the server of the configuration. Files of secrets, credentials and certificates are
// read again at each reconnect; only the public part of an NKey stays as it was. The error names the variable of a file
// that is not what it should be.
func natsOptions(cfg *config.Config, log *slog.Logger) ([]nats.Option, error) {
	n := &cfg.NATS
	opts := append(commonOptions(n, log), nats.Name("stage "+cfg.Name))
	var faults []error
	add := func(variable string, opt nats.Option, check func(*nats.Options) error) {
		var tried nats.Options
		err := opt(&tried) // which reads files of certificates
		if err == nil && check != nil {
			err = check(&tried)
		}
		if err != nil {
			faults = append(faults, config.Invalid(fmt.Errorf("%s: %w", variable, err)))
		}
		opts = append(opts, opt)
	}
	if n.InboxPrefix != "" {
		add("STAGE_NATS_INBOX_PREFIX", nats.CustomInboxPrefix(n.InboxPrefix), nil)
	}
	if n.Creds != "" {
		add("STAGE_NATS_CREDS", renewing(cfg.Secrets(), nats.UserCredentials(n.Creds)), checkCredentials)
	}
	if n.NKey != "" {
		opt, err := nats.NkeyOptionFromSeed(n.NKey)
		if err != nil {
			opt = func(*nats.Options) error { return err }
		}
		add("STAGE_NATS_NKEY", renewing(cfg.Secrets(), opt), nil)
	}
	read := func(variable string, s config.Secret) string {
		cfg.Secrets().Renew()
		value, err := s.Value()
		if err != nil {
			log.Error("secret not read", slog.String("variable", variable), slog.Any("error", err))
		}
		return value
	}
	if n.Token.IsSet() {
		add("STAGE_NATS_TOKEN", nats.TokenHandler(func() string { return read("STAGE_NATS_TOKEN", n.Token) }), nil)
	}
	if n.User != "" {
		add("STAGE_NATS_USER", nats.UserInfoHandler(func() (string, string) { return n.User, read("STAGE_NATS_PASSWORD", n.Password) }), nil)
	}
	if n.TLSCA != "" {
		add("STAGE_NATS_TLS_CA", nats.RootCAs(n.TLSCA), nil)
	}
	if n.TLSCert != "" {
		add("STAGE_NATS_TLS_CERT, STAGE_NATS_TLS_KEY", nats.ClientCert(n.TLSCert, n.TLSKey), nil)
	}
	if n.TLSFirst {
		add("STAGE_NATS_TLS_FIRST", nats.TLSHandshakeFirst(), nil)
	}
	return opts, errors.Join(faults...)
}

// renewing makes the secrets known that the files of opt hold whenever they are read: they may have been rotated.
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
