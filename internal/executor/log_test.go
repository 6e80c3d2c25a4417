package executor

import (
	"bytes"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/pool"
)

// A log without debug must not cost anything: a stage handles many rows a second.
func TestTheWayOfARowCostsNothingWhereItIsNotLogged(t *testing.T) {
	var out bytes.Buffer
	e := &Executor{log: logging.New(&out, "info", "json")}
	row, call, reply := &consumer.Row{Seq: 1}, &auditlog.Call{Status: auditlog.CallSuccess}, &consumer.Reply{}
	j := &job{row: row}
	allocs := testing.AllocsPerRun(100, func() {
		e.logQueued(row)
		e.logStarted(j, pool.Attempt{Number: 1})
		e.logCall(j, pool.Attempt{Number: 1}, call, nil)
		e.logFinished(row, reply)
	})
	if allocs != 0 || out.Len() > 0 {
		t.Errorf("%v allocations and %q for a row that is not logged, want none", allocs, out.String())
	}
}
