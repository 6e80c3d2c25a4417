package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
)

// runSummary is the JSON of --summary. Members may be added.
type runSummary struct {
	Stage string    `json:"stage"`
	RunID string    `json:"run_id"`
	Ended time.Time `json:"ended"`

	// Rows has the results that are written, of all runs of the job, and Failed those of
	// them that are errors, by reason.
	Rows    int64                `json:"rows"`
	Failed  int64                `json:"failed"`
	Reasons map[llm.Reason]int64 `json:"reasons"`

	// The rest is about this run.
	Calls           uint64  `json:"calls"`
	CapacityRetries uint64  `json:"capacity_retries"`
	PeakDelayS      float64 `json:"peak_delay_s"`
	auditlog.Pace

	// Tokens are null where no call reported any. CostUSD is null if the cost of a call
	// is unknown; KnownCostUSD then sums the others.
	PromptTokens     *int64   `json:"prompt_tokens"`
	CompletionTokens *int64   `json:"completion_tokens"`
	TotalTokens      *int64   `json:"total_tokens"`
	CostUSD          *float64 `json:"cost_usd"`
	KnownCostUSD     float64  `json:"known_cost_usd"`
}

// checkSummary reports why the summary can't go to a file, before anything is paid for.
func checkSummary(path, input string, results *output) error {
	if path == "" {
		return nil
	}
	if err := checkOut(path, input); err != nil {
		return err
	}
	at, err := filepath.Abs(resolveLinks(path))
	if err == nil && at == results.path {
		return errors.New("that is the file of -o: name another one")
	}
	return err
}

// writeSummary writes the summary into a file. The file takes the place of an earlier one
// at once, so no reader finds half of it.
func (p *Pipeline) writeSummary(path string, sum *auditlog.Summary) error {
	used := p.Stage.Usage.All()
	s := runSummary{
		Stage: p.Stage.Cfg.Name, RunID: p.Stage.RunID(), Ended: time.Now().UTC(),
		Rows: p.written, Failed: p.failed, Reasons: make(map[llm.Reason]int64),
		Calls: sum.Total.Calls, CapacityRetries: sum.CapacityRetries,
		PeakDelayS: sum.PeakDelay.Seconds(), Pace: sum.Pace,
		KnownCostUSD: used.KnownUSD,
	}
	for reason, rows := range p.failures.byReason {
		s.Reasons[reason] = rows.rows
	}
	if u := used.Usage; u != nil {
		s.PromptTokens, s.CompletionTokens = &u.PromptTokens, &u.CompletionTokens
		s.TotalTokens = &u.TotalTokens
	}
	if used.Unpriced == 0 {
		s.CostUSD = &used.KnownUSD
	}
	text, err := json.MarshalIndent(&s, "", "  ")
	if err != nil {
		return err
	}
	temp := path + ".new"
	if err = os.WriteFile(temp, append(text, '\n'), 0o644); err == nil { //nolint:gosec // it has no secrets
		err = os.Rename(temp, path)
	}
	if err != nil {
		return fmt.Errorf("--summary: %w", err)
	}
	return nil
}
