package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

// TestGoInstallTakesAReleasedVersion serves the last commit as a release from a module proxy in files, and installs it.
func TestGoInstallTakesAReleasedVersion(t *testing.T) {
	const tag = "v0.98.7"
	proxy, home := t.TempDir(), t.TempDir()
	packed := release(t, proxy, tag)
	embedded := 0
	for path := range strings.Lines(embeddedFiles(t)) {
		embedded++
		if path = strings.TrimSpace(path); !slices.Contains(packed, path) {
			t.Errorf("the module does not hold %s, which the program embeds", path)
		}
	}
	if embedded == 0 {
		t.Error("the program embeds nothing: the test has lost the dashboard")
	}
	install := exec.CommandContext(t.Context(), "go", "install", "github.com/llm-stage/stage/cmd/stage@latest")
	install.Dir = home // no module: as a user's
	modules := strings.TrimSpace(tool(t, "env", "GOMODCACHE"))
	install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+home, "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE="+filepath.Join(home, "modules"), "GOSUMDB=off",
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(modules, "cache", "download"))
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	stage := exec.CommandContext(t.Context(), filepath.Join(home, "stage"), "version")
	if out, err := stage.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "stage "+tag+" (") {
		t.Errorf("stage version: %v: %s", err, out)
	}
}

// release writes the last commit into a module proxy's directory and returns the files of the module.
func release(t *testing.T, proxy, tag string) (names []string) {
	t.Helper()
	m := module.Version{Path: "github.com/llm-stage/stage", Version: tag}
	dir := filepath.Join(proxy, m.Path, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := modzip.CreateFromVCS(&b, m, "../..", "HEAD", ""); err != nil {
		t.Fatal(err)
	}
	show := exec.CommandContext(t.Context(), "git", "-C", "../..", "show", "HEAD:go.mod")
	gomod, err := show.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"list": []byte(tag + "\n"), tag + ".info": fmt.Appendf(nil, `{"Version":%q,"Time":"2020-01-01T00:00:00Z"}`, tag), tag + ".mod": gomod, tag + ".zip": b.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packed, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range packed.File {
		names = append(names, strings.TrimPrefix(f.Name, m.String()+"/"))
	}
	return names
}

// embeddedFiles returns the files of the module that the program embeds, a line each, relative to the module.
func embeddedFiles(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	out := tool(t, "list", "-deps", "-f", `{{$p := .}}{{if .Module}}{{if .Module.Main}}{{range .EmbedFiles}}{{$p.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, "./cmd/stage")
	return strings.ReplaceAll(out, root+"/", "")
}

// tool runs the Go tool in the stage's module.
func tool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", args[0], err)
	}
	return string(out)
}

// TestNothingInGoModKeepsGoInstallFromWorking names what `go install path@version` refuses, or what would hold for this
// module only and not for those who import it.
func TestNothingInGoModKeepsGoInstallFromWorking(t *testing.T) {
	file, err := modfile.Parse("go.mod", read(t, "../../go.mod"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Replace) > 0 || len(file.Exclude) > 0 || len(file.Tool) > 0 {
		t.Error("go.mod has a replace, exclude or tool directive")
	}
}
