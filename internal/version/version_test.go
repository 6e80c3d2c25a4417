package version

import (
	"runtime/debug"
	"testing"
)

func TestVersionComesFromTheLinkerThenFromTheBuild(t *testing.T) {
	checkout := &debug.BuildInfo{
		GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.4-0.2026"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	for _, tt := range []struct {
		version, commit string
		info            *debug.BuildInfo
		want            string
	}{
		{"v1.2.3", "def", checkout, "stage v1.2.3 (commit def, go1.26.0)"},
		{"", "", checkout, "stage v1.2.4-0.2026 (commit abc-dirty, go1.26.0)"},
		{"", "", &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "(devel)"}}, "stage devel (commit unknown, go1.26.0)"},
	} {
		if got := newBuild(tt.version, tt.commit, tt.info).String(); got != tt.want {
			t.Errorf("newBuild(%q, %q, …): got %q, want %q", tt.version, tt.commit, got, tt.want)
		}
	}
}
