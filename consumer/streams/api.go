package streams

import (
	"runtime"
	"strings"
	"sync"
	"weak"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// apiPrefixes holds the prefixes of [SetAPIPrefix]. All parts of a stage get the
// connection alone, and get another one when it is replaced, so the prefix belongs to the
// connection; the library's has no room for it. An entry goes with its connection.
var apiPrefixes sync.Map // from weak.Pointer[nats.Conn] to string

// APISubjects are the subjects of JetStream: its API and acks.
const APISubjects = "$JS.>"

// DomainPrefix returns the prefix of the API of a JetStream domain: of hub it is
// "$JS.hub.API.".
func DomainPrefix(domain string) string { return "$JS." + domain + ".API." }

// SetAPIPrefix has all of a stage that works over the connection reach the API of
// JetStream below prefix, which may end with a dot or without. It is the prefix of a
// domain ([DomainPrefix]), or one under which an account imports the API of another. An
// empty one is the server's own. It must be called before the connection is used. Safe
// for concurrent use.
func SetAPIPrefix(nc *nats.Conn, prefix string) {
	key := weak.Make(nc)
	if prefix == "" {
		apiPrefixes.Delete(key)
		return
	}
	if _, had := apiPrefixes.Swap(key, strings.TrimSuffix(prefix, ".")+"."); !had {
		runtime.AddCleanup(nc, func(key weak.Pointer[nats.Conn]) { apiPrefixes.Delete(key) }, key)
	}
}

// APIPrefix returns what the subjects of the API of JetStream begin with over a
// connection, with the dot at its end.
func APIPrefix(nc *nats.Conn) string {
	if prefix, set := apiPrefixes.Load(weak.Make(nc)); set {
		return prefix.(string) //nolint:forcetypeassert // SetAPIPrefix stores nothing else
	}
	return jetstream.DefaultAPIPrefix
}

// elsewhere reports whether the streams may be at another server than the one that the
// connection leads to.
func elsewhere(nc *nats.Conn) bool { return APIPrefix(nc) != jetstream.DefaultAPIPrefix }

// JetStream returns a client of JetStream over the connection, which reaches its API
// where the connection says.
func JetStream(nc *nats.Conn, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	return jetstream.NewWithAPIPrefix(nc, APIPrefix(nc), opts...)
}
