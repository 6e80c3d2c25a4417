package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// variable is the program's description of one of its variables.
type variable struct {
	Default   string   `json:"default"`
	Type      []string `json:"type"`
	Enum      []string `json:"enum"`
	Pattern   string   `json:"pattern"`
	WriteOnly bool     `json:"writeOnly"`
}

// variables are those of the program by name.
func variables(t *testing.T) map[string]variable {
	t.Helper()
	var schema struct {
		Properties map[string]variable `json:"properties"`
	}
	if err := json.Unmarshal([]byte(variableSchema(t)), &schema); err != nil {
		t.Fatal(err)
	}
	return schema.Properties
}

func variableSchema(t *testing.T) string {
	t.Helper()
	out, errs, err := run(t, nil, "config", "--schema")
	if err != nil {
		t.Fatalf("stage config --schema: %v\n%s", err, errs)
	}
	return out
}

// podSpecs are the pod specs of all objects that have one, with a name for messages.
func podSpecs(t *testing.T, all []object) map[string]map[string]any {
	t.Helper()
	specs := make(map[string]map[string]any)
	for _, o := range all {
		if spec, ok := o.at("spec", "template", "spec").(map[string]any); ok {
			specs[o.kind()+"/"+o.name()] = spec
		}
	}
	return specs
}

// pod lays out the files of a pod below a directory and returns the environment of one container, with its paths
// pointing there: what a kubelet does, with a placeholder for every Secret and ConfigMap that the chart does not make.
type pod struct {
	dir  string
	maps map[string]map[string]any // ConfigMaps of the chart, by name
	spec map[string]any
}

// seed belongs to nobody.
const seed = "SUAGMJH5XLGZKQQWAWKRZJIGMOU4HPFUYLXJMXOO5NLFEO2OOQJ5LPRDPM"

// contents are the data of the objects that the cases refer to and the chart does not make.
var contents = map[string]string{
	"template.jinja": "{{ row.text }}", "messages.yaml": "[{role: user, content: a}]", "reviews.jinja": "{{ row.text }}", "lookup.yaml": "words: []", "words.json": "{}",
	"response-schema.json": "{}", "prices.yaml": "m: {input: 1, output: 2}",
	"seed": seed,
	"stage.creds": "-----BEGIN NATS USER JWT-----\ne30.e30.e30\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n",
}

func list(v any) []map[string]any {
	items, _ := v.([]any)
	out := make([]map[string]any, 0, len(items))
	for _, item := range items {
		out = append(out, item.(map[string]any))
	}
	return out
}

// mount writes the files of one volume.
func (p pod) mount(t *testing.T, volume map[string]any, path string) {
	t.Helper()
	if err := os.MkdirAll(p.dir+path, 0o755); err != nil {
		t.Fatal(err)
	}
	projected, ok := volume["projected"].(map[string]any)
	if !ok {
		if _, isSecret := volume["secret"]; isSecret {
			p.write(t, path, "token", "word")
		}
		return
	}
	for _, source := range list(projected["sources"]) {
		for _, from := range []string{"configMap", "secret"} {
			object, ok := source[from].(map[string]any)
			if !ok {
				continue
			}
			for _, item := range list(object["items"]) {
				key := item["key"].(string)
				text, ok := contents[key]
				if !ok {
					text = "word"
				}
				if data := p.maps[object["name"].(string)]; data != nil {
					if text, ok = data[key].(string); !ok {
						t.Errorf("ConfigMap %s has no key %s", object["name"], key)
					}
				}
				p.write(t, path, item["path"].(string), text)
			}
		}
	}
}

func (p pod) write(t *testing.T, path, name, text string) {
	t.Helper()
	if name == "stages.yaml" { // has paths in it
		text = strings.ReplaceAll(text, `"/etc/stage/`, `"`+p.dir+`/etc/stage/`)
	}
	if err := os.WriteFile(filepath.Join(p.dir+path, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// environment mounts the volumes of a container and returns its environment.
func (p pod) environment(t *testing.T, container map[string]any) []string {
	t.Helper()
	volumes := make(map[string]map[string]any)
	for _, v := range list(p.spec["volumes"]) {
		volumes[v["name"].(string)] = v
	}
	var mounted []string
	for _, m := range list(container["volumeMounts"]) {
		volume, ok := volumes[m["name"].(string)]
		if !ok {
			t.Errorf("mount of the volume %s, which is not there", m["name"])
		}
		p.mount(t, volume, m["mountPath"].(string))
		mounted = append(mounted, m["mountPath"].(string))
	}
	var env []string
	add := func(name, value string) {
		for _, path := range mounted {
			if strings.HasPrefix(value, path+"/") {
				value = p.dir + value
				break
			}
		}
		env = append(env, name+"="+value)
	}
	for _, from := range list(container["envFrom"]) {
		ref, ok := from["configMapRef"].(map[string]any)
		if !ok {
			continue
		}
		data := p.maps[ref["name"].(string)]
		if data == nil {
			t.Errorf("environment from the ConfigMap %s, which is not there", ref["name"])
		}
		for name, value := range data {
			add(name, value.(string))
		}
	}
	for _, e := range list(container["env"]) {
		value, ok := e["value"].(string)
		if !ok {
			value = "word" // from a secret
		}
		add(e["name"].(string), value)
	}
	return env
}

// TestTheProgramAcceptsTheRenderedEnvironment runs what each container runs, as far as it goes without a server.
func TestTheProgramAcceptsTheRenderedEnvironment(t *testing.T) {
	for _, name := range cases(t) {
		all := objects(t, ciValues(t, name))
		configMaps := make(map[string]map[string]any)
		for _, o := range all {
			if o.kind() == "ConfigMap" {
				configMaps[o.name()], _ = o.at("data").(map[string]any)
			}
		}
		for who, spec := range podSpecs(t, all) {
			for _, container := range append(list(spec["initContainers"]), list(spec["containers"])...) {
				t.Run(name+"/"+who+"/"+container["name"].(string), func(t *testing.T) {
					p := pod{dir: t.TempDir(), maps: configMaps, spec: spec}
					if strings.HasSuffix(who, "-setup") {
						p.maps = nil // a hook before the installation: nothing of the release is there
					}
					env := p.environment(t, container)
					args := container["args"].([]any)
					words := make([]string, len(args))
					for i, a := range args {
						words[i] = a.(string)
						if strings.HasPrefix(words[i], "/etc/stage/") {
							words[i] = p.dir + words[i]
						}
					}
					switch words[0] {
					case "run", "config":
						check := []string{"config", "--check"}
						if at := slices.Index(words, "--stages"); at > 0 {
							check = append(check, words[at:]...)
						}
						out, errs, err := run(t, env, check...)
						if err != nil || !strings.Contains(out, "configuration is valid") {
							t.Errorf("stage config --check: %v\n%s", err, errs)
						}
					case "setup":
						// Nothing listens there, so the program gets as far as the connection, and is done with the configuration then.
						env = append(env, "STAGE_NATS_URL=nats://127.0.0.1:1", "STAGE_NATS_TLS_CA=", "STAGE_NATS_TLS_CERT=", "STAGE_NATS_TLS_KEY=")
						if _, errs, err := run(t, env, words...); err == nil || !strings.Contains(errs, "connect to NATS at nats://127.0.0.1:1") {
							t.Errorf("stage %s: %v\n%s", strings.Join(words, " "), err, errs)
						}
					default:
						t.Errorf("stage %s: no test covers this command", words[0])
					}
				})
			}
		}
	}
}
