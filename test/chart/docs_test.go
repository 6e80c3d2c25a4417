package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheDocumentsNameWhatThereIs looks up every variable, metric, message and linked file of the operator's documents.
func TestTheDocumentsNameWhatThereIs(t *testing.T) {
	known := variables(t)
	exposition, err := os.ReadFile(root + "/internal/ops/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	claims, err := os.ReadFile(root + "/consumer/claim.go")
	if err != nil {
		t.Fatal(err)
	}
	variableName := regexp.MustCompile(`STAGE_[A-Z_]*[A-Z]`)
	metricName := regexp.MustCompile(`llm_stage_[a-z_]*[a-z]`)
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, path := range []string{root + "/docs/operations.md", chartDir + "/README.md", chartDir + "/values.yaml", chartDir + "/templates/NOTES.txt"} {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(body)
		for _, name := range variableName.FindAllString(text, -1) {
			if _, ok := known[name]; !ok {
				t.Errorf("%s: the program has no %s", path, name)
			}
		}
		for _, name := range metricName.FindAllString(text, -1) {
			if !strings.Contains(string(exposition), "\n"+name) {
				t.Errorf("%s: the stage serves no %s", path, name)
			}
		}
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), match[1])); err != nil {
				t.Errorf("%s links to %s: %v", path, match[1], err)
			}
		}
	}
	doc, err := os.ReadFile(root + "/docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range []string{"a newer stage has served the partition", "the input stream was re-created", "lost its resume point"} {
		if !strings.Contains(string(doc), message) || !strings.Contains(string(claims), message) {
			t.Errorf("docs/operations.md and the program differ in %q", message)
		}
	}
}
