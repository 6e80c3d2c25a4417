package security_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/test/permissions"
	"github.com/nats-io/nats.go"
)

// A stage whose rows are the results of another needs the same lists with its own names, and nothing on the subjects of
// the other but, for a redrive, one of its own.
func TestTheListsServeAStageInAChain(t *testing.T) {
	t.Parallel()
	g, err := permissions.Read("../../docs/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("ROWS", "RESULTS", "stage", "second")
	listOf := func(command string) permissions.Grant {
		grant := permissions.Grant{Subscribe: g[permissions.Run].Subscribe}
		for _, entry := range g[command].Publish {
			if entry != "rows.>" {
				grant.Publish = append(grant.Publish, names.Replace(entry))
			}
		}
		slices.Sort(grant.Publish)
		grant.Publish = slices.Compact(grant.Publish)
		return grant
	}
	batched := permissions.Grant{}
	for _, entry := range g[permissions.Batches].Publish {
		batched.Publish = append(batched.Publish, names.Replace(entry))
	}
	var batches []string
	for _, entry := range g[permissions.Batches].Subscribe {
		if strings.HasPrefix(entry, "stage.") {
			entry = names.Replace(entry)
		}
		batches = append(batches, entry)
	}
	status := permissions.Grant{Publish: []string{"llm-stage.second.status"}, Subscribe: []string{"llm-stage.second.status"}, Responses: g[permissions.Status].Responses}
	s := newSite(t, g, map[string]permissions.Grant{
		"second": listOf(permissions.Run).And(batched, permissions.Grant{Subscribe: batches}, status), "setup": {Publish: []string{">"}, Subscribe: []string{">"}},
		"redrive": listOf("redrive").And(g["redrive in a chain"]), "verify": listOf("verify"),
	})
	chain := vars{"STAGE_NAME": "second", "STAGE_INPUT_STREAM": "RESULTS", "STAGE_INPUT_SUBJECT": "results.first.*.rows", "STAGE_RETRY_MAX_ATTEMPTS": "1"}
	s.command("setup", with(chain, vars{"STAGE_CREATE_STREAMS": "true"}), "setup")
	s.rows = oldRows(t, s.nc)
	if s.results, err = s.nc.SubscribeSync("results.second.*.rows"); err != nil {
		t.Fatal(err)
	}
	const n = 3
	for i := range n {
		seq := fmt.Sprint(i + 1)
		if _, err := s.js.PublishMsg(t.Context(), &nats.Msg{Subject: "results.first.0.rows", Data: fmt.Appendf(nil, `{"n":%d}`, i+1), Header: nats.Header{
			streams.HeaderStateID: {"first/ROWS/0/" + seq}, streams.HeaderSourceStream: {"ROWS"}, streams.HeaderSourceSeq: {seq}, streams.HeaderStatus: {"success"},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	var refused atomic.Bool
	llm := newLLM(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if c.Prompt == "Row 2" && refused.CompareAndSwap(false, true) {
			return &llmtest.Step{Status: 400}
		}
		return nil
	}})
	stage := run(t, with(llm, s.as("second"), chain))
	s.await(n)
	if out := s.command("redrive", chain, "redrive"); !strings.Contains(out, "1 rows published again") {
		t.Errorf("redrive: %s", out)
	}
	s.await(1)
	stage.stop()
	noneDenied(t, stage)
	s.command("verify", chain, "verify")
	s.allUsed("redrive", g["redrive in a chain"].Publish)
}
