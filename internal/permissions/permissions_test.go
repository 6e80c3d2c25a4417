package permissions

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats-server/v2/server"
)

// parse reads what is printed as nats-server does, within a user.
func parse(t *testing.T, s Set) *server.Permissions {
	t.Helper()
	var b strings.Builder
	if err := s.WriteConf(&b); err != nil {
		t.Fatal(err)
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString("authorization { users: [{ user: u, password: p\n" + b.String() + "}] }"); err != nil {
		t.Fatalf("%v in:\n%s", err, b.String())
	}
	return opts.Users[0].Permissions
}

func TestBothFormsSayTheSame(t *testing.T) {
	for name, settings := range map[string]map[string]string{
		"defaults":    nil,
		"no requests": {"STAGE_BATCH": "false", "STAGE_CREATE_STREAMS": "false"},
		"odd names":   {"STAGE_INPUT_STREAM": `a"b`, "STAGE_RESULT_SUBJECT": `r\s."q`, "STAGE_AUDIT_SUBJECT": "größe.#.<x"},
		"partitions":  {"STAGE_PARTITIONS": "3", "STAGE_INPUT_SUBJECT": "rows.{partition}.>"},
	} {
		s := Of(load(t, settings))
		var b strings.Builder
		if err := s.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		var said struct {
			Publish   []string `json:"publish"`
			Subscribe []string `json:"subscribe"`
			Responses struct {
				Max     int    `json:"max"`
				Expires string `json:"expires"`
			} `json:"allow_responses"`
		}
		if err := json.Unmarshal([]byte(b.String()), &said); err != nil {
			t.Fatal(err)
		}
		p := parse(t, s)
		if !slices.Equal(p.Publish.Allow, said.Publish) || !slices.Equal(p.Subscribe.Allow, said.Subscribe) || len(said.Publish) == 0 || len(said.Subscribe) == 0 {
			t.Errorf("%s: conf says %v %v, JSON %v %v", name, p.Publish.Allow, p.Subscribe.Allow, said.Publish, said.Subscribe)
		}
		if expires, err := time.ParseDuration(said.Responses.Expires); err != nil || p.Response.Expires != expires || p.Response.MaxMsgs != said.Responses.Max {
			t.Errorf("%s: conf allows responses %+v, JSON %+v", name, p.Response, said.Responses)
		}
	}
}

// Each setting needs what it is about, and nothing else.
func TestASettingNeedsItsOwnSubjectsAlone(t *testing.T) {
	base := map[string]string{"STAGE_CREATE_STREAMS": "false", "STAGE_BATCH": "false", "STAGE_NATS_INBOX_PREFIX": "_INBOX_x"}
	all := func(s Set) []string { return append(s.Publish(), s.Subscribe()...) }
	before := all(Of(load(t, base)))
	for _, c := range []struct {
		settings    map[string]string
		more, fewer string // separated by spaces
	}{
		{nil, "", ""},
		{map[string]string{"STAGE_JOURNAL": "false"}, "", "$JS.API.STREAM.INFO.JOURNAL $JS.API.STREAM.PURGE.JOURNAL $JS.API.DIRECT.GET.JOURNAL journal.stage.0.> $JS.EVENT.ADVISORY.STREAM.UPDATED.JOURNAL"},
		{map[string]string{"STAGE_JOURNAL_STREAM": "J", "STAGE_JOURNAL_AFTER": "0"}, "$JS.API.STREAM.INFO.J $JS.API.STREAM.PURGE.J $JS.API.DIRECT.GET.J $JS.EVENT.ADVISORY.STREAM.UPDATED.J", "$JS.API.STREAM.INFO.JOURNAL $JS.API.STREAM.PURGE.JOURNAL $JS.API.DIRECT.GET.JOURNAL $JS.EVENT.ADVISORY.STREAM.UPDATED.JOURNAL"},
		{map[string]string{"STAGE_NATS_INBOX_PREFIX": ""}, "_INBOX.>", "_INBOX_x.>"},
		{map[string]string{"STAGE_CONTROL": "true"}, "llm-stage.stage.control", ""},
		{map[string]string{"STAGE_BUDGET": "acme"}, "llm-stage.budget.acme.> llm-stage.budget.acme.>", ""},
		{map[string]string{"STAGE_DEDUPE": "inflight"}, "", ""},
		{map[string]string{"STAGE_DEDUPE": "stored"}, "$JS.API.STREAM.INFO.DEDUPE $JS.API.DIRECT.GET.DEDUPE.dedupe.> dedupe.>", ""},
		{map[string]string{"STAGE_DEAD_LETTER_SUBJECT": "poison"}, "$JS.API.STREAM.NAMES poison", ""},
		{map[string]string{"STAGE_BATCH": "true"}, "audit.stage.all.call " +
			"$JS.API.STREAM.INFO.BATCHES $JS.API.STREAM.MSG.GET.BATCHES $JS.API.STREAM.PURGE.BATCHES $JS.API.CONSUMER.CREATE.BATCHES.> $JS.API.CONSUMER.MSG.NEXT.BATCHES.> batches.stage.> " +
			"stage.llm_batch stage.llm_query_batched $SRV.* $SRV.*.llm-stage $SRV.*.llm-stage.* stage.llm_batch.submit stage.llm_batch.get stage.llm_batch.cancel", ""},
		{map[string]string{"STAGE_ORDER": "key"}, "", ""}, // the page of a row reads the results, too
		{map[string]string{"STAGE_ORDER": "key", "STAGE_CREATE_STREAMS": "true"}, "$JS.API.STREAM.CREATE.ROWS $JS.API.STREAM.CREATE.RESULTS $JS.API.STREAM.CREATE.AUDIT $JS.API.STREAM.CREATE.JOURNAL " +
			"$JS.API.CONSUMER.CREATE.ROWS.stage-0.> $JS.API.CONSUMER.DELETE.ROWS.stage-0", ""},
		{map[string]string{"STAGE_LANE_STREAM": "B"}, "$JS.API.STREAM.INFO.B $JS.API.STREAM.MSG.GET.B $JS.API.STREAM.PURGE.B $JS.API.CONSUMER.CREATE.B.> $JS.API.CONSUMER.MSG.NEXT.B.> " +
			"$JS.API.CONSUMER.DELETE.B.> audit.stage.0.batch lane.stage.0.> $JS.EVENT.ADVISORY.STREAM.UPDATED.B", ""},
		{
			map[string]string{"STAGE_INPUT_STREAM": "RESULTS", "STAGE_INPUT_SUBJECT": "results.first.*.rows"},
			"$JS.API.CONSUMER.INFO.RESULTS.stage-0 $JS.API.CONSUMER.MSG.NEXT.RESULTS.stage-0 " +
				"$JS.API.CONSUMER.RESET.RESULTS.stage-0 $JS.API.CONSUMER.UNPIN.RESULTS.stage-0 $JS.ACK.RESULTS.stage-0.>",
			"$JS.API.STREAM.INFO.ROWS $JS.API.CONSUMER.INFO.ROWS.stage-0 $JS.API.CONSUMER.MSG.NEXT.ROWS.stage-0 $JS.API.CONSUMER.RESET.ROWS.stage-0 $JS.API.CONSUMER.UNPIN.ROWS.stage-0 " +
				"$JS.API.STREAM.MSG.GET.ROWS $JS.ACK.ROWS.stage-0.> $JS.EVENT.ADVISORY.STREAM.UPDATED.ROWS",
		},
	} {
		after := all(Of(load(t, base, c.settings)))
		if more, fewer := without(after, before), without(before, after); !slices.Equal(more, strings.Fields(c.more)) || !slices.Equal(fewer, strings.Fields(c.fewer)) {
			t.Errorf("%v: needs in addition %q, want %q; and no more %q, want %q", c.settings, more, strings.Fields(c.more), fewer, strings.Fields(c.fewer))
		}
	}
}

func without(list, other []string) (rest []string) {
	for _, s := range list {
		if !slices.Contains(other, s) {
			rest = append(rest, s)
		}
	}
	return rest
}

// Several stages of a process share its user, who needs what any of them does, each once.
func TestSeveralStagesNeedAllOfTheirSubjectsOnce(t *testing.T) {
	var cfgs []*config.Config
	for _, name := range []string{"one", "two"} {
		cfgs = append(cfgs, load(t, map[string]string{"STAGE_NAME": name}))
	}
	publish := Of(cfgs...).Publish()
	for _, want := range []string{"results.one.0.rows", "results.two.0.rows", "$JS.API.STREAM.INFO.ROWS"} {
		if n := len(publish) - len(without(publish, []string{want})); n != 1 {
			t.Errorf("%s is there %d times, want once", want, n)
		}
	}
}

func TestTheAPIIsWhereTheSettingsSay(t *testing.T) {
	for want, settings := range map[string]map[string]string{
		"$JS.API.":      nil,
		"$JS.edge.API.": {"STAGE_NATS_JS_DOMAIN": "edge"},
		"JS.hub.API.":   {"STAGE_NATS_JS_PREFIX": "JS.hub.API"},
		"JS.a.API.":     {"STAGE_NATS_JS_PREFIX": "JS.a.API."},
	} {
		vars := map[string]string{"STAGE_NATS_URL": "nats://a"}
		maps.Copy(vars, settings)
		all := Of(load(t, vars)).Publish()
		if !slices.Contains(all, want+"STREAM.INFO.ROWS") || !slices.Contains(all, "$JS.ACK.ROWS.stage-0.>") {
			t.Errorf("%s: got %q", want, all)
		}
		if other := slices.IndexFunc(all, func(s string) bool { return strings.Contains(s, "API.") && !strings.HasPrefix(s, want) }); other >= 0 {
			t.Errorf("%s: got %s, too", want, all[other])
		}
	}
}
