package security_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
)

// A user who was given the permissions before there were deferred batches still sets a stage up, and is told what is
// missing.
func TestSetupWithoutThePermissionsOfBatchesSaysSo(t *testing.T) {
	t.Parallel()
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	s := newSite(t, g, map[string]permissions.Grant{"setup": g[permissions.Run].And(g[permissions.Setup])})
	code, out, errs := s.attempt("setup", vars{"STAGE_CREATE_STREAMS": "true"}, "setup")
	if code != 0 || !strings.Contains(out, "are ready") || !strings.Contains(errs, `"$JS.API.STREAM.INFO.BATCHES"`) || !strings.Contains(errs, "until then deferred batches are refused") {
		t.Errorf("setup: exit code %d: %s%s", code, out, errs)
	}
}
