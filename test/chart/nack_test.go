package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"
)

// nackFields are the fields of NACK's Stream (jetstream.nats.io/v1beta2) that the chart sets, with their names in the API
// of JetStream.
var nackFields = map[string]string{
	"name": "name", "description": "description", "subjects": "subjects", "retention": "retention", "discard": "discard", "storage": "storage",
	"maxBytes": "max_bytes", "maxAge": "max_age", "replicas": "num_replicas", "allowDirect": "allow_direct",
	"allowRollup": "allow_rollup_hdrs", "allowAtomicPublish": "allow_atomic", "maxMsgsPerSubject": "max_msgs_per_subject", "subjectTransform": "subject_transform",
}

// nackDefaults are the values of fields that mean the same as none: those of the API, and those that NACK sets.
var nackDefaults = map[string]any{
	"max_consumers": 0., "max_msgs": 0., "max_msgs_per_subject": 0., "max_age": 0., "compression": "none", "mirror_direct": false,
	"consumer_limits": map[string]any{}, "allow_atomic": false,
}

// streamOf returns a stream of NACK as the API of JetStream has it.
func streamOf(t *testing.T, spec map[string]any) map[string]any {
	t.Helper()
	stream := make(map[string]any)
	for field, value := range spec {
		switch name := nackFields[field]; {
		case field == "preventDelete":
			continue
		case name == "":
			t.Errorf("NACK field %s is not expected", field)
		case field == "maxAge":
			age, err := time.ParseDuration(value.(string))
			if err != nil {
				t.Error(err)
			}
			stream[name] = float64(age)
		case field == "subjectTransform":
			transform := value.(map[string]any)
			stream[name] = map[string]any{"src": transform["source"], "dest": transform["dest"]}
		default:
			stream[name] = value
		}
	}
	return withoutDefaults(stream)
}

func withoutDefaults(stream map[string]any) map[string]any {
	maps.DeleteFunc(stream, func(name string, value any) bool {
		standard, has := nackDefaults[name]
		return has && reflect.DeepEqual(value, standard)
	})
	return stream
}

// The streams that NACK is asked for are those that `stage setup` would create, field by field, and no consumers.
func TestNACKCreatesTheStreamsOfTheStage(t *testing.T) {
	for name, config := range map[string]map[string]any{
		"no settings": {},
		"partitions":  {"STAGE_PARTITIONS": 4, "STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_STREAM_REPLICAS": 3},
		"partitions by two words of a key": {
			"STAGE_PARTITIONS": 3, "STAGE_INPUT_SUBJECT": "a.*.{partition}.b.*", "STAGE_INPUT_STREAM": "IN_A", "STAGE_STREAM_STORAGE": "memory",
		},
		"partitions without a key": {"STAGE_PARTITIONS": 2, "STAGE_INPUT_SUBJECT": "rows.{partition}.all"},
		"one partition of a place": {"STAGE_INPUT_SUBJECT": "rows.{partition}.>"},
		"names and bounds": {
			"STAGE_RESULT_STREAM": "OUT", "STAGE_RESULT_SUBJECT": "out.reviews", "STAGE_RESULT_MAX_BYTES": "20GiB", "STAGE_AUDIT_STREAM": "EVENTS",
			"STAGE_AUDIT_SUBJECT": "events", "STAGE_AUDIT_MAX_BYTES": "512MiB", "STAGE_AUDIT_MAX_AGE": "90m", "STAGE_JOURNAL_MAX_BYTES": 1048576,
			"STAGE_JOURNAL_STREAM": "KEPT",
		},
		"no batches":         {"STAGE_BATCH": false},
		"batches elsewhere":  {"STAGE_BATCH_STREAM": "DEFERRED"},
		"no journal, no age": {"STAGE_JOURNAL": false, "STAGE_AUDIT_MAX_AGE": "0"},
		"lane and bucket":    {"STAGE_LANE": "batch", "STAGE_LANE_STREAM": "BATCHED", "STAGE_RESULT_BUCKET": "large", "STAGE_PARTITIONS": 1},
		"chain":              {"STAGE_NAME": "reduce", "STAGE_INPUT_STREAM": "UP", "STAGE_INPUT_SUBJECT": "results.map.*.rows", "STAGE_RESULT_SUBJECT": "reduced"},
		"chain in a stream":  {"STAGE_NAME": "reduce", "STAGE_INPUT_STREAM": "RESULTS", "STAGE_INPUT_SUBJECT": "results.map.0.rows"},
	} {
		t.Run(name, func(t *testing.T) {
			values := ciValues(t, "minimal")
			values["streams"] = map[string]any{"nack": true}
			of, _ := values["config"].(map[string]any)
			if of == nil {
				of = make(map[string]any)
			}
			maps.Copy(of, config)
			values["config"] = of
			environ := []string{"STAGE_NATS_URL=nats://x"}
			for variable, value := range config {
				environ = append(environ, fmt.Sprintf("%s=%v", variable, value))
			}
			out, errs, err := run(t, environ, "setup", "--print-streams")
			if err != nil {
				t.Fatalf("%v\n%s", err, errs)
			}
			var wanted []map[string]any
			if err := json.Unmarshal([]byte(out), &wanted); err != nil {
				t.Fatal(err)
			}
			want, got := make(map[any]any), make(map[any]any)
			for _, stream := range wanted {
				want[stream["name"]] = withoutDefaults(stream)
			}
			for _, o := range objects(t, values) {
				if o.kind() == "Consumer" {
					t.Errorf("a consumer: %s", o.text)
				}
				if o.kind() == "Stream" {
					spec := o.at("spec").(map[string]any)
					if spec["preventDelete"] != true || o.at("apiVersion") != "jetstream.nats.io/v1beta2" {
						t.Errorf("not kept: %s", o.text)
					}
					got[spec["name"]] = streamOf(t, spec)
				}
			}
			if !reflect.DeepEqual(got, want) {
				g, _ := json.MarshalIndent(fmt.Sprint(got), "", " ")
				w, _ := json.MarshalIndent(fmt.Sprint(want), "", " ")
				t.Errorf("got\n%s\nwant\n%s", g, w)
			}
		})
	}
}

// Stages that share a stream ask for it once, and by the account and domain that are set.
func TestNACKCreatesAStreamOfSeveralStagesOnce(t *testing.T) {
	values := ciValues(t, "stages")
	values["streams"] = map[string]any{"nack": true, "account": "team"}
	values["config"].(map[string]any)["STAGE_NATS_JS_DOMAIN"] = "edge"
	var names []string
	for _, o := range objects(t, values) {
		if o.kind() == "Stream" {
			names = append(names, o.name())
			if o.at("spec", "account") != "team" || o.at("spec", "jsDomain") != "edge" {
				t.Errorf("another place: %s", o.text)
			}
		}
	}
	slices.Sort(names)
	if len(names) < 4 || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("streams %q", names)
	}
}
