//go:build !linux

package stagetest

import "testing"

// Dir returns a temporary directory for the store of a server.
func Dir(t testing.TB) string {
	t.Helper()
	return t.TempDir()
}
