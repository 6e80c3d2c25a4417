package llm

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain leaves out the clock of patterns that backtrack: it ends by itself some seconds after the last match.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}
