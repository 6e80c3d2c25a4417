package load

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/llm-stage/stage/internal/files/rowfile"
)

// hashStep is how many bytes are hashed between two looks at the context.
const hashStep = 1 << 20

// Extends reports whether the source has grown from a content of size bytes with that sum:
// it begins with the same bytes, and whole rows follow. If not, why is the reason for
// people, or "" if the content is simply another one. The source must be one that can be
// read twice.
func (s *Source) Extends(ctx context.Context, size int64, sum string) (grown bool, why string, err error) {
	switch {
	case s.Bytes < size:
		return false, "it is shorter than it was", nil
	case s.Bytes == size:
		return false, "", nil
	case s.Layout.Format == rowfile.FormatJSON:
		return false, "a JSON array cannot grow and stay the same job: use JSONL, to which lines can be added", nil
	case s.Compressed:
		return false, "a compressed file cannot grow and stay the same job: use it uncompressed, so that lines can be added", nil
	}
	hash, prefix := sha256.New(), io.NewSectionReader(s.file, 0, size)
	for err == nil {
		if ctx.Err() != nil {
			return false, "", context.Cause(ctx)
		}
		_, err = io.CopyN(hash, prefix, hashStep)
	}
	if !errors.Is(err, io.EOF) {
		return false, "", err
	}
	if hex.EncodeToString(hash.Sum(nil)) != sum {
		return false, "what was there before has changed", nil
	}
	whole, err := s.endsRow(size)
	if err == nil && !whole {
		why = "its last line was read as a row, and has been continued: add whole lines only"
	}
	return whole, why, err
}

// endsRow reports whether a row ends at an offset of the source, which is then right before
// or after the end of a line. The offset is not between quotes: the earlier read, which
// ended there, would have failed.
func (s *Source) endsRow(offset int64) (bool, error) {
	if offset == 0 {
		return true, nil
	}
	around := make([]byte, len("\n")+len("\r\n"))
	n, err := s.file.ReadAt(around, offset-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	before, after := around[:min(n, 1)], around[min(n, 1):n]
	// Of CR CR LF, the earlier read took the first CR for the end of its last line, and now
	// that CR is text.
	crlf := bytes.Equal(after, []byte("\r\n")) && !bytes.Equal(before, []byte("\r"))
	return bytes.Equal(before, []byte("\n")) || bytes.HasPrefix(after, []byte("\n")) || crlf, nil
}

// Grown reports whether the file has become longer since it was opened. The added part is
// not read.
func (s *Source) Grown() bool {
	if s.file == nil {
		return false
	}
	info, err := s.file.Stat()
	return err == nil && info.Size() > s.Bytes
}

// lineEnd returns the offset after the line that an offset of a growing file is in. It
// returns the given offset if a line begins there, or if the line has no end yet.
func lineEnd(file *os.File, offset int64) (int64, error) {
	if offset == 0 {
		return 0, nil
	}
	in := io.NewSectionReader(file, offset-1, 1<<62)
	buf := make([]byte, 64<<10)
	for at := offset - 1; ; {
		n, err := in.Read(buf)
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
		at += int64(n)
		if errors.Is(err, io.EOF) {
			return offset, nil
		}
		if err != nil {
			return 0, err
		}
	}
}
