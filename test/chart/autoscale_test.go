package chart

import (
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/expr-lang/expr"
)

// autoscaler is a rendered ScaledObject, worked out as KEDA does it.
type autoscaler struct {
	formula string
	target  float64
	queries map[string]string // of the Prometheus triggers, by name
	rows    []string          // names of the other triggers: the rows of a queue
}

func newAutoscaler(t *testing.T, values map[string]any) autoscaler {
	t.Helper()
	o, ok := find(t, objects(t, values), "ScaledObject")
	if !ok {
		t.Fatal("no ScaledObject")
	}
	modifiers := o.at("spec", "advanced", "scalingModifiers").(map[string]any)
	a := autoscaler{formula: modifiers["formula"].(string), queries: map[string]string{}}
	var err error
	if a.target, err = strconv.ParseFloat(modifiers["target"].(string), 64); err != nil {
		t.Fatal(err)
	}
	for _, trigger := range list(o.at("spec", "triggers")) {
		name, metadata := trigger["name"].(string), trigger["metadata"].(map[string]any)
		if trigger["type"] == "prometheus" {
			a.queries[name] = metadata["query"].(string)
		} else {
			a.rows = append(a.rows, name)
		}
	}
	return a
}

// wants returns how many replicas Kubernetes wants: it divides the formula's value by the target. The formula is compiled and
// run by the library of KEDA in its version, with KEDA's cast.
func (a autoscaler) wants(t *testing.T, triggers map[string]float64) float64 {
	t.Helper()
	dummies := maps.Clone(triggers)
	for name := range dummies {
		dummies[name] = -1
	}
	program, err := expr.Compile("float("+a.formula+")", expr.Env(dummies))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]any{}
	for name, value := range triggers {
		env[name] = value
	}
	value, err := expr.Run(program, env)
	if err != nil {
		t.Fatal(err)
	}
	return math.Ceil(value.(float64) / a.target)
}

func TestNoReplicaIsAddedWhileTheProviderIsTheLimit(t *testing.T) {
	const (
		owners    = `llm_stage_active{partition="P",pod="P"}`
		throttled = `llm_stage_throttled_seconds_total{pod="0"}`
	)
	// ownedBy are n pods with a partition each, and one that stands by.
	ownedBy := func(n int, more ...line) []line {
		lines := append([]line{{`llm_stage_active{partition="0",pod="standby"}`, 0, 0}, {`llm_stage_paused{pod="0",reason="outage"}`, 0, 0}}, more...)
		for p := range n {
			lines = append(lines, line{strings.ReplaceAll(owners, "P", strconv.Itoa(p)), 1, 0})
		}
		return lines
	}
	slow, fast := line{throttled, 9000, 57}, line{throttled, 9000, 47} // 0.95 and 0.78 of the time
	of := func(l line, stage string) line {
		l.series = strings.Replace(l.series, "}", `,stage="`+stage+`"}`, 1)
		return l
	}
	for _, tt := range []struct {
		name, values string
		lines        []line
		rows         []float64 // of each trigger
		want         float64
	}{
		{"the stage is the limit", "partitions", ownedBy(1, fast), []float64{3000, 400, 0, 100}, 4},
		{"the provider is the limit", "partitions", ownedBy(2, slow), []float64{3000, 400, 0, 100}, 2},
		{"of one owner", "partitions", ownedBy(1, slow), []float64{3000, 400, 0, 100}, 1},
		{"the provider is the limit of a few rows, which fewer replicas can do", "partitions", ownedBy(3, slow), []float64{300, 400, 0, 100}, 1},
		{"the provider is the limit of no rows", "partitions", ownedBy(3, slow), []float64{0, 0, 0, 0}, 0},
		{"another pod is not throttled", "partitions", ownedBy(2, slow, line{`llm_stage_throttled_seconds_total{pod="1"}`, 9000, 0}), []float64{3000, 0, 0, 0}, 2},
		{"the stage is paused", "partitions", append(ownedBy(2, fast)[2:], line{`llm_stage_paused{pod="1",reason="outage"}`, 1, 0}), []float64{3000, 400, 0, 100}, 2},
		{"Prometheus knows nothing yet", "partitions", nil, []float64{3000, 400, 0, 100}, 4},
		{"scaled to zero a moment ago", "partitions", []line{slow}, []float64{3000, 400, 0, 100}, 1},

		{"of several stages none is throttled", "stages", ownedBy(2, of(fast, "map")), []float64{500, 0, 9000, 0}, 10},
		{"of several stages one is throttled", "stages", ownedBy(2, of(slow, "map")), []float64{500, 0, 9000, 0}, 2},
		{"of several stages one is throttled, another has more rows than the replicas do", "stages", ownedBy(2, of(slow, "map")), []float64{2000, 500, 9000, 0}, 3},
		{"of several stages all are throttled", "stages", ownedBy(2, of(slow, "map"), of(slow, "label"), of(slow, "reduce")), []float64{2000, 500, 9000, 7000}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := ciValues(t, tt.values)
			values["fullnameOverride"] = "demo-stage"
			a := newAutoscaler(t, values)
			evaluate, _ := evaluator(t, values)
			triggers := map[string]float64{}
			for name, query := range a.queries {
				switch v := evaluate(alert{Alert: name, Expr: query}, tt.lines); len(v) {
				case 0: // KEDA takes it for 0
					triggers[name] = 0
				case 1:
					triggers[name] = v[0].F
				default: // KEDA refuses it
					t.Fatalf("%s: %v", name, v)
				}
			}
			for i, name := range a.rows {
				triggers[name] = tt.rows[i]
			}
			if got := a.wants(t, triggers); got != tt.want {
				t.Errorf("%s with %v: %g replicas, want %g", a.formula, triggers, got, tt.want)
			}
		})
	}
}

// TestReplicasGrowNoFasterThanTheLimitShows: all at once, they would be there before the first was throttled.
func TestReplicasGrowNoFasterThanTheLimitShows(t *testing.T) {
	for values, want := range map[string]any{
		`{}`: 180.0, `keda: {prometheus: {stepSeconds: 60}}`: 60.0, `keda: {prometheus: {serverAddress: ""}}`: nil,
	} {
		o, _ := find(t, objects(t, merged(ciValues(t, "partitions"), parse(t, values))), "ScaledObject")
		policies := list(o.at("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp", "policies"))
		if want == nil {
			if len(policies) > 0 {
				t.Errorf("%s: %v, want no policy", values, policies)
			}
			continue
		}
		if len(policies) != 1 || policies[0]["periodSeconds"] != want || policies[0]["value"] != 100.0 {
			t.Errorf("%s: %v, want at most twice as many each %g s", values, policies, want)
		}
		if want := "[" + strconv.FormatFloat(want.(float64), 'f', 0, 64) + "s]"; !strings.Contains(o.text, want) {
			t.Errorf("%s: the share is not that of %s", values, want)
		}
	}
}
