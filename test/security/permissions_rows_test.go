package security_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
)

// The page of a stage has the story of a row and the rows that failed, with the permissions for it, each of which is used.
func TestThePermissionsOfRowsOnTheDashboardAreEnoughAndAllUsed(t *testing.T) {
	t.Parallel()
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	s := newSite(t, g, map[string]permissions.Grant{
		"stage": g[permissions.Run].And(g[permissions.Batches], g[permissions.Status], g[permissions.Rows]), "setup": setupOf(g),
	})
	s.setUp(nil)
	s.rows = oldRows(t, s.nc)
	stage := run(t, with(newLLM(t, llmtest.Config{}), s.as("stage"), vars{"STAGE_TEMPLATE": "Row {{ row.missing }}"}))
	s.load(3)
	s.await(3)
	open := &auditlog.Row{Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, Owner: "run.a", Sequence: 9, Status: auditlog.RowSuccess, QueuedAt: time.Now(), FinishedAt: time.Now()}
	stagetest.Value(s.js.Publish(t.Context(), "audit.stage.0.row", open.AppendJSON(nil, auditlog.PayloadsFull, 0)))(t)
	for path, want := range map[string]string{"/api/row?sequence=2": `"kind":"emitted"`, "/api/row?sequence=9": `"kind":"open"`, "/api/failures?reason=template_rendering_failed": `"row":3`} {
		request := stagetest.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, stage.page+path, nil))(t)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: got %d %s, %v; want %s in it", path, response.StatusCode, body, err, want)
		}
	}
	stage.stop()
	noneDenied(t, stage)
	s.allUsed("the stage", g[permissions.Rows].Publish)
}
