package call

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

func TestARowThatAnOutageHeldForTooLongKeepsTheLastError(t *testing.T) {
	last := &llm.Error{Provider: "openai", Status: 502, Class: llm.Transient, Reason: llm.ReasonMalformedResponse, Err: errors.New("bad gateway")}
	fault := AsError(fmt.Errorf("%w for 10m0s: %w", pool.ErrOutage, last))
	if fault.Reason != llm.ReasonAPICallFailed || fault.Class != llm.Transient || fault.Provider != "openai" || fault.Status != 502 ||
		!strings.Contains(fault.Error(), "held by an outage for 10m0s: openai: 502: bad gateway") {
		t.Errorf("got %s, %s, %s, %d: %v", fault.Reason, fault.Class, fault.Provider, fault.Status, fault)
	}
}
