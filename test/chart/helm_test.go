package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	loader3 "helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	engine3 "helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// Names under which the chart is rendered.
const (
	release   = "demo"
	namespace = "llm"
)

// object is one rendered object.
type object struct {
	source string // the template
	text   string
	fields map[string]any
}

func (o object) kind() string { return o.fields["kind"].(string) }

func (o object) name() string {
	return o.fields["metadata"].(map[string]any)["name"].(string)
}

// at returns what is at a path of field names, nil where there is nothing.
func (o object) at(path ...string) any {
	var v any = o.fields
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}

// renderer is one version of Helm.
type renderer struct {
	name     string
	render   func(values map[string]any) (map[string]string, error)
	renderAs func(release string, values map[string]any) (map[string]string, error)
}

// renderers has Helm 3, and with the build tag long Helm 4 as well: see helm4_test.go.
var renderers = []renderer{{"helm3", renderHelm3, renderHelm3As}}

func renderHelm3(values map[string]any) (map[string]string, error) {
	return renderHelm3As(release, values)
}

func renderHelm3As(name string, values map[string]any) (map[string]string, error) {
	chart, err := loader3.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{
		Name: name, Namespace: namespace, Revision: 1, IsInstall: true,
	}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine3.Render(chart, all)
}

// cases are the names of ci/*-values.yaml.
func cases(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(chartDir + "/ci/*-values.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no values in %s/ci: %v", chartDir, err)
	}
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = strings.TrimSuffix(filepath.Base(path), "-values.yaml")
	}
	return names
}

// ciValues reads the values of a case.
func ciValues(t *testing.T, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(chartDir + "/ci/" + name + "-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return fields
}

// objects renders values with Helm 3 and splits the documents, sorted by template.
func objects(t *testing.T, values map[string]any) []object {
	t.Helper()
	files, err := renderHelm3(values)
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for _, source := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(source, ".yaml") {
			continue
		}
		for document := range strings.SplitSeq("\n"+files[source], "\n---\n") {
			if fields := parse(t, document); len(fields) > 0 {
				all = append(all, object{source: source, text: strings.TrimSpace(document), fields: fields})
			}
		}
	}
	return all
}

// find returns the only object of a kind, and false where there is none.
func find(t *testing.T, all []object, kind string) (object, bool) {
	t.Helper()
	var found []object
	for _, o := range all {
		if o.kind() == kind {
			found = append(found, o)
		}
	}
	if len(found) > 1 {
		t.Fatalf("%d objects of kind %s", len(found), kind)
	}
	if len(found) == 0 {
		return object{}, false
	}
	return found[0], true
}

func TestTheRenderedObjectsAreTheGoldens(t *testing.T) {
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for _, o := range objects(t, ciValues(t, name)) {
				fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", o.source, o.text)
			}
			golden(t, "testdata/golden/"+name+".yaml", b.String())
			files, err := renderHelm3(ciValues(t, name))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "testdata/golden/"+name+".notes.txt", files["llm-stage/templates/NOTES.txt"])
		})
	}
}
