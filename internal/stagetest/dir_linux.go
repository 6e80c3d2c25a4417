package stagetest

import (
	"os"
	"syscall"
	"testing"
)

const (
	memoryFS   = "/dev/shm"
	memoryLeft = 2 << 30 // bytes that must be free there: containers have 64 MB
)

// Dir returns a temporary directory for the store of a server, in memory where the system
// has room there: the server syncs what it writes about streams and consumers, which
// takes most of the time of a test that is not about disks.
func Dir(tb testing.TB) string {
	tb.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryFS, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < memoryLeft { //nolint:gosec // a size
		return tb.TempDir()
	}
	dir, err := os.MkdirTemp(memoryFS, "stage-test-") //nolint:usetesting // TempDir lies on the disk
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}
