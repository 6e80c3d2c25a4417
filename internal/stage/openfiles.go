package stage

import (
	"log/slog"

	"github.com/llm-stage/stage/internal/openfiles"
	"github.com/llm-stage/stage/internal/ops/dashboard"
)

// Descriptors that the process may need besides those of calls and of the HTTP server.
const (
	openFilesNATS     = 16  // the connection, and a second one while it is replaced
	openFilesEmbedded = 256 // of the embedded server: its store, and clients such as load, tail and verify
	openFilesMargin   = 64  // standard streams, the runtime's own, files of keys and prices, traces, name resolution
)

// openFilesNeed returns how many descriptors the stages of a process, which share a
// connection, may need at most: each target keeps as many connections as calls may be in
// flight. Those of the built-in LLM are no files.
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

// warnOfOpenFiles warns where the limit is below the need. That is no error: calls
// without a descriptor wait for one, and most of the time fewer are needed.
func warnOfOpenFiles(log *slog.Logger, stages ...*Stage) {
	limit, ok := openfiles.Limit()
	if need := openFilesNeed(stages...); ok && limit < need {
		log.Warn("the limit of open files is below what this pool size may need; at the limit, calls wait",
			slog.Uint64("limit", limit), slog.Uint64("need", need),
			slog.String("remedy", "raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd, nofile of the container runtime), or lower STAGE_POOL_SIZE"))
	}
}
