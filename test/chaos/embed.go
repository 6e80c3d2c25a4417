package main

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// With -embed the rows are texts, embedRows of which share a call.
const (
	embedRows       = 8
	embedDimensions = 4
)

// embedEnviron is what makes a stage embed its rows.
func (p *plan) embedEnviron() []string {
	if !p.embed {
		return nil
	}
	return []string{"STAGE_TASK=embed", "STAGE_EMBED_ROWS=" + strconv.Itoa(embedRows), "STAGE_EMBED_DIMENSIONS=" + strconv.Itoa(embedDimensions)}
}

// embedScript is script for a call with several texts: it fails where it would fail for
// one of them, and its texts count only where it is answered.
func (m *model) embedScript(c llmtest.Call) *llmtest.Step {
	var texts []int
	for _, text := range c.Inputs {
		n, err := strconv.Atoi(strings.TrimPrefix(text, "Row "))
		if err != nil {
			return &llmtest.Step{Status: http.StatusBadRequest}
		}
		texts = append(texts, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range texts {
		m.see(n)
	}
	if slices.ContainsFunc(texts, func(n int) bool { return kindOf(n) == refused }) {
		return &llmtest.Step{Status: http.StatusBadRequest}
	}
	for _, n := range texts {
		if _, before := m.faulty[n]; !before && fails(n) != 0 {
			m.faulty[n] = struct{}{}
			return &llmtest.Step{Status: fails(n)}
		}
	}
	for _, n := range texts {
		m.calls[n]++
	}
	if slices.ContainsFunc(texts, func(n int) bool { return n%slowEvery == 11 }) {
		return &llmtest.Step{Delay: slowCall}
	}
	return nil
}
