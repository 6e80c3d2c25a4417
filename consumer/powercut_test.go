package consumer_test

import (
	"os"
	"path/filepath"
	"testing"
)

// A power cut takes what the server had not synced: the results end earlier than what the consumer acked. The end of the
// log decides, so the lost results are made again, each once.
func TestResultsThatLostTheirEndAreMadeAgainFromThere(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := newBench(t)
		b.load(60)
		b.start("first", quick()).stopAfter(b, 60)
		b.stopServer()
		store := filepath.Join(b.dir, "jetstream", "$G", "streams", "RESULTS")
		before := filepath.Join(b.dir, "before")
		if err := os.CopyFS(before, os.DirFS(store)); err != nil {
			t.Fatal(err)
		}
		b.startServer()
		b.loadFrom(60, 40)
		b.start("second", quick()).stopAfter(b, 100)

		b.stopServer()
		if err := os.RemoveAll(store); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(before, store); err != nil {
			t.Fatal(err)
		}
		b.startServer()
		if got := b.stored("RESULTS", "results.stage.0.rows"); got != 60 {
			t.Fatalf("%d results are left, want 60", got)
		}
		b.start("third", quick()).stopAfter(b, 100)
		b.check(100)
	})
}

func (r *replica) stopAfter(b *bench, results int) {
	b.t.Helper()
	b.until(results)
	r.stop(b.t)
}
