package chart

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// targetLabels are those that Prometheus gives every series of a pod, by the PodMonitor.
var targetLabels = []string{"job", "namespace", "pod", "container", "instance"}

// series maps the names of series to the values of their labels: series → label → values.
type series map[string]map[string][]string

// parseSeries reads an exposition in Prometheus' text format.
func parseSeries(t *testing.T, text string) series {
	t.Helper()
	found := series{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		selector := line[:strings.LastIndex(line, " ")]
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(selector)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name := metric.Get("__name__")
		if found[name] == nil {
			found[name] = map[string][]string{}
		}
		metric.Range(func(l labels.Label) { found[name][l.Name] = append(found[name][l.Name], l.Value) })
	}
	return found
}

// start runs the program in the background until the test ends and returns the lines of one of its streams.
func start(t *testing.T, dir string, stderr bool, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command(stageBinary, args...)
	cmd.Dir, cmd.Env = dir, []string{"STAGE_LLM_API_KEY=word"}
	pipe := cmd.StdoutPipe
	if stderr {
		pipe = cmd.StderrPipe
	}
	out, err := pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGKILL) //nolint:errcheck // it may have ended
		cmd.Wait()                          //nolint:errcheck // killed
	})
	return bufio.NewScanner(out)
}

// runningStage serves /metrics after rows of every sort have gone through: answered, refused for capacity and retried,
// failed, paid for. With several, it is one of two stages in a process.
func runningStage(t *testing.T, several bool) series {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("rows.jsonl", strings.Repeat(`{"text":"one"}`+"\n", 30)+"no row\n")
	write("prices.yaml", "small: {input: 1, cached: 0.5, output: 2}\n")
	llm := start(t, dir, false, "mockllm", "--addr", "127.0.0.1:0", "--latency", "1ms", "--errors", "429=.3", "--seed", "7")
	if !llm.Scan() {
		t.Fatal("mockllm prints no address")
	}
	args := []string{
		"run", "--http-addr", "127.0.0.1:0", "--template", "{{ row.text }}", "--llm-base-url", llm.Text(),
		"--llm-model", "small", "--prices-file", "prices.yaml", "--pool-size", "4", "--log-format", "json",
	}
	if several {
		write("stages.yaml", "- name: stage\n- name: other\n")
		args = append(args, "--stages", "stages.yaml")
	}
	logs := start(t, dir, true, args...)
	var address string
	for address == "" && logs.Scan() {
		var line struct{ Msg, Dashboard string }
		if err := json.Unmarshal(logs.Bytes(), &line); err != nil {
			t.Fatalf("log: %s", logs.Text())
		}
		address, _, _ = strings.Cut(line.Dashboard, "stages/")
	}
	go func() { // the program must not wait for its log to be read; ends with the program
		for logs.Scan() {
		}
	}()
	command := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), stageBinary, args...)
		cmd.Dir, cmd.Env = dir, []string{}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("stage %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	command("load", "rows.jsonl")
	results := start(t, dir, false, "results", "--follow")
	for range 31 {
		if !results.Scan() {
			t.Fatal("results end before the last row")
		}
	}
	// A result is stored, and seen here, a moment before the program has the server's answer and counts it.
	for {
		served := scrape(t, address+"metrics")
		if counted := served["llm_stage_rows_total"]["status"]; slices.Contains(counted, "success") && slices.Contains(counted, "error") {
			return served
		}
	}
}

func scrape(t *testing.T, url string) series {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return parseSeries(t, string(body))
}

// query is one query, with where it is and the labels that are used beside it, as in a legend.
type query struct {
	where, expr string
	labels      []string
}

// queries are all of dashboard, alerts and autoscaler.
func queries(t *testing.T) []query {
	t.Helper()
	var found []query
	var dashboard struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	readJSON(t, chartDir+"/dashboards/llm-stage.json", &dashboard)
	fill := strings.NewReplacer("$__rate_interval", "5m", "$job", "j", "$namespace", "n", "$stage", ".*")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			found = append(found, query{panel.Title, fill.Replace(target.Expr), braced(target.LegendFormat, "{{", "}}")})
		}
	}
	for _, v := range dashboard.Templating.List {
		if args, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			expr, label, _ := strings.Cut(strings.TrimSuffix(args, ")"), ", ")
			found = append(found, query{"variable " + v.Name, fill.Replace(expr), []string{label}})
		}
	}
	rules, ok := find(t, objects(t, ciValues(t, "full")), "PrometheusRule")
	if !ok {
		t.Fatal("no alerts")
	}
	for _, rule := range alerts(rules) {
		var used []string
		for _, text := range rule.Annotations {
			used = append(used, braced(text, "$labels.", " ")...)
		}
		found = append(found, query{rule.Alert, rule.Expr, used})
	}
	for name, expr := range newAutoscaler(t, ciValues(t, "partitions")).queries {
		found = append(found, query{"trigger " + name, expr, nil})
	}
	return found
}

