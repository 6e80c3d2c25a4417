//go:build unix

package openfiles

import (
	"fmt"
	"syscall"
)

// Limit returns how many descriptors the process may have open, or false if it is
// unknown. There is no need to raise the soft limit: Go's runtime does so at start, up to
// one below the hard limit, and restores it for child processes.
func Limit() (limit uint64, ok bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // signed on some systems
}

// Control is a [net.Dialer]'s Control for calls: it refuses a connection with
// [syscall.EMFILE] where that would take one of the last descriptors, a quarter of the
// limit and at most 64. A new descriptor has the lowest free number, so one of a high
// number tells that all below it are in use.
func Control(_, _ string, conn syscall.RawConn) error {
	limit, ok := Limit()
	if !ok {
		return nil
	}
	var refused bool
	if err := conn.Control(func(fd uintptr) { refused = uint64(fd) >= limit-reserve(limit) }); err != nil {
		return err
	}
	if refused {
		return fmt.Errorf("of %d, %d are kept for the store and for NATS: %w", limit, reserve(limit), syscall.EMFILE)
	}
	return nil
}
