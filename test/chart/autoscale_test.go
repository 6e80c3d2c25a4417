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
