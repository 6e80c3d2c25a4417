//go:build unix && long

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
)

// notRun are the blocks of README.md that the test does not run, by a text in them. Their
// flags are checked nevertheless (cmd/stage/cli: TestCommandsOfTheDocumentsAreAccepted).
var notRun = map[string]string{
	"stage demo": "takes a minute; the script demo_short has a shorter one",
}

// readmePorts are the ports that the commands of README.md use. The test gives them others,
// which are free.
var readmePorts = []string{"4222", "9465"}

var (
	fence      = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	background = regexp.MustCompile(`(?m) &$`)
	durations  = regexp.MustCompile(`\b(in|peak delay) [0-9.]+[a-zµ0-9.]*`)
	whichRow   = regexp.MustCompile(`row [0-9]+ \(sequence [0-9]+\)`)
	tokens     = regexp.MustCompile(`calls, 0 capacity retries, [0-9]+ tokens`)
	root       = regexp.MustCompile(`chain [0-9a-f]{64}`)
)

// TestCommandsOfTheReadmeCanBePasted runs the blocks of shell in README.md as they stand,
// one after the other in one shell, as a new user would in a clone of the repository. A
// block of text below them is their output.
func TestCommandsOfTheReadmeCanBePasted(t *testing.T) {
	text := stagetest.Value(os.ReadFile("../../README.md"))(t)
	dir := newClone(t)
	ports, env := freePorts(t), readmeEnvironment(t, dir)
	script, outputs := readmeScript(t, string(text), ports)
	ports.write(t, filepath.Join(dir, "examples/reviews.env"))

	runScript(t, dir, env, script)
	readme := string(text)
	for n, want := range outputs {
		got := stagetest.Value(os.ReadFile(filepath.Join(dir, fmt.Sprintf("output-%d", n))))(t)
		output := ports.undo(string(got))
		if anyTime(output) == anyTime(want) {
			continue
		}
		if readme = strings.Replace(readme, want, output, 1); !*update {
			t.Errorf("README.md has this output of its block %d:\n%s\nbut it is the following (-update writes it):\n%s", n, want, output)
		}
	}
	if len(outputs) < 2 {
		t.Errorf("%d blocks with their output: the test no longer finds them", len(outputs))
	}
	if *update {
		if err := os.WriteFile("../../README.md", []byte(readme), 0o644); err != nil { //nolint:gosec // as it was
			t.Fatal(err)
		}
	}
}

// TestCommandsOfTheTasksCanBePasted runs the blocks of shell of docs/howto in one clone,
// those of the index first: they start the stage that some pages ask for. Blocks that need
// a server of one's own, or the nats CLI, are left out.
func TestCommandsOfTheTasksCanBePasted(t *testing.T) {
	pages := stagetest.Value(filepath.Glob("../../docs/howto/*.md"))(t)
	dir := newClone(t)
	ports, env := freePorts(t), append(readmeEnvironment(t, dir), fmt.Sprintf("STAGE_HTTP_ADDR=127.0.0.1:%d", stagetest.FreePort(t)))
	elsewhere := regexp.MustCompile(`(?m)^nats |localhost:4222`)
	slices.SortStableFunc(pages, func(a, b string) int {
		return cmp.Compare(strings.Count(b, "README"), strings.Count(a, "README"))
	})
	script, ran := "set -e\n", 0
	for _, page := range pages {
		text, err := os.ReadFile(page) //nolint:gosec // of the repository
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
			if m[1] == "sh" && !elsewhere.MatchString(m[2]) {
				ran++
				script += fmt.Sprintf("echo %s\n%s", filepath.Base(page), ports.replace(m[2]))
			}
		}
	}
	runScript(t, dir, env, script)
	if ran < 15 {
		t.Errorf("%d blocks: the test no longer finds them", ran)
	}
}

// runScript runs a script of bash in a session of its own, of which nothing is left afterwards.
func runScript(t *testing.T, dir string, env []string, script string) {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell, "-c", script)
	cmd.Dir, cmd.Env, cmd.WaitDelay, cmd.SysProcAttr = dir, env, time.Second, &syscall.SysProcAttr{Setsid: true}
	output, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		session := strconv.Itoa(cmd.Process.Pid)
		_ = exec.Command("pkill", "-KILL", "-s", session).Run() //nolint:noctx,gosec // what was left by a block that failed
	}
	if err == nil {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, name := range logs {
		text, _ := os.ReadFile(name) //nolint:gosec // of this test
		t.Logf("%s:\n%s", filepath.Base(name), text)
	}
	t.Fatalf("%v:\n%s", err, output)
}

