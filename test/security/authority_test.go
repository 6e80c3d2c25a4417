package security_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its own certificate, in PEM
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of the test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = template, newKey(t)
	der := a.sign(template, a.key)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = stagetest.File(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key := stagetest.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return key
}

func (a *authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	a.t.Helper()
	der := stagetest.Value(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key))(a.t)
	return der
}

// issue makes a certificate for servers at a host and for clients, and returns the paths of it and its key.
func (a *authority) issue(host string, until time.Time) (cert, key string) {
	a.t.Helper()
	private := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "stage"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der := a.sign(template, private)
	raw := stagetest.Value(x509.MarshalPKCS8PrivateKey(private))(a.t)
	return stagetest.File(a.t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		stagetest.File(a.t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

// guard gives a server a certificate of the authority. mutual wants one of it from clients, too.
func (a *authority) guard(opts *server.Options, host string, until time.Time, mutual bool) {
	a.t.Helper()
	cert, key := a.issue(host, until)
	tc := &server.TLSConfigOpts{CertFile: cert, KeyFile: key, CaFile: a.file, Verify: mutual, Timeout: 5}
	config := stagetest.Value(server.GenTLSConfig(tc))(a.t)
	config.MinVersion = tls.VersionTLS12
	opts.TLS, opts.TLSVerify, opts.TLSConfig, opts.TLSTimeout = true, mutual, config, 5
}

// operator makes accounts and users by JWT, as nsc does.
type operator struct {
	t       *testing.T
	account nkeys.KeyPair
}

// newOperator sets a server up for an operator with one account, which may use JetStream, in memory.
func newOperator(t *testing.T, opts *server.Options) *operator {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := nkeys.CreateOperator()
	must(err)
	system, err := nkeys.CreateAccount()
	must(err)
	account, err := nkeys.CreateAccount()
	must(err)
	resolver := &server.MemAccResolver{}
	for _, kp := range []nkeys.KeyPair{system, account} {
		claims := jwt.NewAccountClaims(public(t, kp))
		if kp == account {
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
		}
		text, err := claims.Encode(root)
		must(err)
		must(resolver.Store(public(t, kp), text))
	}
	claims := jwt.NewOperatorClaims(public(t, root))
	claims.SystemAccount = public(t, system)
	text, err := claims.Encode(root)
	must(err)
	claims, err = jwt.DecodeOperatorClaims(text)
	must(err)
	opts.TrustedOperators, opts.SystemAccount, opts.AccountResolver = []*jwt.OperatorClaims{claims}, public(t, system), resolver
	return &operator{t: t, account: account}
}

func public(t *testing.T, kp nkeys.KeyPair) string {
	t.Helper()
	key := stagetest.Value(kp.PublicKey())(t)
	return key
}

// credentials makes a user and the text of its credentials file. The zero time means never.
func (o *operator) credentials(expires time.Time) []byte {
	o.t.Helper()
	user := stagetest.Value(nkeys.CreateUser())(o.t)
	claims := jwt.NewUserClaims(public(o.t, user))
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	token := stagetest.Value(claims.Encode(o.account))(o.t)
	seed := stagetest.Value(user.Seed())(o.t)
	creds := stagetest.Value(jwt.FormatUserConfig(token, seed))(o.t)
	return creds
}

// newSeed makes an NKey: its public part, and the path of a file with the seed.
func newSeed(t *testing.T) (key, path string) {
	t.Helper()
	kp := stagetest.Value(nkeys.CreateUser())(t)
	seed := stagetest.Value(kp.Seed())(t)
	return public(t, kp), stagetest.File(t, "seed.nk", seed)
}
