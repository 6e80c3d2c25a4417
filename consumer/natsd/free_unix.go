//go:build linux || darwin || freebsd

package natsd

import (
	"math"
	"syscall"
)

// freeBytes returns the bytes that are left to the process on the disk of a directory.
func freeBytes(dir string) (bytes int64, ok bool) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return 0, false
	}
	blocks, size := int64(disk.Bavail), int64(disk.Bsize) //nolint:gosec,unconvert // the types differ by system
	if blocks < 0 {                                       // only the superuser may use the rest
		return 0, true
	}
	if size > 0 && blocks > math.MaxInt64/size {
		return math.MaxInt64, true
	}
	return blocks * size, true
}
