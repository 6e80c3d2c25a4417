package preview

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
)

// duration says how long the job takes if a call takes that latency on average: one call at
// a time, and with the pool, as far as nothing else limits it. For example, 100,000 calls of
// 1.2 s take 33 h 20 min one at a time, and 1 h 2 min 30 s in 32 slots. A limit on requests
// per minute of 600 makes that 2 h 46 min 40 s. No job is faster than its slowest limit, so
// the estimate is the longest of these times.
func (e *estimate) duration(cfg *config.Config, latency time.Duration) string {
	calls := e.calls
	if cfg.Embeds() { // a call has several texts
		calls = (calls + int64(cfg.Embed.Rows) - 1) / int64(cfg.Embed.Rows)
	}
	alone := float64(calls) * latency.Seconds()
	slots := min(int64(cfg.Pool.Size), max(calls, 1))
	pool, bound := alone/float64(slots), terminal.Plural(cfg.Pool.Size, "slot")
	slower := func(seconds float64, name string) {
		if seconds > pool {
			pool, bound = seconds, name
		}
	}
	if most := cfg.LLM.MaxConcurrency[cfg.LLM.Provider]; most > 0 && most < cfg.Pool.Size {
		slower(alone/float64(most), fmt.Sprintf("STAGE_LLM_MAX_CONCURRENCY of %d", most))
	}
	if rpm := cfg.LLM.RPM; rpm > 0 {
		slower(60*float64(calls)/float64(rpm), fmt.Sprintf("STAGE_LLM_RPM of %d", rpm))
	}
	if tpm := cfg.LLM.TPM; tpm > 0 {
		tokens := e.tokens()
		name := fmt.Sprintf("STAGE_LLM_TPM of %d, without the tokens of replies", tpm)
		if most := cfg.LLM.MaxTokens; most != nil && !cfg.Embeds() {
			tokens += e.calls * int64(*most)
			name = fmt.Sprintf("STAGE_LLM_TPM of %d, with replies of STAGE_LLM_MAX_TOKENS", tpm)
		}
		slower(60*float64(tokens)/float64(tpm), name)
	}
	text := fmt.Sprintf("with calls of %v: %s one call at a time, about %s here (%s)", latency, span(alone), span(pool), bound)
	if cfg.LLM.RPM == 0 {
		text += fmt.Sprintf(", or longer if the provider allows less than %.0f calls a minute", 60*float64(calls)/max(pool, 1e-9))
	}
	return text
}

// span is a time of any length, such as "33 h 20 min", "2 min 5 s" or "1.2 s".
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}
