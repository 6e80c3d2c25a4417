package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version and commit of a release, set by the linker: -ldflags "-X …/cmd/stage/app.linkedVersion=v1.2.3". Without them
// the build information of the Go tool is used.
var linkedVersion, linkedCommit string

// Build tells which program this is.
type Build struct {
	Version   string `json:"version"`    // v1.2.3, or "devel"
	Commit    string `json:"commit"`     // revision, with "-dirty" if files were changed; "unknown" outside a checkout
	GoVersion string `json:"go_version"` // go1.26.0
}

// String is the line that stage version prints.
func (b Build) String() string {
	return fmt.Sprintf("stage %s (commit %s, %s)", b.Version, b.Commit, b.GoVersion)
}

// buildVersion reads what the linker and the Go tool have left in the binary.
func buildVersion() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return newBuild(linkedVersion, linkedCommit, info)
}

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

func newVersionCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "print version, commit and Go version",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
		Example: "  stage version\n  stage version --json",
	}
	asJSON := cmd.Flags().Bool("json", false, "print them as JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		if *asJSON {
			return writeJSON(env.Stdout, buildVersion())
		}
		_, err := fmt.Fprintln(env.Stdout, buildVersion())
		return err
	}
	return cmd
}

// writeJSON prints a value for machines that a person may read too.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
