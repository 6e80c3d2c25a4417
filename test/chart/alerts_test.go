//go:build long

package chart

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// now is when alerts are evaluated.
var now = time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)

// line is a series whose value has changed at a steady rate, scraped every 30 s for the two hours until now.
type line struct {
	series    string // without job and namespace
	value     float64
	perMinute float64
}

// held is a Prometheus that holds lines, those of the stage and the same ones, far worse, of another stage.
func held(t *testing.T, lines []line) storage.Queryable {
	t.Helper()
	var all []storage.Series
	for _, l := range lines {
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(l.series)
		if err != nil {
			t.Fatal(err)
		}
		own := labels.NewBuilder(metric).Set("job", "demo-stage").Set("namespace", namespace).Labels()
		other := labels.NewBuilder(metric).Set("job", "demo-stage").Set("namespace", "elsewhere").Labels()
		var points, worse []promql.FPoint
		for back := 240; back >= 0; back-- {
			at := now.Add(-time.Duration(back) * 30 * time.Second).UnixMilli()
			points = append(points, promql.FPoint{T: at, F: l.value - l.perMinute*float64(back)/2})
			worse = append(worse, promql.FPoint{T: at, F: 1e6 * float64(300-back)})
		}
		all = append(all, promql.NewStorageSeries(promql.Series{Metric: own, Floats: points}), promql.NewStorageSeries(promql.Series{Metric: other, Floats: worse}))
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			return &matching{SeriesSet: storage.EmptySeriesSet(), left: slices.DeleteFunc(slices.Clone(all), func(s storage.Series) bool {
				return slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) })
			})}
		},
	}}
}

// matching is a set of series.
type matching struct {
	storage.SeriesSet // for the rest of the interface
	left              []storage.Series
	current           storage.Series
}

func (m *matching) Next() bool {
	if len(m.left) == 0 {
		return false
	}
	m.current, m.left = m.left[0], m.left[1:]
	return true
}

func (m *matching) At() storage.Series { return m.current }
func (m *matching) Err() error         { return nil }

