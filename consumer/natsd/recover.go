package natsd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// metaFiles are the descriptions of streams and consumers in a store. Each has a checksum
// beside it, written after it.
var metaFiles = []string{"jetstream/*/streams/*/meta.inf", "jetstream/*/streams/*/obs/*/meta.inf"}

// removeHalfCreated removes each description without a checksum, which a process that was
// killed while it created the stream or consumer has left. The server passes over such a
// one when it starts; when it is created again the server takes the description for
// complete and writes no checksum, so at the next start it would be missing again, with
// all that was stored meanwhile. Nothing else is removed: a creation finds the messages
// that are there.
func removeHalfCreated(dir string) error {
	store := os.DirFS(dir)
	for _, pattern := range metaFiles {
		names, err := fs.Glob(store, pattern)
		if err != nil {
			return err // the pattern is wrong
		}
		for _, name := range names {
			if _, err := fs.Stat(store, path.Join(path.Dir(name), "meta.sum")); !errors.Is(err, fs.ErrNotExist) {
				continue // what can't be read is the server's to report
			}
			if err := os.Remove(filepath.Join(dir, filepath.FromSlash(name))); err != nil {
				return fmt.Errorf("remove the description of a stream that was not created: %w", err)
			}
		}
	}
	return nil
}
