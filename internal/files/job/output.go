package job

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
)

// noteEvery is how often a note is written of what a growing file holds. After a kill,
// the lines that came after the last note are looked at one by one.
const noteEvery = time.Second

// output is the place where a job writes its results. A file is written beside its place,
// under a hidden name, and takes its place once it holds as many results as the file that
// is there, or at once if there is none. From then on it grows in place. So at any moment
// the file holds whole results in order, and never fewer than before unless fewer were
// asked for:
//
//	reviews.out.jsonl                     900 results of an earlier run
//	.reviews.out.jsonl.1f3a90c2.partial   grows from 0
//
// With a kill at 500 results, the 900 stay. At 900, a rename replaces the old file, and
// the results from 901 on are appended to the new one. A full disk leaves the old file or
// a longer one, too. A place that is not a regular file, such as a pipe, is written
// directly.
//
// It is safe for concurrent use: a write that was abandoned may come after close.
type output struct {
	path    string // path of the file, links resolved, or "" if it is no regular file
	temp    string // where it is written before it takes its place
	force   bool   // the present file is replaced, even if it holds other data
	notes   outputNotes
	special io.Writer // a pipe, a terminal or the like, written directly, or nil for a file
	device  string    // path that open opens as special, or "" if special is open already

	mu     sync.Mutex
	old    os.FileInfo // the file at path, or nil
	wanted int64       // lines that the file must have before it takes its place
	file   *os.File    // nil while it is not open
	placed bool        // the file is at path
	whole  *content    // what was written
	noted  time.Time   // when a note was written last
}

// newOutput checks whether the results of the job in dir can go to path, before anything
// is started. A path of "" or "-" is stdout. A file that holds anything but results that
// this job has written is refused, unless force is set.
func newOutput(stdout io.Writer, path, input, dir, field string, force bool) (*output, error) {
	if path == "" || path == "-" {
		return &output{special: stdout}, nil
	}
	switch ext := filepath.Ext(path); strings.ToLower(ext) {
	case ".gz", ".zst", ".xz", ".bz2", ".zip":
		return nil, fmt.Errorf("results are not compressed: leave %s out", ext)
	}
	if err := checkOut(path, input); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	switch out, isFile := stdout.(*os.File); {
	case info == nil:
	case isFile && isSame(out, info):
		// like -o /dev/stdout: a file that the shell has opened is not replaced.
		return &output{special: stdout}, nil
	case !info.Mode().IsRegular() || isDevice(path):
		return &output{device: path}, nil
	}
	o := &output{path: resolveLinks(path), force: force, notes: outputNotes{dir: dir}}
	if abs, err := filepath.Abs(o.path); err == nil {
		o.path = abs
	}
	o.temp = partialOf(o.path, dir)
	if err := o.checkBeside(); err != nil {
		return nil, err
	}

	// The file at the place decides how many results the new one needs before it may take
	// over.
	if o.old = info; info == nil {
		return o, nil
	}
	o.wanted, err = o.notes.check(o.path, field, force)
	return o, err
}

// checkOut reports why a job can't write a file, before anything is started.
func checkOut(path, input string) error {
	if dir, err := os.Stat(filepath.Dir(path)); err != nil {
		return err
	} else if !dir.IsDir() {
		return fmt.Errorf("%s is not a directory", filepath.Dir(path))
	}
	out, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // it will be created
	}
	in, err := os.Stat(input)
	switch {
	case out.IsDir():
		return errors.New("that is a directory: name a file")
	case err == nil && out.Mode().IsRegular() && os.SameFile(in, out):
		return errors.New("that is the input, whose rows would be lost: name another file")
	case out.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0) // a rename would not ask for the permission
		if err != nil {
			return err
		}
		return f.Close()
	}
	return nil
}

