package job

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/files/rowfile"
)

const (
	// notesFile, below the job's directory, notes which files the job has written, and
	// with which contents. --fresh keeps it: results of an earlier run of the job may be
	// replaced.
	notesFile = "outputs.json"
	// notesMax bounds the notes of a job; the oldest go first.
	notesMax = 32
	// headerBytesMax bounds how much of the header of a table is kept in memory. The names
	// of the columns are bounded when it is written.
	headerBytesMax = 4 << 20
)

// outputNote is the content of a file as the job has written it. A later run may replace
// a file with that content, and no other one.
type outputNote struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	Sum     string `json:"sha256"`
	Growing bool   `json:"growing,omitempty"` // more may have been written since
}

// outputNotes are the notes of the job in a directory. Together they answer one question
// at the next start: may the job replace this file, or would a user lose something?
type outputNotes struct{ dir string }

// read returns the notes. Damaged ones count as none: then the user is asked to decide
// about the file.
func (n outputNotes) read() (notes []outputNote, err error) {
	raw, err := os.ReadFile(filepath.Join(n.dir, notesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(raw, &notes) != nil {
		notes = nil // damaged
	}
	return notes, nil
}

// add adds a note. It replaces one of the same content, and one of the same file that was
// still growing.
func (n outputNotes) add(note outputNote) error {
	notes, err := n.read()
	notes = slices.DeleteFunc(notes, func(old outputNote) bool {
		return old.Path == note.Path && (old.Growing || old.Sum == note.Sum)
	})
	notes = append(notes, note)
	var raw []byte
	if err == nil { // after a failed read, a write would drop all other notes
		raw, err = json.MarshalIndent(notes[max(0, len(notes)-notesMax):], "", "  ")
	}
	if err == nil {
		err = jobs.WriteFile(filepath.Join(n.dir, notesFile), append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note what the output holds: %w", err)
	}
	return nil
}

// check returns how many lines a file has. It is an error if the file holds anything but
// results that the job has written. With force it is no error, and the number is 0, so that
// any content is replaced at once. field is the name of the replies' member.
func (n outputNotes) check(path, field string, force bool) (lines int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil || info.Size() == 0 || force {
		return 0, err
	}
	notes, err := n.read()
	if err != nil {
		return 0, err
	}
	for _, note := range notes {
		// A note whose length can't be right needs no hash of the whole file.
		if note.Bytes != info.Size() &&
			(!note.Growing || note.Path != path || note.Bytes > info.Size()) {
			continue
		}
		if lines, ok := note.matches(f, field); ok {
			return lines, nil
		}
	}
	if _, err := os.Stat(filepath.Join(n.dir, jobs.IdentityFile)); errors.Is(err, fs.ErrNotExist) {
		return 0, errors.New("that file exists, and the job has written no results yet: " +
			"name another file, or replace it with --force")
	}
	return 0, fmt.Errorf("that file holds something other than the results that job %s has "+
		"written: name another file, or replace it with --force", filepath.Base(n.dir))
}

// matches reports whether a file holds the noted content and, if the file was growing,
// nothing but results after that. A last line without an end is one that a kill has cut
// off.
func (note *outputNote) matches(f *os.File, field string) (lines int64, ok bool) {
	whole := newContent()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, false
	}
	if _, err := io.CopyN(whole, f, note.Bytes); err != nil || whole.hash() != note.Sum {
		return 0, false
	}
	if IsTable(note.Path) && note.Growing {
		return tableLines(f, field)
	}
	for rest := bufio.NewReader(f); ; whole.lines++ {
		line, err := rest.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF): // the line that a kill has cut off
			return whole.lines, len(line) == 0 || note.Growing
		case err != nil || !note.Growing || !isResult(line, field):
			return 0, false
		}
	}
}

