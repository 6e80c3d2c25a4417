package security_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	needed "github.com/llm-stage/stage/internal/permissions"
	"github.com/llm-stage/stage/test/permissions"
	"github.com/nats-io/nats-server/v2/server"
)

// printed returns what a stage with some settings is told to need.
func printed(t *testing.T, settings map[string]string) (g permissions.Grant) {
	t.Helper()
	set := needed.Of(configured(t, settings, "http://localhost"))
	g.Publish, g.Subscribe = set.Publish(), set.Subscribe()
	if set.Responses > 0 {
		g.Responses = &server.ResponsePermission{MaxMsgs: 1, Expires: set.Responses}
	}
	return g
}

func wellAnswered(llmtest.Call) *llmtest.Step { return &llmtest.Step{Delay: 10 * time.Millisecond} }

// largelyAnswered answers some rows with more than a message holds.
func largelyAnswered(c llmtest.Call) *llmtest.Step {
	step := wellAnswered(c)
	if c.N%3 == 0 {
		step.Body = fmt.Sprintf(`{"model":"m","choices":[{"message":{"content":%q},"finish_reason":"stop"}]}`, strings.Repeat("long ", 300_000))
	}
	return step
}

// A stage whose user may do what stage setup --print-permissions prints, and nothing else, starts, answers its rows,
// shows them and stops without a single warning. With one permission fewer the log says which.
func TestAStageNeedsNoMoreThanWhatIsPrinted(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings map[string]string
		missing  []string // entries of which a further run each lacks one
	}{
		{"defaults", nil, []string{"$JS.API.STREAM.CREATE.AUDIT"}},
		{"names", map[string]string{
			"STAGE_NAME": "other", "STAGE_INPUT_STREAM": "IN", "STAGE_RESULT_STREAM": "OUT", "STAGE_RESULT_SUBJECT": "out", "STAGE_AUDIT_STREAM": "LOG",
			"STAGE_AUDIT_SUBJECT": "log", "STAGE_JOURNAL_STREAM": "KEPT", "STAGE_NATS_INBOX_PREFIX": "",
		}, []string{"out.other.0.claim"}},
		{"no streams, no batches", map[string]string{"STAGE_CREATE_STREAMS": "false", "STAGE_BATCH": "false"}, []string{"audit.stage.0.row"}},
		{"no journal", map[string]string{"STAGE_CREATE_STREAMS": "false", "STAGE_JOURNAL": "false"}, []string{"$SRV.*"}},
		{"partitions by key", map[string]string{
			"STAGE_PARTITIONS": "2", "STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_ORDER": "key", "STAGE_ORDER_KEY": "field.n",
		}, []string{"llm-stage.stage.replicas"}},
		{"lane", map[string]string{
			"STAGE_LANE": "batch", "STAGE_LANE_WAIT": "1s", "STAGE_LANE_POLL": "1s", "STAGE_LLM_PROVIDER": "mock",
		}, []string{"audit.stage.0.batch"}},
		{"stored replies", map[string]string{"STAGE_DEDUPE": "stored"}, []string{"$JS.API.STREAM.CREATE.DEDUPE"}},
		{"dead letters", map[string]string{"STAGE_DEAD_LETTER_SUBJECT": "dead.rows"}, []string{"$JS.API.STREAM.NAMES"}},
		{"budget, orders", map[string]string{"STAGE_BUDGET": "account", "STAGE_CONTROL": "true"}, []string{"llm-stage.stage.control"}},
		{"ceiling", map[string]string{"STAGE_MAX_COST_USD": "10"}, []string{"$JS.API.CONSUMER.CREATE.AUDIT.>"}},
		{"large results", map[string]string{"STAGE_RESULT_BUCKET": "LARGE"}, []string{"$O.LARGE.C.*", "$JS.API.STREAM.CREATE.OBJ_LARGE"}},
		{"everything", everything, []string{"dedupe.>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			grant, answers := printed(t, c.settings), wellAnswered
			if c.name == "large results" {
				answers = largelyAnswered
			}
			synctest.Test(t, func(t *testing.T) {
				if o := work(t, c.settings, answers, grant, ""); !o.well() || len(o.denied) > 0 || len(o.warned) > 0 {
					t.Errorf("with %+v: %+v", grant, o)
				}
			})
			for _, missing := range c.missing {
				if !slices.Contains(grant.Publish, missing) && !slices.Contains(grant.Subscribe, missing) {
					t.Fatalf("%s is not printed: %+v", missing, grant)
				}
				fewer := permissions.Grant{Publish: drop(grant.Publish, missing), Subscribe: drop(grant.Subscribe, missing), Responses: grant.Responses}
				synctest.Test(t, func(t *testing.T) {
					if o := work(t, c.settings, answers, fewer, missing); !names(o.denied, missing) {
						t.Errorf("without %s the log names %q: %+v", missing, o.denied, o)
					}
				})
			}
		})
	}
}