// checkBeside reports why no file can be created beside the one at path.
func (o *output) checkBeside() error {
	f, err := os.CreateTemp(filepath.Dir(o.path), ".stage-*")
	if err != nil {
		return fmt.Errorf("results are written beside that file first: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// resolveLinks returns where symbolic links lead, also to a file that does not exist yet:
// a rename replaces the file, not the link.
func resolveLinks(path string) string {
	for range 40 {
		target, err := os.Readlink(path)
		if err != nil {
			return path
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return path
}

// partialOf returns where the file at path is written before it takes its place. The name
// is cut, since a file system may allow no more than 255 bytes.
func partialOf(path, dir string) string {
	name := filepath.Base(path)
	name = string(bytes.ToValidUTF8([]byte(name[:min(len(name), 180)]), nil))
	// Two jobs never share a file, and one runs only once at a time.
	job := sha256.Sum256([]byte(dir))
	return filepath.Join(filepath.Dir(path), "."+name+"."+hex.EncodeToString(job[:4])+".partial")
}

// isSame reports whether an open file is the one that info describes.
func isSame(f *os.File, info os.FileInfo) bool {
	open, err := f.Stat()
	return err == nil && os.SameFile(open, info)
}

// isDevice reports whether a path may name an open file of the process, such as
// /dev/fd/3. A file beside it would be in another place than the file that it stands for.
func isDevice(path string) bool {
	return strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/")
}

// open makes the output ready for the results. The caller must close it. ctx bounds the
// wait for the reader of a named pipe.
func (o *output) open(ctx context.Context) error {
	if o.device != "" {
		f, err := openDevice(ctx, o.device)
		if err != nil {
			return err
		}
		o.special, o.file = f, f
	}
	if o.special != nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.begin(); err != nil {
		if o.file != nil { // nothing is left beside a file that can't be replaced
			_ = o.file.Close()
			_ = os.Remove(o.temp)
		}
		return config.Invalid(fmt.Errorf("-o %w", err))
	}
	return nil
}

// openDevice opens a device or a named pipe, which waits for a reader. The error is the
// cause of ctx if that ends first.
func openDevice(ctx context.Context, path string) (*os.File, error) {
	type outcome struct {
		file *os.File
		err  error
	}
	opened := make(chan outcome, 1)
	go func() { // ends with the process if nobody ever reads
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		opened <- outcome{f, err}
	}()
	select {
	case o := <-opened:
		if o.err != nil {
			return nil, config.Invalid(fmt.Errorf("-o %w", o.err))
		}
		return o.file, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// writer returns where the results are written: whole lines at a time.
func (o *output) writer() io.Writer {
	if o.special != nil {
		return o.special
	}
	return o
}

// rewriter returns the function that begins to write the results again from the first, or
// nil if written results can't be taken back, as from a pipe.
func (o *output) rewriter() func() error {
	if o.special != nil {
		return nil
	}
	return o.again
}

// again begins a new file, which takes the place of the present one once it holds as many
// results.
func (o *output) again() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.placed {
		o.wanted = o.whole.lines
		if err := o.end(); err != nil {
			return err
		}
		var err error
		if o.old, err = os.Stat(o.path); err != nil {
			return err
		}
	} else {
		_ = o.file.Close() // it is written again
	}
	return o.begin()
}

// begin creates the file beside its place. The mutex is held.
func (o *output) begin() error {
	mode := fs.FileMode(0o666)
	if o.old != nil {
		mode = o.old.Mode().Perm()
	}
	f, err := os.OpenFile(o.temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, mode)
	if err != nil {
		return fmt.Errorf("%s: results are written beside that file first: %w", o.path, err)
	}
	o.file, o.placed, o.whole = f, false, newContent()
	if o.old != nil {
		_ = f.Chmod(mode) // for any umask; a file system without permissions is none the worse
	}
	return o.takePlace()
}

// Write implements [io.Writer] for a file.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return 0, fs.ErrClosed
	}

	if n, err := o.file.Write(p); err != nil {
		_ = o.file.Truncate(o.whole.size) // so that no half line stays
		return n, o.explain(err)
	}
	_, _ = o.whole.Write(p)
	if !o.placed {
		return len(p), o.takePlace()
	}
	if time.Since(o.noted) > noteEvery {
		_ = o.note(true) // without it the next start looks at more lines
	}
	return len(p), nil
}

// explain adds to the error of a failed write the consequence for the file that the user
// has named.
func (o *output) explain(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if o.old != nil && !o.placed {
		return fmt.Errorf("%s: %w: the file is as it was", o.path, err)
	}
	return fmt.Errorf("%s: %w", o.path, err)
}

// takePlace moves the file to its place if it holds enough. If an older file is there and
// the calls have taken all file descriptors, that is no error: the next write tries again,
// and at last close.
func (o *output) takePlace() error {
	if o.whole.lines < o.wanted {
		return nil
	}
	err := o.place()
	if o.old != nil && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) {
		return nil
	}
	return err
}

// place moves the file to its place. The note comes first, so that the next start knows
// the file, wherever this process is killed.
func (o *output) place() error {
	now, err := os.Stat(o.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !o.force && !unchanged(o.old, now) {
		return fmt.Errorf("%s: another program has written it meanwhile, and it is left as it is: "+
			"name another file (the results are stored, no call is made again), "+
			"or replace it with --force", o.path)
	}
	if err := o.file.Sync(); err != nil {
		return o.explain(err)
	}
	if err := o.note(true); err != nil {
		return err
	}

	if runtime.GOOS == "windows" { // Windows renames no open file
		if err := o.file.Close(); err != nil {
			return o.explain(err)
		}
		o.file = nil
	}
	if err := os.Rename(o.temp, o.path); err != nil {
		return fmt.Errorf("%s: move the results there: %w", o.path, err)
	}
	o.placed = true
	if o.file == nil {
		o.file, err = os.OpenFile(o.path, os.O_WRONLY|os.O_APPEND, 0)
		return err
	}
	return nil
}

// unchanged reports whether a file is as it was. nil stands for a file that does not
// exist.
func unchanged(then, now os.FileInfo) bool {
	if then == nil || now == nil {
		return then == now
	}
	return os.SameFile(then, now) && then.Size() == now.Size() &&
		then.ModTime().Equal(now.ModTime())
}

// note writes down the size and hash of the file, and whether it still grows.
func (o *output) note(growing bool) error {
	o.noted = time.Now()
	return o.notes.add(o.whole.note(o.path, growing))
}

// end closes a file that is in its place. The mutex is held.
func (o *output) end() error {
	err := errors.Join(o.file.Sync(), o.checkPlace(), o.note(false), o.file.Close())
	o.file = nil
	return err
}

// checkPlace reports whether another program has replaced the file or written to it.
func (o *output) checkPlace() error {
	now, err := os.Stat(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: another program has removed it meanwhile: "+
			"the same command writes it again, without a call", o.path)
	case err != nil:
		return err
	case !isSame(o.file, now) || now.Size() != o.whole.size:
		return fmt.Errorf("%s: another program has written it meanwhile: "+
			"name another file (the results are stored, no call is made again), "+
			"or replace it with --force", o.path)
	}
	return nil
}

// close ends the output. complete says that it holds all results that were asked for, so
// that it takes its place even if the older file there holds more. A file that is neither
// complete nor in its place is removed.
func (o *output) close(complete bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.special != nil {
		if o.file != nil {
			return o.file.Close()
		}
		return nil
	}
	var err error
	if o.file != nil && !o.placed && complete {
		err = o.place()
	}
	if o.placed && o.file != nil {
		return errors.Join(err, o.end())
	}
	if o.file != nil {
		_ = o.file.Close() // it is removed
		o.file = nil
	}
	if !o.placed {
		_ = os.Remove(o.temp)
	}
	return err
}

// showResult is [writeJSONLine] to a terminal.
func showResult(w io.Writer, r stored.Result) error {
	return stored.WriteLine(w, terminal.EscapeJSON(r.Body))
}

// writeJSONLine writes a result as one line of JSON.
func writeJSONLine(w io.Writer, r stored.Result) error { return stored.WriteLine(w, r.Body) }
