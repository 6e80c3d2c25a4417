//go:build !unix

package openfiles

import "syscall"

// Limit returns false: Windows has no limit that matters for sockets.
func Limit() (limit uint64, ok bool) { return 0, false }

// Control returns nil, which refuses nothing.
func Control(_ bool) func(network, address string, conn syscall.RawConn) error { return nil }
