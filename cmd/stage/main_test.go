package main

import (
	"flag"
	"os"
	"os/signal"
	"path/filepath"
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

// The scripts state what a user sees: flags, errors, output and exit codes. Each runs the real program. Here is one for
// each command, and others that take little time. The scripts of testdata/long run with the tag long.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

func runScripts(t *testing.T, dir string) {
	t.Helper()
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // else the programs ignore it where the tests run under nohup
	t.Cleanup(func() { signal.Stop(heard) })
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		WorkdirRoot:         stagetest.Dir(t),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                scriptCommands,
		Setup: func(env *testscript.Env) error {
			env.Setenv("COLUMNS", "")
			example, err := filepath.Abs("../../.env.example")
			env.Setenv("EXAMPLE", example)
			return err
		},
	})
}