// evaluator returns what evaluates the alerts of values, and those by their names.
func evaluator(t *testing.T, values map[string]any) (evaluate func(a alert, lines []line) promql.Vector, byName map[string]alert) {
	t.Helper()
	rules, _ := find(t, objects(t, values), "PrometheusRule")
	byName = map[string]alert{}
	for _, a := range alerts(rules) {
		byName[a.Alert] = a
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	return func(a alert, lines []line) promql.Vector {
		t.Helper()
		query, err := engine.NewInstantQuery(t.Context(), held(t, lines), nil, a.Expr, now)
		if err != nil {
			t.Fatal(err)
		}
		defer query.Close()
		result := query.Exec(context.Background())
		if result.Err != nil {
			t.Fatalf("%s: %v", a.Alert, result.Err)
		}
		vector, err := result.Vector()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(vector)
	}, byName
}

func TestAlertsFireWhenTheyShouldAndOnlyThen(t *testing.T) {
	healthy := []line{
		{`llm_stage_active{partition="0",pod="a"}`, 1, 0},
		{`llm_stage_active{partition="0",pod="b"}`, 0, 0},
		{`llm_stage_paused{reason="credentials",pod="a"}`, 0, 0},
		{`llm_stage_paused{reason="operator",pod="a"}`, 0, 0},
		{`llm_stage_partition_paused{partition="0",pod="a"}`, 0, 0},
		{`llm_stage_pending_rows{partition="0",pod="a"}`, 10000, 0},
		{`llm_stage_pending_rows{partition="0",pod="b"}`, 0, 0},
		{`llm_stage_head_of_line_seconds{partition="0",pod="a"}`, 600, 0},
		{`llm_stage_key_wait_seconds{partition="0",pod="a"}`, 3600, 0},
		{`llm_stage_budget_mode{mode="alone",pod="a"}`, 0, 0},
		{`llm_stage_budget_mode{mode="leader",pod="a"}`, 1, 0},
		{`llm_stage_lane_oldest_batch_seconds{pod="a"}`, 90000, 0},
		{`llm_stage_lane_lapsed_rows_total{pod="a"}`, 300, 0},
		{`llm_stage_lane_adopted_batches_total{pod="a"}`, 1, 0},
		{`llm_stage_lane_batches{pod="a",state="looking"}`, 0, 0},
		{`llm_stage_lane_rows{pod="a",state="submitted"}`, 0, 0},
		{`llm_stage_lane_paused{pod="a"}`, 0, 0},
		{`llm_stage_throttled_seconds_total{pod="a"}`, 9000, 56},
		{`llm_stage_cost_usd_total{model="m",pod="a"}`, 90, 19.0 / 60},
		{`llm_stage_rows_total{partition="0",status="success",pod="a"}`, 9000, 96},
		{`llm_stage_rows_total{partition="0",status="error",pod="a"}`, 100, 4},
	}
	evaluate, byName := evaluator(t, ciValues(t, "full"))
	for name, a := range byName {
		if got := evaluate(a, healthy); len(got) > 0 {
			t.Errorf("%s fires on a healthy stage at its thresholds: %v", name, got)
		}
	}
	for _, tt := range []struct {
		alert string
		line  line   // instead of the healthy one of the same name and labels, or beside them
		label string // of the alert, with its value
		value string
	}{
		{"LLMStageNoOwner", line{`llm_stage_active{partition="0",pod="a"}`, 0, 0}, "partition", "0"},
		{"LLMStageNoOwner", line{`llm_stage_active{partition="1",pod="a"}`, 0, 0}, "partition", "1"},
		{"LLMStagePaused", line{`llm_stage_paused{reason="credentials",pod="a"}`, 1, 0}, "reason", "credentials"},
		{"LLMStageOperatorPause", line{`llm_stage_paused{reason="operator",pod="a"}`, 1, 0}, "partition", ""},
		{"LLMStageOperatorPause", line{`llm_stage_partition_paused{partition="0",pod="a"}`, 1, 0}, "partition", "0"},
		{"LLMStageLag", line{`llm_stage_pending_rows{partition="0",pod="a"}`, 10001, 0}, "partition", "0"},
		{"LLMStageKeyWait", line{`llm_stage_key_wait_seconds{partition="0",pod="a"}`, 3601, 1}, "partition", "0"},
		{"LLMStageBudgetAlone", line{`llm_stage_budget_mode{mode="alone",pod="b"}`, 1, 0}, "pod", "b"},
		{"LLMStageBudgetAlone", line{`llm_stage_budget_mode{mode="alone",pod="a",provider="anthropic"}`, 1, 0}, "pod", "a"},
		{"LLMStageLaneBatchOld", line{`llm_stage_lane_oldest_batch_seconds{pod="a"}`, 90001, 1}, "", ""},
		{"LLMStageLaneLapsed", line{`llm_stage_lane_lapsed_rows_total{pod="a"}`, 300, 1}, "", ""},
		{"LLMStageLaneAdopted", line{`llm_stage_lane_adopted_batches_total{pod="a"}`, 2, 1.0 / 60}, "", ""},
		{"LLMStageLaneAdopted", line{`llm_stage_lane_batches{pod="a",state="looking"}`, 1, 0}, "", ""},
		{"LLMStageLanePaused", line{`llm_stage_lane_paused{pod="a"}`, 1, 0}, "", ""},
		{"LLMStageThrottled", line{`llm_stage_throttled_seconds_total{pod="a"}`, 9000, 58}, "", ""},
		{"LLMStageErrorRate", line{`llm_stage_rows_total{partition="0",status="error",pod="a"}`, 700, 6}, "", ""},
		{"LLMStageCost", line{`llm_stage_cost_usd_total{model="m",pod="a"}`, 90, 21.0 / 60}, "", ""},
	} {
		sick := append(slices.DeleteFunc(slices.Clone(healthy), func(l line) bool { return l.series == tt.line.series }), tt.line)
		got := evaluate(byName[tt.alert], sick)
		if len(got) != 1 || got[0].Metric.Get(tt.label) != tt.value {
			t.Errorf("%s with %s = %g: %v, want it to fire once, with %s=%q", tt.alert, tt.line.series, tt.line.value, got, tt.label, tt.value)
		}
	}
	if got := evaluate(byName["LLMStageNoOwner"], nil); len(got) != 1 {
		t.Errorf("LLMStageNoOwner without any replica: %v, want it to fire", got)
	}
	if got := evaluate(byName["LLMStagePaused"], []line{{`llm_stage_paused{reason="operator",pod="a"}`, 1, 0}}); len(got) != 0 {
		t.Errorf("LLMStagePaused while an operator wants it so: %v", got)
	}
	blocked := line{`llm_stage_head_of_line_seconds{partition="0",pod="a"}`, 601, 1}
	for _, tt := range []struct {
		name      string
		perMinute float64 // rows emitted in the partition; those of another go on
		fires     bool
	}{
		{"no row is emitted", 0, true},
		{"rows of other keys are emitted", 1, false},
	} {
		got := evaluate(byName["LLMStageHeadOfLine"], []line{
			blocked,
			{`llm_stage_rows_total{partition="0",status="success",pod="a"}`, 9000, tt.perMinute},
			{`llm_stage_rows_total{partition="1",status="success",pod="a"}`, 9000, 100},
		})
		if fires := len(got) == 1 && got[0].Metric.Get("partition") == "0"; fires != tt.fires || len(got) > 1 {
			t.Errorf("LLMStageHeadOfLine while %s: %v, want it to fire: %v", tt.name, got, tt.fires)
		}
	}
	if got := evaluate(byName["LLMStageHeadOfLine"], []line{blocked}); len(got) != 1 {
		t.Errorf("LLMStageHeadOfLine before the first row is emitted: %v, want it to fire", got)
	}
	if got := evaluate(byName["LLMStageHeadOfLine"], []line{blocked, {`llm_stage_lane_rows{pod="a",state="submitted"}`, 5, 0}}); len(got) != 0 {
		t.Errorf("LLMStageHeadOfLine while rows are in batches: %v", got)
	}
	quiet := slices.DeleteFunc(slices.Clone(healthy), func(l line) bool { return l.series == `llm_stage_pending_rows{partition="0",pod="a"}` })
	quiet = append(quiet, line{`llm_stage_throttled_seconds_total{pod="c"}`, 9000, 60})
	if got := evaluate(byName["LLMStageThrottled"], quiet); len(got) != 0 {
		t.Errorf("LLMStageThrottled while no row waits: %v", got)
	}
}

// With several stages in a pod an alert is about the one that is sick, and the others neither hide nor cause it.
func TestAlertsNameTheStageOfSeveral(t *testing.T) {
	values := ciValues(t, "stages")
	values["fullnameOverride"] = "demo-stage"
	evaluate, byName := evaluator(t, values)
	healthy := []line{
		{`llm_stage_active{partition="0",pod="a",stage="S"}`, 1, 0},
		{`llm_stage_paused{reason="credentials",pod="a",stage="S"}`, 0, 0},
		{`llm_stage_pending_rows{partition="0",pod="a",stage="S"}`, 10, 0},
		{`llm_stage_paused{reason="operator",pod="a",stage="S"}`, 0, 0},
		{`llm_stage_partition_paused{partition="0",pod="a",stage="S"}`, 0, 0},
		{`llm_stage_head_of_line_seconds{partition="0",pod="a",stage="S"}`, 6, 0},
		{`llm_stage_key_wait_seconds{partition="0",pod="a",stage="S"}`, 6, 0},
		{`llm_stage_budget_mode{mode="alone",pod="a",stage="S"}`, 0, 0},
		{`llm_stage_lane_oldest_batch_seconds{pod="a",stage="S"}`, 9, 0},
		{`llm_stage_lane_lapsed_rows_total{pod="a",stage="S"}`, 300, 0},
		{`llm_stage_lane_adopted_batches_total{pod="a",stage="S"}`, 1, 0},
		{`llm_stage_lane_batches{pod="a",state="looking",stage="S"}`, 0, 0},
		{`llm_stage_lane_rows{pod="a",state="submitted",stage="S"}`, 0, 0},
		{`llm_stage_lane_paused{pod="a",stage="S"}`, 0, 0},
		{`llm_stage_throttled_seconds_total{pod="a",stage="S"}`, 9000, 5},
		{`llm_stage_cost_usd_total{model="m",pod="a",stage="S"}`, 90, 1.0 / 60},
		{`llm_stage_rows_total{partition="0",status="success",pod="a",stage="S"}`, 9000, 96},
		{`llm_stage_rows_total{partition="0",status="error",pod="a",stage="S"}`, 100, 1},
	}
	of := func(stage string, l line) line {
		l.series = strings.Replace(l.series, `stage="S"`, `stage="`+stage+`"`, 1)
		return l
	}
	all := func(sick ...line) (lines []line) {
		for _, stage := range []string{"label", "map", "reduce"} {
			for _, l := range healthy {
				lines = append(lines, of(stage, l))
			}
		}
		for _, s := range sick {
			s = of("map", s)
			lines = append(slices.DeleteFunc(lines, func(l line) bool { return l.series == s.series }), s)
		}
		return lines
	}
	for name, a := range byName {
		if got := evaluate(a, all()); len(got) > 0 {
			t.Errorf("%s fires while all stages are healthy: %v", name, got)
		}
		if !strings.Contains(a.Annotations["summary"], "{{ $labels.stage }}") {
			t.Errorf("%s does not name the stage: %s", name, a.Annotations["summary"])
		}
	}
	stopped := line{`llm_stage_rows_total{partition="0",status="success",pod="a",stage="S"}`, 9000, 0}
	noError := line{`llm_stage_rows_total{partition="0",status="error",pod="a",stage="S"}`, 100, 0}
	for alert, sick := range map[string][]line{
		"LLMStageNoOwner":       {{`llm_stage_active{partition="0",pod="a",stage="S"}`, 0, 0}},
		"LLMStagePaused":        {{`llm_stage_paused{reason="credentials",pod="a",stage="S"}`, 1, 0}},
		"LLMStageOperatorPause": {{`llm_stage_partition_paused{partition="0",pod="a",stage="S"}`, 1, 0}},
		"LLMStageLag":           {{`llm_stage_pending_rows{partition="0",pod="a",stage="S"}`, 10001, 0}},
		"LLMStageHeadOfLine":    {{`llm_stage_head_of_line_seconds{partition="0",pod="a",stage="S"}`, 601, 1}, stopped, noError},
		"LLMStageKeyWait":       {{`llm_stage_key_wait_seconds{partition="0",pod="a",stage="S"}`, 3601, 1}},
		"LLMStageBudgetAlone":   {{`llm_stage_budget_mode{mode="alone",pod="a",stage="S"}`, 1, 0}},
		"LLMStageLaneBatchOld":  {{`llm_stage_lane_oldest_batch_seconds{pod="a",stage="S"}`, 90001, 1}},
		"LLMStageLaneLapsed":    {{`llm_stage_lane_lapsed_rows_total{pod="a",stage="S"}`, 300, 1}},
		"LLMStageLaneAdopted":   {{`llm_stage_lane_batches{pod="a",state="looking",stage="S"}`, 1, 0}},
		"LLMStageLanePaused":    {{`llm_stage_lane_paused{pod="a",stage="S"}`, 1, 0}},
		"LLMStageThrottled":     {{`llm_stage_throttled_seconds_total{pod="a",stage="S"}`, 9000, 58}},
		"LLMStageErrorRate":     {{`llm_stage_rows_total{partition="0",status="error",pod="a",stage="S"}`, 700, 6}},
		"LLMStageCost":          {{`llm_stage_cost_usd_total{model="m",pod="a",stage="S"}`, 90, 21.0 / 60}},
	} {
		got := evaluate(byName[alert], all(sick...))
		if len(got) != 1 || got[0].Metric.Get("stage") != "map" {
			t.Errorf("%s: %v, want it to fire once, for the stage that is sick", alert, got)
		}
	}
	// A stage that no pod runs, as after its removal from the file by mistake.
	gone := slices.DeleteFunc(all(), func(l line) bool { return strings.Contains(l.series, `stage="map"`) })
	if got := evaluate(byName["LLMStageNoOwner"], gone); len(got) != 1 || got[0].Metric.Get("stage") != "map" {
		t.Errorf("LLMStageNoOwner without the stage: %v", got)
	}
	// The rows of another stage that are in batches, or wait, are no excuse and no cause.
	other := append(all(healthy[3], stopped, noError, line{`llm_stage_head_of_line_seconds{partition="0",pod="a",stage="S"}`, 601, 1}), line{`llm_stage_lane_rows{pod="a",state="waiting",stage="reduce"}`, 5, 0})
	if got := evaluate(byName["LLMStageHeadOfLine"], other); len(got) != 1 {
		t.Errorf("LLMStageHeadOfLine while another stage has rows in batches: %v", got)
	}
	throttled := line{`llm_stage_throttled_seconds_total{pod="a",stage="S"}`, 9000, 58}
	if got := evaluate(byName["LLMStageThrottled"], all(throttled, line{`llm_stage_pending_rows{partition="0",pod="a",stage="S"}`, 0, 0})); len(got) != 0 {
		t.Errorf("LLMStageThrottled while only rows of other stages wait: %v", got)
	}
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
