package streams

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrServer is returned for a NATS server that can't serve a stage.
var ErrServer = errors.New("the NATS server can't serve a stage")

// checkServer returns [ErrServer] for a server that lacks what the protocol needs.
func checkServer(version string) error {
	if !serverSince(version, 11) {
		return fmt.Errorf("%w: version %s has no pinned consumers: use 2.11 or newer", ErrServer,
			version)
	}
	return nil
}

// versionKey is the entry of a stream's metadata under which the server that answers
// names its version, since 2.11.
const versionKey = "_nats.ver"

// serverVersion is the version of the server that has the streams. It is the one of the
// connection, unless JetStream is reached through another domain or account: the hub of a
// leaf node may be newer than the leaf, or older. Then the answer about a stream names
// it. It is empty if it is unknown or hidden.
func serverVersion(nc *nats.Conn, info *jetstream.StreamInfo) string {
	switch {
	case !elsewhere(nc):
		return nc.ConnectedServerVersion()
	case info == nil:
		return ""
	}
	return cmp.Or(info.Config.Metadata[versionKey], "2.10")
}

// serverSince reports whether a server has version 2.minor or newer; one that hides its
// version is taken to have it.
func serverSince(version string, minor int) bool {
	var major, have int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &have) // a part that can't be read is not counted
	return n < 2 || major > 2 || major == 2 && have >= minor
}
