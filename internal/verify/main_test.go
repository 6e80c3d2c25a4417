package verify

import (
	"errors"
	"fmt"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// verifyAll checks the streams and returns the report, what people see of it, and the exit code.
func verifyAll(b *stagetest.Bench) (report *Report, text string, code int) {
	b.T.Helper()
	var out stagetest.Buffer
	report, err := Run(b.T.Context(), b.JS, b.Cfg, &out)
	if err != nil {
		b.T.Fatal(err)
	}
	report.WriteText(&out)
	err = report.Err()
	if err != nil {
		_, _ = fmt.Fprintf(&out, "stage: %v\n", err)
	}
	return report, out.String(), codeOf(err)
}

// What the command verify exits with.
const (
	codeProven   = 0
	codeViolated = 1
	codeUnproven = 2
)

func codeOf(err error) int {
	if err == nil {
		return codeProven
	}
	if _, ok := errors.AsType[*UnprovenError](err); ok {
		return codeUnproven
	}
	return codeViolated
}
