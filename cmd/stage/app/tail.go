package app

import (
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// tailOptions are the flags of tail.
type tailOptions struct {
	kinds  []auditlog.Kind
	row    uint64
	failed bool
	since  time.Time
	json   bool
}
