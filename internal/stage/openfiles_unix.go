//go:build unix

package stage

import "syscall"

// openFilesLimit returns how many descriptors the process may have open; false: unknown. There is no need to raise
// the soft limit: Go's runtime does so at start, up to one below the hard limit, and restores it for child processes.
func openFilesLimit() (limit uint64, ok bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // signed on some systems
}
