//go:build real

package real

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
)

const (
	aimockPackage = "@copilotkit/aimock"
	aimockVersion = "1.43.0"
	aimockKey     = "sk-real-0123456789abcdef"
)

// entry is a call as aimock's journal records it. Its body has one form, whatever the wire format was.
type entry struct {
	Path string `json:"path"`
	Body struct {
		Model    string `json:"model"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	} `json:"body"`
	Response struct {
		Status int    `json:"status"`
		Chaos  string `json:"chaosAction"`
	} `json:"response"`
}

// rowNumber finds the row in a prompt.
var rowNumber = regexp.MustCompile(`row \d{4}`)

// TestJournalOfAimockIsTheAudit calls a third-party server, which fails in many ways, in every wire format. Its journal
// and the audit must agree on the calls of each row, in order.
func TestJournalOfAimockIsTheAudit(t *testing.T) {
	t.Parallel()
	const rows = 40
	cli := aimock(t)
	schema := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(schema, []byte(
		`{"type":"object","properties":{"row":{"type":"integer"}},"required":["row"],"additionalProperties":false}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, provider, base, path string
		more                       map[string]string
	}{
		{"openai", "openai", "/v1", "/v1/chat/completions", nil},
		{"openai-responses", "openai-responses", "/v1", "/v1/responses", nil},
		{"openrouter", "openrouter", "/api/v1", "/api/v1/chat/completions", nil},
		{"azure", "azure", "", "/openai/v1/chat/completions", nil},
		{"azure-dated", "azure", "", "/openai/deployments/model-1/chat/completions?api-version=2024-10-21", map[string]string{
			"STAGE_LLM_AZURE_API_VERSION": "2024-10-21",
		}},
		{"anthropic", "anthropic", "", "/v1/messages", nil},
		{"gemini", "gemini", "", "/v1beta/models/model-1:generateContent", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := startAimock(t, cli, rows)
			settings := map[string]string{
				"STAGE_LLM_PROVIDER": tt.provider, "STAGE_LLM_BASE_URL": url + tt.base, "STAGE_LLM_API_KEY": aimockKey,
				"STAGE_LLM_MODEL": "model-1", "STAGE_SYSTEM_PROMPT": "Answer in JSON.", "STAGE_RESPONSE_SCHEMA_FILE": schema,
				"STAGE_POOL_SIZE": "16", "STAGE_RETRY_MAX_ATTEMPTS": "20", "STAGE_RETRY_BASE_DELAY": "10ms",
			}
			maps.Copy(settings, tt.more)
			r := process(t, rows, settings)
			r.inOrder(t, rows)
			for i, got := range r.results {
				if want := fmt.Sprintf(`{"row":%d}`, i); string(got.Response) != want {
					t.Errorf("row %d is answered %s, want %s", i, got.Response, want)
				}
				if len(got.Usage) == 0 || string(got.Usage) == "null" {
					t.Errorf("row %d has usage %s: the server reports one", i, got.Usage)
				}
			}
			theirs := map[string][]string{}
			for _, e := range journal(t, url) {
				if e.Path != tt.path || e.Body.Model != "model-1" {
					t.Errorf("a call to %s for model %q, want %s", e.Path, e.Body.Model, tt.path)
				}
				prompt := ""
				for _, m := range e.Body.Messages {
					prompt += string(m.Content)
				}
				row := rowNumber.FindString(prompt)
				theirs[row] = append(theirs[row], e.outcome())
			}
			ours := map[string][]string{}
			for i := range r.calls {
				c := &r.calls[i]
				row := rowNumber.FindString(string(c.Request))
				if want := text(int(c.Sequence) - 1); row != want {
					t.Errorf("the call of sequence %d asks about %q, want %q", c.Sequence, row, want)
				}
				ours[row] = append(ours[row], outcome(c))
			}
			for _, row := range slices.Sorted(maps.Keys(theirs)) {
				if !slices.Equal(ours[row], theirs[row]) {
					t.Errorf("%s: the audit says %v, the journal %v", row, ours[row], theirs[row])
				}
			}
			if len(ours) != rows || len(theirs) != rows {
				t.Errorf("calls about %d rows in the audit, %d in the journal, want %d", len(ours), len(theirs), rows)
			}
			t.Logf("%d calls about %d rows in %v: %v", len(r.calls), rows, r.took.Round(100e6), r.statuses())
		})
	}
}

// outcome is the outcome of a call by the journal, in the words of the audit.
func (e *entry) outcome() string {
	switch e.Response.Chaos {
	case "disconnect":
		return "unknown"
	case "malformed":
		return "200 unreadable"
	}
	return fmt.Sprint(e.Response.Status)
}

func outcome(c *auditlog.Call) string {
	switch {
	case c.Status == auditlog.CallUnknown:
		return "unknown"
	case c.StatusCode == http.StatusOK && c.Status != auditlog.CallSuccess:
		return "200 unreadable"
	}
	return fmt.Sprint(c.StatusCode)
}

// aimock installs the package and returns the path of its program.
func aimock(t *testing.T) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Fatalf("%v: install Node.js 20 or later with npm", err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", aimockPackage+"@"+aimockVersion)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install %s: %v\n%s", aimockPackage, err, out)
	}
	root := filepath.Join(dir, "node_modules", filepath.FromSlash(aimockPackage))
	var manifest struct {
		Bin map[string]string `json:"bin"`
	}
	raw, err := os.ReadFile(filepath.Join(root, "package.json"))
	if err == nil {
		err = json.Unmarshal(raw, &manifest)
	}
	if err != nil || manifest.Bin["llmock"] == "" {
		t.Fatalf("%s holds no program llmock: %v, %v", aimockPackage, manifest.Bin, err)
	}
	return filepath.Join(root, manifest.Bin["llmock"])
}

// startAimock starts a server that knows an answer for each row, wants the key, and fails one call in three. It returns
// its address.
func startAimock(t *testing.T, cli string, rows int) string {
	t.Helper()
	type fixture struct {
		Match    map[string]string `json:"match"`
		Response map[string]string `json:"response"`
	}
	fixtures := make([]fixture, rows)
	for i := range fixtures {
		fixtures[i] = fixture{
			Match:    map[string]string{"userMessage": text(i)},
			Response: map[string]string{"content": fmt.Sprintf(`{"row":%d}`, i)},
		}
	}
	raw := stagetest.Value(json.Marshal(map[string]any{"fixtures": fixtures}))(t)
	file := filepath.Join(t.TempDir(), "fixtures.json")
	stagetest.Must(t, os.WriteFile(file, raw, 0o600))
	node := stagetest.Value(exec.LookPath("node"))(t)
	lines := serve(t, map[string]string{"AIMOCK_API_KEYS": aimockKey}, node, cli, "--port", "0", "--host", "127.0.0.1",
		"--fixtures", file, "--strict", "--journal-max", "0",
		"--chaos-ratelimit", "0.1", "--chaos-drop", "0.1", "--chaos-malformed", "0.08", "--chaos-disconnect", "0.05")
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			return url
		}
	}
	t.Fatalf("aimock did not start:\n%s", strings.Join(said, "\n"))
	return ""
}

// journal reads the journal of a server.
func journal(t *testing.T, url string) []entry {
	t.Helper()
	req := stagetest.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/__aimock/journal", nil))(t)
	req.Header.Set("Authorization", "Bearer "+aimockKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	var entries []entry
	if err := json.NewDecoder(resp.Body).Decode(&entries); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("journal: %s, %v", resp.Status, err)
	}
	return entries
}
