//go:build jinja

package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

// release is the Debian release whose source package of Jinja is used, 3.1.6, whatever the machine runs, so that the
// counts are reproducible.
const release = "trixie"

// record runs Jinja's tests and returns Jinja's version and the templates.
func record(t *testing.T) (version string, templates []sample) {
	t.Helper()
	source := os.Getenv("JINJA")
	if source == "" {
		source = download(t)
	}
	python := findPython(t)
	if python == "" {
		if os.Getuid() != 0 {
			t.Fatal("markupsafe is missing: run apt-get install python3 python3-markupsafe")
		}
		run(t, "apt-get", "update", "-q")
		run(t, "apt-get", "install", "-q", "-y", "--no-install-recommends", "python3", "python3-markupsafe")
		python = debianPython
	}
	d := json.NewDecoder(bytes.NewReader(run(t, python, "record.py", source)))
	var head struct{ Jinja string }
	must.Do(t, d.Decode(&head))
	for {
		var c sample
		err := d.Decode(&c)
		if errors.Is(err, io.EOF) {
			return head.Jinja, templates
		}
		if err != nil {
			t.Fatal(err)
		}
		templates = append(templates, c)
	}
}

// debianPython is the Python that Debian's packages install into. Another may come before it in PATH.
const debianPython = "/usr/bin/python3"

// findPython returns a Python that has markupsafe, or "".
func findPython(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", debianPython} {
		if exec.CommandContext(t.Context(), python, "-c", "import markupsafe").Run() == nil {
			return python
		}
	}
	return ""
}

// download gets the source package from the machine's Debian archive and returns its tree. It has lists of its own, so it
// neither changes the machine's nor needs to be root.
func download(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o700))
	own := []string{"-q", "-o", "Dir::State::Lists=" + filepath.Join(dir, "lists")}
	run(t, "apt-get", append(own, "update")...)
	sites := run(t, "apt-get", append(own, "indextargets", "--format", "$(REPO_URI)", "Label: Debian")...)
	site, _, _ := strings.Cut(string(sites), "\n")
	if site == "" {
		t.Fatal("no Debian archive is configured: set JINJA to a source tree of Jinja")
	}
	list := filepath.Join(dir, "sources.list")
	line := "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + site + " " + release + " main\n"
	must.Do(t, os.WriteFile(list, []byte(line), 0o600))
	own = append(own, "-o", "Dir::Etc::SourceList="+list, "-o", "Dir::Etc::SourceParts=-")
	run(t, "apt-get", append(own, "update")...)
	run(t, "env", append([]string{"-C", dir, "apt-get"}, append(own, "source", "--download-only", "--tar-only", "jinja2")...)...)
	archives, err := filepath.Glob(filepath.Join(dir, "jinja2_*.orig.tar.*"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives %v, %v", archives, err)
	}
	source := filepath.Join(dir, "jinja")
	must.Do(t, os.Mkdir(source, 0o700))
	run(t, "tar", "-x", "--strip-components=1", "-C", source, "-f", archives[0])
	return source
}

// run returns what a command prints. Problems that it reports on the way are logged.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PYTHONDONTWRITEBYTECODE=1")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, problems.Bytes())
	}
	if problems.Len() > 0 {
		t.Logf("%s: %s", name, problems.Bytes())
	}
	return out
}
