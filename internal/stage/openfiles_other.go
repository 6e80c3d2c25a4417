//go:build !unix

package stage

// openFilesLimit returns false: Windows has no limit that matters for sockets.
func openFilesLimit() (limit uint64, ok bool) { return 0, false }
