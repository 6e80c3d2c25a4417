package stagetest

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// Main runs tests that have a NATS server in a bubble of virtual time. The server's clock
// must tick outside the bubbles, or time stands still.
func Main(m *testing.M) {
	ats.Register()
	m.Run()
}
