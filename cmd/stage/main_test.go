package main

import (
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite the golden sections of the scripts")

func TestMain(m *testing.M) {
	stagetest.Wait()
	testscript.Main(m, map[string]func(){"stage": main})
}

// The scripts state what a user sees: flags, errors, output and exit codes. Each runs the
// real program. testdata/script has those that take little time, with a call of each command.
// The scripts of testdata/long run with the tag long.
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, testscript.Params{Dir: "testdata/script"})
}

// The commands reach the streams in another JetStream domain, and in another account, whose
// API has another prefix.
func TestEachCommandReachesJetStreamElsewhere(t *testing.T) {
	t.Parallel()
	for server, setting := range map[string]string{"hub": `"jetstream_domain":"edge"`, "import": `"jetstream_api_prefix":"JS.other.API"`} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			runScripts(t, testscript.Params{Files: []string{"testdata/elsewhere.txtar"}}, "SERVER="+server, "SETTING="+setting)
		})
	}
}

// runScripts runs scripts with more variables of their environment.
func runScripts(t *testing.T, p testscript.Params, environ ...string) {
	t.Helper()
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // else the programs ignore it where the tests run under nohup
	t.Cleanup(func() { signal.Stop(heard) })
	p.WorkdirRoot, p.UpdateScripts, p.RequireExplicitExec, p.RequireUniqueNames, p.Cmds = stagetest.Dir(t), *update, true, true, scriptCommands
	p.Setup = func(env *testscript.Env) error {
		env.Vars = append(env.Vars, environ...)
		env.Setenv("COLUMNS", "")
		env.Setenv("GOMAXPROCS", strconv.Itoa(runtime.GOMAXPROCS(0)))
		env.Setenv("GOGC", "400") // the programs end before their memory matters
		example, err := filepath.Abs("../../.env.example")
		env.Setenv("EXAMPLE", example)
		return err
	}
	testscript.Run(t, p)
}
