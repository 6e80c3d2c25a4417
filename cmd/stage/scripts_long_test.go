//go:build long

package main

import "testing"

func TestLongScripts(t *testing.T) { runScripts(t, "testdata/long") }
