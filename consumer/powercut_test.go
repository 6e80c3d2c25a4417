package consumer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// A power cut takes what the server had not synced: the results end earlier than what the consumer acked. The end of the
// log decides, so the lost results are made again, each once.
func TestResultsThatLostTheirEndAreMadeAgainFromThere(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(60)
		b.start("first", quick()).stopAfter(b, 60)
		b.stopServer()
		store := filepath.Join(b.dir, "jetstream", "$G", "streams", "RESULTS")
		before := filepath.Join(b.dir, "before")
		stagetest.Must(t, os.CopyFS(before, os.DirFS(store)))
		b.startServer()
		b.loadFrom(60, 40)
		b.start("second", quick()).stopAfter(b, 100)

		b.stopServer()
		stagetest.Must(t, os.RemoveAll(store))
		stagetest.Must(t, os.Rename(before, store))
		b.startServer()
		if got := b.results(); got != 60 {
			t.Fatalf("%d results are left, want 60", got)
		}
		b.start("third", quick()).stopAfter(b, 100)
		b.check(100)
	})
}
