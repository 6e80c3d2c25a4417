package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mountDisk mounts a disk of so many bytes, in memory, on a directory. It needs root.
func mountDisk(dir string, bytes int64) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		return fmt.Errorf("mount a small disk on %s, which needs root: %w", dir, err)
	}
	return nil
}

// unmountDisk takes the disk away, with all that is on it.
func unmountDisk(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }

// fillDisk takes all room that is left on the disk, until free is called.
func fillDisk(dir string) (free func() error, err error) {
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	for size := int64(0); ; {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			return nil, err
		}
		left := int64(st.Bavail) * st.Bsize
		if left <= 0 {
			return func() error { return os.Remove(f.Name()) }, nil
		}
		err := syscall.Fallocate(int(f.Fd()), 0, size, left)
		switch {
		case err == nil:
			size += left
		case !errors.Is(err, syscall.ENOSPC): // the server was faster
			return nil, err
		}
	}
}
