// Package hostile_test sends what strangers may send: rows whose headers, subjects and bodies no ordinary client would
// write, but which the server stores. Each run is a whole stage in virtual time with the wiring that ships, a kill and a
// second process that takes over, and then everything that reads the streams.
package hostile_test

import (
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestMain(m *testing.M) { stagetest.Main(m) }
