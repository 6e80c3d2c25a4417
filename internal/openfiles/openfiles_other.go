//go:build !unix

package openfiles

import "syscall"

// Limit returns false: Windows has no limit that matters for sockets.
func Limit() (limit uint64, ok bool) { return 0, false }

// Control refuses nothing.
func Control(_, _ string, _ syscall.RawConn) error { return nil }