// isResult reports whether a line is a result of a stage: it has the member of the reply,
// or one that belongs to it, such as llm_response_error.
func isResult(line []byte, field string) bool {
	if isBatchLine(line) {
		return true
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(line, &members) != nil {
		return false
	}
	for name := range members {
		if strings.HasPrefix(name, field) {
			return true
		}
	}
	return false
}

// tableLines returns how many lines a table of results has that was growing when the job
// was killed. ok is false if it holds anything else.
//
// All of it is read again: a record may have several lines, so nothing is known of the
// quotes after an offset. Each record must have as many columns as the header. The
// delimiter is an option of the run that wrote the table, and the header shows it, since
// it ends with columns of known names.
func tableLines(f *os.File, field string) (lines int64, ok bool) {
	header, whole, lines, err := wholeRecords(f)
	if err != nil {
		return 0, false
	}
	if whole == 0 {
		return 0, true
	}
	delimiter, ok := headerDelimiter(header, field)
	if !ok {
		return 0, false
	}
	mark := int64(0)
	// Without the mark, the first name may be quoted. Read as part of that name, the mark
	// would make its quote a stray one.
	if bytes.HasPrefix(header, []byte(byteOrderMark)) {
		mark = int64(len(byteOrderMark))
	}
	in := csv.NewReader(io.NewSectionReader(f, mark, whole-mark))
	in.Comma, in.ReuseRecord = rune(delimiter), true
	names, err := in.Read()
	last := lastColumns(field)
	if err == nil && (len(names) < len(last) || !slices.Contains(names, field) ||
		!slices.Equal(names[len(names)-len(last):], last)) {
		return 0, false
	}
	for err == nil {
		_, err = in.Read()
	}
	return lines, errors.Is(err, io.EOF)
}

// headerDelimiter returns the delimiter of a table with this header: the character before
// its last column, which is the error of the reply. For example, it is ; in
//
//	id;text;answer;…;answer_error_reason;answer_error
func headerDelimiter(header []byte, field string) (delimiter byte, ok bool) {
	lasts := lastColumns(field)
	name := lasts[len(lasts)-1]
	line := bytes.TrimSuffix(header, []byte("\n"))
	// The name is in quotes if it contains the delimiter.
	for _, text := range []string{name, `"` + strings.ReplaceAll(name, `"`, `""`) + `"`} {
		if rest, found := bytes.CutSuffix(line, []byte(text)); found && len(rest) > 0 {
			delimiter = rest[len(rest)-1]
			if _, err := rowfile.ParseDelimiter("", string(delimiter)); err == nil {
				return delimiter, true
			}
		}
	}
	return 0, false
}

// wholeRecords returns how many bytes and lines of a table are whole records, and the
// header. A line end within quotes is part of a value, so a record ends at the first line
// end with an even number of quotes before it. The rest was cut off by a kill.
func wholeRecords(f *os.File) (first []byte, size, lines int64, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, 0, 0, err
	}
	quoted := false
	var at, seen int64
	for in := bufio.NewReader(f); ; {
		piece, err := in.ReadSlice('\n')
		at += int64(len(piece))
		if size == 0 && len(first) < headerBytesMax {
			first = append(first, piece...)
		}

		quoted = quoted != (bytes.Count(piece, []byte{'"'})%2 == 1)
		if bytes.HasSuffix(piece, []byte("\n")) {
			if seen++; !quoted {
				size, lines = at, seen
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return first, size, lines, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, 0, 0, err
		}
	}
}

// content measures what is written to it, for the note of a file.
type content struct {
	sum   hash.Hash
	size  int64 // in bytes
	lines int64
}

func newContent() *content { return &content{sum: sha256.New()} }

// Write implements [io.Writer]. It never fails.
func (c *content) Write(p []byte) (int, error) {
	c.size += int64(len(p))
	c.lines += int64(bytes.Count(p, []byte("\n")))
	return c.sum.Write(p)
}

// hash returns the hash of the content so far, as notes have it.
func (c *content) hash() string { return hex.EncodeToString(c.sum.Sum(nil)) }

// note returns the note of the file at path that has this content.
func (c *content) note(path string, growing bool) outputNote {
	return outputNote{Path: path, Bytes: c.size, Sum: c.hash(), Growing: growing}
}
