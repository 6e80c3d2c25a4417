package stage

import (
	"log/slog"

	"github.com/llm-stage/stage/internal/openfiles"
	"github.com/llm-stage/stage/internal/ops/dashboard"
)

// These are the descriptors that the process may need besides those of the calls and of
// the HTTP server.
const (
	// openFilesNATS is for the connection, and for a second one while it is replaced.
	openFilesNATS = 16
	// openFilesEmbedded is for the embedded server: its store, and clients such as load,
	// tail and verify.
	openFilesEmbedded = 256
	// openFilesMargin is for the standard streams, the Go runtime, files of keys and
	// prices, traces and name resolution.
	openFilesMargin = 64
)

// openFilesNeed returns how many descriptors the stages of a process, which share a
// connection to NATS, may need at most. Each target keeps as many connections as calls
// may be in flight, so a pool of 100 with one fallback needs 200. The built-in LLM needs
// none.
func openFilesNeed(stages ...*Stage) uint64 {
	need := dashboard.MaxConns + openFilesNATS + openFilesMargin
	if stages[0].Conn.Server != nil {
		need += openFilesEmbedded
	}
	for _, s := range stages {
		for i := range s.caller.Len() {
			if !s.caller.At(i).BuiltIn() {
				need += s.Cfg.Pool.Size
			}
		}
	}
	return uint64(need)
}

// warnOfOpenFiles warns where the limit is below the need. It is no error: calls without
// a descriptor wait for one, and most of the time fewer are needed.
func warnOfOpenFiles(log *slog.Logger, stages ...*Stage) {
	limit, ok := openfiles.Limit()
	if need := openFilesNeed(stages...); ok && limit < need {
		log.Warn("the limit of open files is below what this pool size may need; "+
			"at the limit, calls wait",
			slog.Uint64("limit", limit), slog.Uint64("need", need),
			slog.String("remedy", "raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd, "+
				"nofile of the container runtime), or lower STAGE_POOL_SIZE"))
	}
}
