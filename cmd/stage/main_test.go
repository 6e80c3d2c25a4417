package main

import (
	"flag"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden sections of the scripts anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"stage": main})
}

// The scripts say what a user sees: flags, faults, output and exit codes. Each runs the real program.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                scriptCommands,
		Setup: func(env *testscript.Env) error {
			env.Setenv("COLUMNS", "")
			return nil
		},
	})
}
