package auditlog

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

const schemaFile = "../docs/schemas/audit.schema.json"

func schema(tb testing.TB) (*jsonschema.Schema, map[string]any) {
	tb.Helper()
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		tb.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		tb.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("audit", doc); err != nil {
		tb.Fatal(err)
	}
	s, err := c.Compile("audit")
	if err != nil {
		tb.Fatal(err)
	}
	return s, doc.(map[string]any)
}

func validate(s *jsonschema.Schema, event []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(event))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

func TestEventsSatisfyTheSchema(t *testing.T) {
	s, _ := schema(t)
	for name, e := range samples() {
		for _, payloads := range []Payloads{PayloadsFull, PayloadsHash, PayloadsNone} {
			for _, bytesMax := range []int{0, 1} {
				if err := validate(s, e.AppendJSON(nil, payloads, bytesMax)); err != nil {
					t.Errorf("%s, payloads %v, limit %d: %v", name, payloads, bytesMax, err)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := drawEvent.Draw(t, "event").AppendJSON(nil, PayloadsFull, 0)
		if err := validate(s, b); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
	})
}

// A reader who trusts the schema learns of every field: none is written that it does not describe.
func TestTheSchemaDescribesEveryField(t *testing.T) {
	_, doc := schema(t)
	defs := doc["$defs"].(map[string]any)
	for name, e := range samples() {
		kind, _, _ := strings.Cut(name, "_")
		want := properties(defs["head"])
		maps.Copy(want, properties(defs[kind]))
		var got map[string]any
		if err := json.Unmarshal(e.AppendJSON(nil, PayloadsFull, 0), &got); err != nil {
			t.Fatal(err)
		}
		layout := map[string]*layout{"call": callLayout, "row": rowLayout, "run": runLayout, "batch": batchLayout}[kind]
		for _, m := range layout.members {
			if _, written := got[m.name]; !written && m.zero == zeroOmitted {
				delete(want, m.name)
			}
		}
		if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
			t.Errorf("%s: event has  %q\nschema has %q", name, g, w)
		}
	}
}

func properties(def any) map[string]any {
	return maps.Clone(def.(map[string]any)["properties"].(map[string]any))
}

func TestTheSchemaRefusesWhatIsNoEvent(t *testing.T) {
	s, _ := schema(t)
	tests := []struct{ name, sample, old, with string }{
		{"unknown kind", "row_success", `"event":"row"`, `"event":"rows"`},
		{"no kind", "row_success", `"event":"row",`, ``},
		{"other version", "row_success", `"schema_version":1`, `"schema_version":2`},
		{"partition as text", "row_success", `"partition":0`, `"partition":"0"`},
		{"local time", "row_success", `.000000000Z","run_id"`, `.000000000+01:00","run_id"`},
		{"no such day", "row_success", `"time":"2026-11-21`, `"time":"2026-11-31`},
		{"field missing", "row_success", `,"submit_index":40`, ``},
		{"no key, and writing it", "row_key", `"order_key":"customer 17 \"north\""`, `"order_key":null`},
		{"unknown source", "row_success", `"source":"call"`, `"source":"cache"`},
		{"not truncated, and saying so", "row_success", `"source":`, `"truncated":false,"source":`},
		{"status of a row in a call", "call_success", `"status":"success"`, `"status":"error"`},
		{"no element", "call_item", `"item":3`, `"item":-1`},
		{"used, and saying so", "call_unused", `"unused":true`, `"unused":false`},
		{"unknown lane", "call_lane", `"lane":"batch"`, `"lane":"slow"`},
		{"unknown phase of a batch", "batch_intent", `"phase":"intent"`, `"phase":"start"`},
		{"batch without token", "batch_submitted", `"token":"B7QK2M4T",`, ``},
		{"batch of no rows", "batch_submitted", `"rows":10000`, `"rows":0`},
		{"count missing", "batch_expired", `,"dropped":3`, ``},
		{"sequence 0", "call_success", `"sequence":41`, `"sequence":0`},
		{"latency as text", "call_success", `"latency_ms":1203.482`, `"latency_ms":"1.2s"`},
		{"half a usage", "call_success", `"total_tokens":135,`, ``},
		{"no hash", "call_success", `"request_hash":"ab`, `"request_hash":"xy`},
		{"unknown phase", "run_end", `"phase":"end"`, `"phase":"stop"`},
		{"unknown mode", "run_joined", `"mode":"member"`, `"mode":"boss"`},
		{"budget without share", "run_joined", `"share":0.25,`, ``},
		{"summary without total", "run_end", `"total":`, `"totals":`},
		{"usage without model", "run_end", `"model":"mock",`, ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			event := string(samples()[tt.sample].AppendJSON(nil, PayloadsFull, 0))
			if !strings.Contains(event, tt.old) {
				t.Fatalf("%s is not in %s", tt.old, event)
			}
			if err := validate(s, []byte(strings.Replace(event, tt.old, tt.with, 1))); err == nil {
				t.Errorf("%s for %s was let through", tt.with, tt.old)
			}
		})
	}
}
