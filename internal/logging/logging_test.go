package logging

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm/redact"
)

func TestLogLevelAndFormat(t *testing.T) {
	for _, tt := range []struct {
		level, format string
		wantLines     int
		wantJSON      bool
	}{
		{"debug", "json", 4, true},
		{"info", "", 3, true}, // not a terminal
		{"warn", "text", 2, false},
		{"error", "json", 1, true},
	} {
		var b strings.Builder
		log := New(&b, tt.level, tt.format)
		log.Debug("call", slog.Any("key", redact.NewSecret("hunter2")))
		log.Info("call", slog.Any("key", redact.NewSecret("hunter2")))
		log.Warn("call", slog.Any("key", redact.NewSecret("hunter2")))
		log.Error("call", slog.Any("key", redact.NewSecret("hunter2")))
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != tt.wantLines || json.Valid([]byte(lines[0])) != tt.wantJSON || strings.Contains(b.String(), "hunter2") {
			t.Errorf("level %s, format %q: got\n%swant %d lines, JSON: %t, no secret", tt.level, tt.format, b.String(), tt.wantLines, tt.wantJSON)
		}
	}
}

// The text form quotes what is not printed, wherever it comes from.
func TestLinesForATerminalHideNothing(t *testing.T) {
	var b strings.Builder
	New(&b, "info", "text").Warn("bad row", slog.String("error", "a\u202eb\u009b\x1b[2J\u2028\u200b\U000e0041"))
	if line := strings.TrimSpace(b.String()); !strings.HasSuffix(line, `error="a\u202eb\u009b\x1b[2J\u2028\u200b\U000e0041"`) {
		t.Errorf("got %+q", line)
	}
}
