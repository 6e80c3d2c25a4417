package cli

import (
	"strings"
	"testing"
)

func TestOnlyATerminalWithoutNoColorIsColoured(t *testing.T) {
	if colourOf(&Env{Stdout: &strings.Builder{}}) {
		t.Error("a file is coloured")
	}
}
