// Package score runs kube-score on the rendered chart. It is a module of its own, because kube-score needs an older API
// of Kubernetes than the other tests of the chart.
package score

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zegl/kube-score/config"
	"github.com/zegl/kube-score/domain"
	"github.com/zegl/kube-score/parser"
	"github.com/zegl/kube-score/score"
	"github.com/zegl/kube-score/score/checks"
	"github.com/zegl/kube-score/scorecard"
)

// The goldens are the rendered chart; the other tests of the chart keep them so.
const goldens = "../testdata/golden/*.yaml"

// The README of the chart lists what kube-score finds and is kept.
const readme = "../../../deploy/helm/llm-stage/README.md"

// kept is a line of that list: check, kinds of the objects, and why.
var kept = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([A-Za-z, ]+) \\| (.+) \\|$")

// finding is a check that fails, and the kind of object it fails on.
type finding struct{ check, kind string }

type file struct {
	*os.File
	name string
}

func (f file) Name() string { return f.name }

// findings are those of one golden, with the objects and what kube-score says of them. All checks run, the optional ones too.
func findings(t *testing.T, path string) map[finding][]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	p, err := parser.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := p.ParseFiles([]domain.NamedReader{file{f, path}})
	if err != nil {
		t.Fatal(err)
	}
	run := &config.RunConfiguration{EnabledOptionalTests: map[string]struct{}{}, KubernetesVersion: config.Semver{Major: 1, Minor: 31}, MinReplicasDeployment: 2, MinReplicasHPA: 2}
	all := score.RegisterAllChecks(objects, &checks.Config{}, run)
	for _, c := range all.All() {
		if c.Optional {
			run.EnabledOptionalTests[c.ID] = struct{}{}
		}
	}
	card, err := score.Score(objects, all, run)
	if err != nil {
		t.Fatal(err)
	}
	found := map[finding][]string{}
	for _, object := range *card {
		for _, c := range object.Checks {
			if c.Skipped || c.Grade > scorecard.GradeWarning {
				continue
			}
			key := finding{c.Check.ID, object.TypeMeta.Kind}
			for _, comment := range c.Comments {
				found[key] = append(found[key], fmt.Sprintf("%s: %s: %s %s", object.ObjectMeta.Name, comment.Path, comment.Summary, comment.Description))
			}
		}
	}
	return found
}

// TestWhatKubeScoreFindsIsKeptOnPurpose: a finding that the README does not list fails, and so does a line of the list that
// is no finding any more.
func TestWhatKubeScoreFindsIsKeptOnPurpose(t *testing.T) {
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[finding]bool{}
	for _, line := range kept.FindAllStringSubmatch(string(text), -1) {
		for kind := range strings.SplitSeq(line[2], ", ") {
			key := finding{line[1], kind}
			if listed[key] {
				t.Errorf("README.md of the chart lists %s of %s twice", key.check, key.kind)
			}
			listed[key] = true
		}
	}
	paths, err := filepath.Glob(goldens)
	if err != nil || len(paths) == 0 || len(listed) == 0 {
		t.Fatalf("%d rendered charts, %d findings are listed: %v", len(paths), len(listed), err)
	}
	ever := map[finding]bool{}
	for _, path := range paths {
		for key, texts := range findings(t, path) {
			ever[key] = true
			if !listed[key] {
				t.Errorf("%s: %s of a %s: fix it, or list it in the README.md of the chart with the reason:\n\t%s", filepath.Base(path), key.check, key.kind, strings.Join(texts, "\n\t"))
			}
		}
	}
	for key := range listed {
		if !ever[key] {
			t.Errorf("README.md of the chart lists %s of %s, which kube-score no longer finds: remove it", key.check, key.kind)
		}
	}
}

// TestTheValuesAgainstAFindingWork: where a line of the list names the value that ends the finding, it does.
func TestTheValuesAgainstAFindingWork(t *testing.T) {
	found := findings(t, "../testdata/golden/full.yaml") // has a network policy and an anti-affinity
	for _, check := range []string{"pod-networkpolicy", "deployment-has-host-podantiaffinity"} {
		for _, kind := range []string{"Deployment", "Job"} {
			if texts := found[finding{check, kind}]; len(texts) > 0 {
				t.Errorf("%s of a %s: %s", check, kind, strings.Join(texts, "\n\t"))
			}
		}
	}
}
