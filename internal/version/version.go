// Package version is the version of this build.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version and commit of a release, set by the linker: -ldflags "-X
// …/internal/version.linkedVersion=v1.2.3". Without them the build information of the Go
// tool is used.
var linkedVersion, linkedCommit string

// Build is the version of a build. Its JSON is that of stage version --json.
type Build struct {
	Version   string `json:"version"`    // v1.2.3, or "devel"
	Commit    string `json:"commit"`     // revision, with "-dirty" if files were changed; "unknown" outside a checkout
	GoVersion string `json:"go_version"` // go1.26.0
}

// String returns the line that stage version prints.
func (b Build) String() string {
	return fmt.Sprintf("stage %s (commit %s, %s)", b.Version, b.Commit, b.GoVersion)
}

// Current returns the version of this program, from what the linker and the Go tool have
// left in the binary.
func Current() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return newBuild(linkedVersion, linkedCommit, info)
}

// newBuild returns the version: what the linker set, else the build information.
func newBuild(version, commit string, info *debug.BuildInfo) Build {
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision != "" {
		revision += dirty
	}
	module := info.Main.Version
	if module == "(devel)" {
		module = ""
	}
	return Build{
		Version:   cmp.Or(version, module, "devel"),
		Commit:    cmp.Or(commit, revision, "unknown"),
		GoVersion: cmp.Or(info.GoVersion, runtime.Version()),
	}
}
