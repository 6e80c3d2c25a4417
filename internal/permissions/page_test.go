package permissions

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/golden"
)

// page are the settings of each section of docs/permissions.md, besides those of every section.
var page = map[section]map[string]string{
	sectionRun:        nil,
	sectionBatches:    {"STAGE_BATCH": "true"},
	sectionStatus:     nil,
	sectionRows:       nil,
	sectionControl:    {"STAGE_CONTROL": "true"},
	sectionCreate:     {"STAGE_CREATE_STREAMS": "true", "STAGE_BATCH": "true"},
	sectionPartitions: {"STAGE_PARTITIONS": "2", "STAGE_INPUT_SUBJECT": "rows.{partition}.>"},
	sectionBudget:     {"STAGE_BUDGET": "account"},
	sectionLane:       {"STAGE_LANE": "batch"},
	sectionOrder:      {"STAGE_ORDER": "key"},
	sectionDead:       {"STAGE_DEAD_LETTER_SUBJECT": "dead.rows"},
	sectionDedupe:     {"STAGE_DEDUPE": "stored"},
	sectionBucket:     {"STAGE_RESULT_BUCKET": "LARGE"},
	sectionMaxAge:     {"STAGE_RESULT_MAX_AGE": "720h"},
	sectionMedia:      {"STAGE_MESSAGES_FIELD": "messages"},
	sectionErase:      nil,
	sectionCeiling:    {"STAGE_MAX_COST_USD": "10", "STAGE_PRICES_FILE": "testdata/prices.yaml"},
}

// load reads a configuration of these settings.
func load(t *testing.T, settings ...map[string]string) *config.Config {
	t.Helper()
	environ := make(map[string]string)
	for _, s := range settings {
		maps.Copy(environ, s)
	}
	cfg, err := config.Source{Environ: environ}.Load(t.Context(), config.NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// blockOf returns the block of a section: what a stage needs with its settings, but for what every stage needs.
func blockOf(t *testing.T, s section) string {
	t.Helper()
	always := map[string]string{"STAGE_CREATE_STREAMS": "false", "STAGE_BATCH": "false", "STAGE_NATS_INBOX_PREFIX": "_INBOX_stage"}
	base := ofSections(load(t, always), sectionRun)
	var b strings.Builder
	if s == sectionErase {
		set := OfErase(load(t, always))
		set.write(&b, "")
		return b.String()
	}
	if s == sectionRun {
		b.WriteString("authorization {\n  users: [\n    {\n      user: stage\n      password: change-me\n      permissions: {\n")
		base.write(&b, "        ")
		b.WriteString("      }\n    }\n  ]\n}\n")
		return b.String()
	}
	own := ofSections(load(t, always, page[s]), sectionRun, s)
	for i := range own.groups {
		g := &own.groups[i]
		g.publish = slices.DeleteFunc(g.publish, func(subject string) bool { return slices.Contains(base.Publish(), subject) })
		g.subscribe = slices.DeleteFunc(g.subscribe, func(subject string) bool { return slices.Contains(base.Subscribe(), subject) })
	}
	own.write(&b, "")
	return b.String()
}

// ofSections is [Of] a configuration by the rules of some sections alone.
func ofSections(cfg *config.Config, sections ...section) Set {
	var some []rule
	for _, r := range rules {
		if slices.Contains(sections, r.section) {
			some = append(some, r)
		}
	}
	return ofRules(some, cfg)
}

// The blocks of docs/permissions.md are what the rules say; go test -update writes them.
func TestThePageSaysWhatTheRulesSay(t *testing.T) {
	const path = "../../docs/permissions.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	current := string(text)
	for _, r := range rules {
		if _, ok := page[r.section]; !ok {
			t.Errorf("a rule is of section %q, for which this test has no settings", r.section)
		}
	}
	for s := range page {
		block := regexp.MustCompile(fmt.Sprintf("(?ms)(^##+ %s\n.*?^```nats\n).*?(^```$)", regexp.QuoteMeta(string(s))))
		if found := block.FindString(current); found == "" || strings.Count(found, "\n## ")+strings.Count(found, "\n### ") > 0 {
			t.Errorf("%s has no block of nats under the heading %q", path, s)
			continue
		}
		current = block.ReplaceAllStringFunc(current, func(found string) string {
			parts := block.FindStringSubmatch(found)
			return parts[1] + blockOf(t, s) + parts[2]
		})
	}
	golden.Check(t, path, current)
}
