//go:build long

package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestLongScripts(t *testing.T) { runScripts(t, testscript.Params{Dir: "testdata/long"}) }
