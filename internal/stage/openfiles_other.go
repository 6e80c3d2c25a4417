//go:build !unix

package stage

// openFilesLimit knows no limit: Windows has none that matters for sockets.
func openFilesLimit() (limit uint64, ok bool) { return 0, false }
