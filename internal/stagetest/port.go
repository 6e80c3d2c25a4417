package stagetest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// freePorts are those that FreePort chooses from. They are below the ports that systems
// give to connections and to listeners that name none: one of those may be another's
// before the test's server listens, and who dials it meanwhile may be connected to
// itself.
const (
	freePortsFrom = 10_000
	freePortsTo   = 30_000
)

// portsGiven are the ports that FreePort has returned in this process.
var portsGiven sync.Map

// FreePort returns a port of the loopback interface on which nothing listens, another one
// each time.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range 1000 {
		port := freePortsFrom + rand.IntN(freePortsTo-freePortsFrom) //nolint:gosec // any will do
		if _, given := portsGiven.LoadOrStore(port, true); given {
			continue
		}
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = l.Close() // nothing was accepted
			return port
		}
	}
	tb.Fatal("no port is free")
	return 0
}