// alert is one rule of a PrometheusRule.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(rules object) []alert {
	text, _ := json.Marshal(rules.at("spec", "groups"))
	var groups []struct{ Rules []alert }
	_ = json.Unmarshal(text, &groups)
	var all []alert
	for _, g := range groups {
		all = append(all, g.Rules...)
	}
	return all
}

// braced returns the words between two marks.
func braced(text, open, end string) (words []string) {
	for {
		_, rest, ok := strings.Cut(text, open)
		if !ok {
			return words
		}
		word, after, _ := strings.Cut(rest, end)
		words, text = append(words, strings.Trim(word, " }")), after
	}
}

// TestDashboardAndAlertsQueryWhatTheStageServes looks up every series, label and label value on a running stage. What
// only appears when a term ends, with a shared budget or with a batch lane, is looked up in the program's own golden.
// One stage in a process has no label stage, which is then empty to the queries; several have it everywhere.
func TestDashboardAndAlertsQueryWhatTheStageServes(t *testing.T) {
	for name, several := range map[string]bool{"one stage": false, "several": true} {
		t.Run(name, func(t *testing.T) { checkQueries(t, several) })
	}
}

func checkQueries(t *testing.T, several bool) {
	served := runningStage(t, several)
	text, err := os.ReadFile(root + "/internal/ops/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	byGolden := parseSeries(t, string(text))
	for _, rare := range []string{
		"llm_stage_terms_total", "llm_stage_budget_members", "llm_stage_budget_share", "llm_stage_budget_rate", "llm_stage_budget_mode",
		"llm_stage_lane_batches", "llm_stage_lane_rows", "llm_stage_lane_paused", "llm_stage_lane_oldest_batch_seconds",
		"llm_stage_lane_adopted_batches_total", "llm_stage_lane_lapsed_rows_total",
	} {
		if served[rare] == nil {
			served[rare] = byGolden[rare]
			if several {
				served[rare]["stage"] = []string{"stage", "other"}
			}
		}
	}
	for _, q := range queries(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(q.expr)
		if err != nil {
			t.Errorf("%s: %v", q.where, err)
			continue
		}
		known := map[string]bool{}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			selector, ok := node.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			have, ok := served[selector.Name]
			if !ok {
				t.Errorf("%s: the stage serves no %s", q.where, selector.Name)
				return nil
			}
			for label := range have {
				known[label] = true
			}
			for _, m := range selector.LabelMatchers {
				if m.Name == "__name__" || slices.Contains(targetLabels, m.Name) {
					continue
				}
				if !slices.ContainsFunc(have[m.Name], m.Matches) && (len(have[m.Name]) > 0 || !m.Matches("")) {
					t.Errorf("%s: no series %s has %s", q.where, selector.Name, m)
				}
			}
			return nil
		})
		used := q.labels
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			switch node := node.(type) {
			case *parser.AggregateExpr:
				used = append(used, node.Grouping...)
			case *parser.BinaryExpr:
				if node.VectorMatching != nil {
					used = append(used, node.VectorMatching.MatchingLabels...)
				}
			}
			return nil
		})
		for _, label := range used {
			if !known[label] && !slices.Contains(targetLabels, label) && (several || label != "stage") {
				t.Errorf("%s: %s has no label %q, only %v", q.where, q.expr, label, slices.Sorted(maps.Keys(known)))
			}
		}
	}
}

// TestEveryMetricIsOnTheDashboard finds what was added to the program and forgotten there.
func TestEveryMetricIsOnTheDashboard(t *testing.T) {
	text, err := os.ReadFile(root + "/internal/ops/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	dashboard, err := os.ReadFile(chartDir + "/dashboards/llm-stage.json")
	if err != nil {
		t.Fatal(err)
	}
	for name := range parseSeries(t, string(text)) {
		if strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count") {
			continue // of a histogram, whose buckets are there
		}
		if !strings.Contains(string(dashboard), name+"{") {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// TestEachAlertHasARunbook checks the links to docs/operations.md.
func TestEachAlertHasARunbook(t *testing.T) {
	doc, err := os.ReadFile(root + "/docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, _ := find(t, objects(t, ciValues(t, "full")), "PrometheusRule")
	all := alerts(rules)
	if len(all) != 14 {
		t.Errorf("%d alerts, want 14", len(all))
	}
	for _, a := range all {
		link := a.Annotations["runbook_url"]
		if _, anchor, _ := strings.Cut(link, "#"); anchor != strings.ToLower(a.Alert) || !strings.Contains(link, "/docs/operations.md#") {
			t.Errorf("%s links to %s", a.Alert, link)
		}
		if !strings.Contains(string(doc), fmt.Sprintf("### %s\n", a.Alert)) {
			t.Errorf("docs/operations.md has no runbook for %s", a.Alert)
		}
		for _, name := range []string{"summary", "description"} {
			if a.Annotations[name] == "" {
				t.Errorf("%s has no %s", a.Alert, name)
			}
		}
	}
}
