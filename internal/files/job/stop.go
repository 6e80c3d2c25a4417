package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/terminal"
)

// announceStop waits for the end of ctx. If a signal has ended it, it prints above the
// bar what the stop waits for. The log would say the same, but on a terminal it only has
// warnings.
func (p *Pipeline) announceStop(ctx context.Context) {
	<-ctx.Done()
	if _, ok := errors.AsType[*stopping.InterruptError](context.Cause(ctx)); !ok {
		return
	}
	waits := p.Stage.WaitsFor()
	terminal.PrintLine(p.progress.Writer(p.Stderr),
		"stopping: %s; press Ctrl-C again to stop at once", waits.Text(waits.Since))
}

// stopProgress returns the text beside the bar during a stop.
func stopProgress(r *status.Report) string {
	return fmt.Sprintf("STOPPING: %d in flight, %d to store, at most %s", r.Stop.Calls,
		r.Stop.Results, max(0, r.Stop.By.Sub(r.Time)).Round(time.Second))
}