// anyTime replaces what is different each time: durations, hashes, and which rows fail,
// with their tokens. The mock fails each call by its turn, and calls in flight at once
// reach it in any order.
func anyTime(output string) string {
	output = durations.ReplaceAllString(output, "$1 TIME")
	output = tokens.ReplaceAllString(output, "calls, 0 capacity retries, N tokens")
	output = root.ReplaceAllString(output, "chain HASH")
	return whichRow.ReplaceAllString(output, "ROW")
}

// readmeScript makes one script of the blocks of shell. Each block writes its output into a
// file, and outputs has what the README shows as the output of a block. After a block with a
// program in the background the script waits until its port is open, as a person would.
func readmeScript(t *testing.T, text string, ports readmePort) (script string, outputs map[int]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("set -emo pipefail\n")
	outputs = make(map[int]string)
	ran, end := 0, 0 // the last block of shell, and where it ended
	for n, at := range fence.FindAllStringSubmatchIndex(text, -1) {
		switch language, body := text[at[2]:at[3]], text[at[4]:at[5]]; language {
		case "sh":
			if !excluded(body) {
				ran, end = n, at[1]
				fmt.Fprintf(&b, "echo; echo %q\n", body)
				fmt.Fprintf(&b, "{\n%s} >output-%d 2>&1 || { cat output-%d; exit 1; }\n", ports.replace(body), n, n)
				if background.MatchString(body) && !strings.Contains(body, "kill ") {
					fmt.Fprintf(&b, "for port in %s; do case %q in *$port*) until (echo >/dev/tcp/127.0.0.1/$port) 2>/dev/null; do sleep 0.05; done;; esac; done\n",
						strings.Join(ports.all(), " "), ports.replace(body))
				}
				b.WriteString("sleep 0.1; jobs >/dev/null\n") // as a shell does before its next prompt: numbers of jobs that ended are free
			}
		case "text":
			if end > 0 && strings.TrimSpace(text[end:at[0]]) == "" {
				outputs[ran] = body
			}
		case "":
			t.Errorf("a block of README.md without its language, sh for what can be pasted:\n%s", body)
		}
	}
	return b.String(), outputs
}

func excluded(block string) bool {
	for text := range notRun {
		if strings.Contains(block, text) {
			return true
		}
	}
	return false
}

// newClone makes a directory with what the README's commands find in a clone.
func newClone(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	stagetest.Must(t, os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../../examples")))
	for _, name := range []string{"go.mod", "go.sum"} {
		text := stagetest.Value(os.ReadFile(filepath.Join("../..", name)))(t)
		stagetest.Must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// readmeEnvironment has the program of this test for stage, a go that need not build it,
// and no way to other machines.
func readmeEnvironment(t *testing.T, dir string) []string {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	stagetest.Must(t, os.Mkdir(bin, 0o700))
	realGo := stagetest.Value(exec.LookPath("go"))(t)
	shim := "#!/bin/sh\ncase \"$*\" in\n'install ./cmd/stage') exit 0 ;;\n'run ./cmd/stage '*) shift 2; exec stage \"$@\" ;;\nesac\nexec " + realGo + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(shim), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "STAGE_LOG_LEVEL=error", "STAGE_HTTP_ADDR=127.0.0.1:0", "GOPROXY=off", "GOFLAGS=-mod=mod"}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "STAGE_") && !strings.HasPrefix(name, "NATS_") && name != "PATH" && name != "GOFLAGS" {
			env = append(env, v)
		}
	}
	return env
}

// readmePort maps the ports of README.md to free ones.
type readmePort map[string]string

func freePorts(t *testing.T) readmePort {
	t.Helper()
	p := make(readmePort)
	for _, port := range readmePorts {
		p[port] = strconv.Itoa(stagetest.FreePort(t))
	}
	return p
}

// replace gives commands the free ports, also those that have their port by default.
func (p readmePort) replace(block string) string {
	for port, free := range p {
		block = strings.ReplaceAll(block, ":"+port, ":"+free)
	}
	block = strings.ReplaceAll(block, "stage mockllm", "stage mockllm --addr 127.0.0.1:"+p["9465"])
	return strings.ReplaceAll(block, "nats-server/v2 -js", "nats-server/v2 -a 127.0.0.1 -p "+p["4222"]+" -js")
}

func (p readmePort) undo(output string) string {
	for port, free := range p {
		output = strings.ReplaceAll(output, ":"+free, ":"+port)
	}
	return output
}

func (p readmePort) all() (ports []string) {
	for _, free := range p {
		ports = append(ports, free)
	}
	return ports
}

// write replaces the ports in a file.
func (p readmePort) write(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path) //nolint:gosec // of this test
	if err == nil {
		err = os.WriteFile(path, []byte(p.replace(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
