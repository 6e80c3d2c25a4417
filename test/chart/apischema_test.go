//go:build long

package chart

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The oldest Kubernetes that Chart.yaml allows, and the newest there is. The API's description is a file of the module.
var kubernetesVersions = []string{"1.31.14", "1.37.1"}

// Where the descriptions of custom resources are: module, and files in it.
var customResources = map[string][]string{
	"github.com/kedacore/keda/v2@v2.21.0": {"config/crd/bases/keda.sh_scaledobjects.yaml"},
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": {
		"example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
	},
}

// apiSchemas returns a directory with a strict JSON Schema of each kind, as kubeconform looks for them: one directory a
// version. They are made once for each user and kept in the cache, by the versions that they are made of.
func apiSchemas(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Join(kubernetesVersions, "_")
	for module := range customResources {
		key += "_" + filepath.Base(module)
	}
	dir := filepath.Join(cache, "llm-stage", "api-schemas-1", key)
	if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
		return dir
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, version := range kubernetesVersions {
		out := filepath.Join(dir, "v"+version)
		if err := os.MkdirAll(out, 0o755); err != nil {
			t.Fatal(err)
		}
		writeKinds(t, filepath.Join(moduleDir(t, "k8s.io/kubernetes@v"+version), "api/openapi-spec/swagger.json"), out)
		for module, files := range customResources {
			for _, file := range files {
				writeCustomKind(t, filepath.Join(moduleDir(t, module), file), out)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// moduleDir downloads a module, whose sum the checksum database vouches for, and returns where it is.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir() // not a requirement of any go.mod
	out, err := cmd.Output()
	var got struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &got); jsonErr != nil || got.Error != "" || err != nil {
		t.Fatalf("go mod download %s: %v %s %v", module, err, got.Error, jsonErr)
	}
	return got.Dir
}

// writeKinds writes a schema for each kind of the API's description that has a group and a version.
func writeKinds(t *testing.T, path, dir string) {
	t.Helper()
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	readJSON(t, path, &api)
	for _, d := range api.Definitions {
		strict(d)
	}
	for name, d := range api.Definitions {
		for _, kind := range list(d["x-kubernetes-group-version-kind"]) {
			needed := map[string]any{}
			reach(api.Definitions, name, needed)
			writeSchema(t, dir, kind["group"].(string), kind["version"].(string), kind["kind"].(string), map[string]any{
				"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/" + name, "definitions": needed,
			})
		}
	}
}

// writeCustomKind writes a schema for each version of a custom resource.
func writeCustomKind(t *testing.T, path, dir string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Group string
			Names struct{ Kind string }
			// Versions with their schemas.
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema map[string]any }
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		schema := v.Schema.OpenAPIV3Schema
		// The API server knows what metadata is; here it is any object.
		schema["properties"].(map[string]any)["metadata"] = map[string]any{"type": "object"}
		strict(schema)
		writeSchema(t, dir, crd.Spec.Group, v.Name, crd.Spec.Names.Kind, schema)
	}
}

func writeSchema(t *testing.T, dir, group, version, kind string, schema map[string]any) {
	t.Helper()
	suffix := "-" + version
	if group != "" {
		first, _, _ := strings.Cut(group, ".")
		suffix = "-" + first + suffix
	}
	text, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, strings.ToLower(kind+suffix)+".json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// strict forbids fields that a description does not name, which the server drops silently, and translates what
// Kubernetes describes in its own terms to JSON Schema.
func strict(v any) {
	switch v := v.(type) {
	case map[string]any:
		if v["format"] == "int-or-string" || v["x-kubernetes-int-or-string"] == true {
			delete(v, "format")
			delete(v, "anyOf")
			v["type"] = []string{"integer", "string"}
		}
		if v["description"] != nil && strings.HasPrefix(fmt.Sprint(v["description"]), "Quantity is a fixed-point representation") {
			v["type"] = []string{"number", "string"}
		}
		_, open := v["additionalProperties"]
		if properties, ok := v["properties"].(map[string]any); ok && !open && v["x-kubernetes-preserve-unknown-fields"] != true && len(properties) > 0 {
			v["additionalProperties"] = false
		}
		for _, below := range v {
			strict(below)
		}
	case []any:
		for _, below := range v {
			strict(below)
		}
	}
}

// reach collects a definition and everything that it refers to.
func reach(all map[string]map[string]any, name string, found map[string]any) {
	if _, ok := found[name]; ok {
		return
	}
	found[name] = all[name]
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				reach(all, strings.TrimPrefix(ref, "#/definitions/"), found)
			}
			for _, below := range v {
				look(below)
			}
		case []any:
			for _, below := range v {
				look(below)
			}
		}
	}
	look(all[name])
}
