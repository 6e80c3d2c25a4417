//go:build !linux

package stagetest

import "testing"

// Dir returns a temporary directory for the store of a server.
func Dir(tb testing.TB) string {
	tb.Helper()
	return tb.TempDir()
}
