package verify

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// verifyAll checks the streams and returns the report, what people see of it, and the exit code.
func verifyAll(b *stagetest.Bench) (report *Report, text string, code int) {
	b.T.Helper()
	return verifyWith(b, Options{})
}

func verifyWith(b *stagetest.Bench, o Options) (report *Report, text string, code int) {
	b.T.Helper()
	var out stagetest.Buffer
	report, err := RunWith(b.T.Context(), b.JS, b.Cfg, o, &out)
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

// fault is something wrong with a job.
type fault struct {
	name  string
	plant func(j *stagetest.Job)
	want  []string // in what is printed; all violations there are
}

// findsFaults plants each of the faults in a job.
func findsFaults(t *testing.T, faults []fault, job func(*stagetest.Bench) *stagetest.Job, verify func(*stagetest.Bench) (*Report, string, int)) {
	t.Helper()
	bench := stagetest.NewBench(t, nil)
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			j := job(b)
			tt.plant(j)
			b.Store(j)
			report, text, code := verify(b)
			if code != codeViolated || report.Verdict != VerdictViolated {
				t.Errorf("got exit code %d, verdict %s; want %d, %s", code, report.Verdict, codeViolated, VerdictViolated)
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("want %q in:\n%s", want, text)
				}
			}
			if len(report.Violations.ByKind) > len(tt.want) {
				t.Errorf("got more violations than %q:\n%s", tt.want, text)
			}
		})
	}
}
