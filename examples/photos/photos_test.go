package main

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/examples/internal/running"
)

// TestTheExampleOfTheReadmeWorks runs the program as in the README. The answers name the digests of the photos, as
// sha256sum prints them.
func TestTheExampleOfTheReadmeWorks(t *testing.T) {
	t.Chdir("../..") // as the README says: in the root of the repository
	dir := t.TempDir()
	srv, err := natsd.Start(natsd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	defer running.Stage(t, srv, map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_MESSAGES_FILE": "examples/photos/messages.yaml", "STAGE_STREAM_STORAGE": "memory",
	})()
	out := running.Program(t, "./examples/photos", "-data-dir", dir, "examples/photos/photos.jsonl")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, want := range []string{
		"4 rows published",
		"sha256 79ab5aad190bf5f9da79cab7fb615429694d3b1edfb456a3daf5a1fa3095ae48)",
		"sha256 d4301c1e646dec4973c70f765467a8e2996a940f3b3fb1f1162b2bd2c5677d7d)",
		"sha256 fe0f14bf3a15b83a7469fcab9a3c799fc2585fc658d517454b81586d610bd53e)",
		"show this product: kettle?", // it has no photo
	} {
		if len(lines) != 5 || !strings.HasSuffix(lines[i], want) {
			t.Fatalf("line %d is not one with %q:\n%s", i, want, out)
		}
	}
}
