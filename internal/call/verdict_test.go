package call

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

func TestARowThatAnOutageHeldForTooLongKeepsTheLastStatus(t *testing.T) {
	last := &llm.Error{Provider: "openai", Status: 502, Class: llm.Transient, Reason: llm.ReasonMalformedResponse, Err: errors.New("bad gateway")}
	failure := AsError(fmt.Errorf("%w for 10m0s: %w", pool.ErrOutage, last))
	if failure.Reason != llm.ReasonAPICallFailed || failure.Class != llm.Transient || failure.Provider != "openai" || failure.Status != 502 ||
		!strings.HasSuffix(failure.Error(), "held by an outage for 10m0s: openai: 502") { // the words are about another row's call
		t.Errorf("got %s, %s, %s, %d: %v", failure.Reason, failure.Class, failure.Provider, failure.Status, failure)
	}
}
