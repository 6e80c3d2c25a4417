//go:build long

package chart

import (
	"strings"
	"testing"

	lint3 "helm.sh/helm/v3/pkg/lint"
	common4 "helm.sh/helm/v4/pkg/chart/common"
	util4 "helm.sh/helm/v4/pkg/chart/common/util"
	lint4 "helm.sh/helm/v4/pkg/chart/v2/lint"
	loader4 "helm.sh/helm/v4/pkg/chart/v2/loader"
	engine4 "helm.sh/helm/v4/pkg/engine"
)

func init() { renderers = append(renderers, renderer{"helm4", renderHelm4, renderHelm4As}) }

func renderHelm4(values map[string]any) (map[string]string, error) {
	return renderHelm4As(release, values)
}

func renderHelm4As(name string, values map[string]any) (map[string]string, error) {
	chart, err := loader4.Load(chartDir)
	if err != nil {
		return nil, err
	}
	all, err := util4.ToRenderValues(chart, values, common4.ReleaseOptions{
		Name: name, Namespace: namespace, Revision: 1, IsInstall: true,
	}, common4.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine4.Render(chart, all)
}

func TestHelm3And4RenderTheSame(t *testing.T) {
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			first, err := renderHelm3(ciValues(t, name))
			if err != nil {
				t.Fatal(err)
			}
			second, err := renderHelm4(ciValues(t, name))
			if err != nil {
				t.Fatal(err)
			}
			for source := range first {
				if strings.TrimSpace(first[source]) != strings.TrimSpace(second[source]) {
					t.Errorf("%s: %s", source, firstDifference(first[source], second[source]))
				}
			}
			if len(first) != len(second) {
				t.Errorf("Helm 3 renders %d templates, Helm 4 %d", len(first), len(second))
			}
		})
	}
}

// TestHelmLintFindsNothing covers errors and warnings of both versions.
func TestHelmLintFindsNothing(t *testing.T) {
	for _, name := range cases(t) {
		values := ciValues(t, name)
		for _, m := range lint3.All(chartDir, values, namespace, true).Messages {
			if m.Severity > 1 {
				t.Errorf("%s, Helm 3: %s", name, m)
			}
		}
		for _, m := range lint4.RunAll(chartDir, values, namespace).Messages {
			if m.Severity > 1 {
				t.Errorf("%s, Helm 4: %s", name, m)
			}
		}
	}
}
