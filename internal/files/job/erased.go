package job

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/ops/erased"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// erasedBody returns the line that stands in OUT for the result of a row that was erased:
// a result without a reply, whose error says so. field is the name of the reply's member.
// For example, with the field answer:
//
//	{"answer":null,"answer_error":{"error":"erased at … by alice","reason":"erased"}}
func erasedBody(field string, t *proof.Tombstone) []byte {
	text := "erased at " + t.At.UTC().Format(time.RFC3339) + " by " + t.Who
	name, _ := json.Marshal(field)                                               //nolint:errchkjson // a string
	errorName, _ := json.Marshal(field + "_error")                               //nolint:errchkjson // as above
	why, _ := json.Marshal(map[string]string{"reason": "erased", "error": text}) //nolint:errchkjson // strings
	return fmt.Appendf(nil, "{%s:null,%s:%s}", name, errorName, why)
}

// hasNoReply reports whether a result has the reason in place of a reply. An erased result
// does not count as failed, but is written like one.
func hasNoReply(r stored.Result) bool { return r.Failed || r.Erased }

// resultsOf reads the results of a job in the order in which they were stored, and
// returns an erased result in its old place. The stream has a gap there, and the
// tombstone that says what was erased is at the end of the stream. So the results and the
// tombstones, sorted by place, are merged. One goroutine uses it.
type resultsOf struct {
	places *places
	reader *stored.Reader
	peeked *stored.Result  // a result that was read, but not returned yet, or nil
	stones []stored.Result // erased results that were not returned yet, by place
	at     uint64          // place of the result that was returned last
	stone  uint64          // sequence of the last tombstone that was read
}

// Close ends the reading.
func (s *resultsOf) Close() { s.reader.Close() }

// next is [stored.NextResult], with the erased results in their places.
func (s *resultsOf) next(ctx context.Context, wait time.Duration) (stored.Result, error) {
	if s.peeked == nil {
		r, err := stored.NextResult(ctx, s.reader, wait)
		if err != nil && !errors.Is(err, stored.ErrNoMore) {
			return r, err
		}
		if err := s.readStones(ctx); err != nil {
			return r, err
		}
		if err != nil {
			if len(s.stones) == 0 {
				return r, err
			}
			return s.pop(), nil
		}
		s.peeked = &r
	}
	for len(s.stones) > 0 && s.stones[0].At <= s.peeked.At {
		// A result that is still there, beside its tombstone, is returned itself: its
		// erasure was interrupted.
		if stone := s.pop(); stone.At < s.peeked.At {
			return stone, nil
		}
	}
	r := *s.peeked
	s.peeked, s.at = nil, r.At
	return r, nil
}

// pop returns the first erased result.
func (s *resultsOf) pop() stored.Result {
	r := s.stones[0]
	s.stones, s.at = s.stones[1:], r.At
	return r
}

// readStones reads the tombstones again if a new one was stored. One look at the last
// tombstone shows that, so a job without erased rows reads no others.
func (s *resultsOf) readStones(ctx context.Context) error {
	p := s.places
	last, err := stored.LastMessage(ctx, p.js.Conn(), p.cfg.Result.Stream,
		stored.ErasedSubject(p.cfg, "0", "*"))
	if err != nil || last == nil || last.Sequence == s.stone {
		return err
	}
	s.stone, s.stones = last.Sequence, nil
	err = erased.Each(ctx, p.js, p.cfg, 0, func(t *proof.Tombstone) error {
		if t.Sequence <= s.at {
			return nil
		}
		r := stored.Result{
			At: t.Sequence, Stored: t.At, Seq: t.Row, Low: t.Row, Subject: p.subject,
			Erased: true, Body: erasedBody(p.cfg.Prompt.ResponseField, t),
		}
		// A result that replaces another one is the result of a row that was published
		// again.
		if r.Replaces, _ = strconv.ParseUint(t.Header(streams.HeaderReplaces), 10,
			64); r.Replaces > 0 {
			r.Subject = p.redriven
		}
		s.stones = append(s.stones, r)
		return nil
	})
	slices.SortFunc(s.stones, func(a, b stored.Result) int { return cmp.Compare(a.At, b.At) })
	return err
}

// Eraser returns the function for [erase.Options.Results] of a job: it replaces the lines
// of the results in all files of the job. Of a file in any other form than JSON lines it
// notes how to write it again. It refuses while a process works on the job.
func Eraser(
	js jetstream.JetStream, cfg *config.Config, note func(text string),
) func(context.Context, []*jetstream.RawStreamMsg, *proof.Tombstone) error {
	return func(ctx context.Context, results []*jetstream.RawStreamMsg, t *proof.Tombstone) error {
		dir := cfg.Data.Dir
		j, err := jobs.Find(filepath.Dir(dir), filepath.Base(dir))
		if err != nil {
			return err
		}
		if j.State == jobs.Running {
			return fmt.Errorf("process %d works on the job, and its file can't be changed "+
				"meanwhile: wait for it, or end it", j.PID)
		}
		lines := make(map[[sha256.Size]byte][]byte)
		for _, m := range results {
			r, err := stored.NewResult(m)
			if err == nil {
				err = r.Fetch(ctx, js.Conn())
			}
			if err != nil {
				return err
			}
			line, err := lineOf(r)
			if err != nil {
				return err
			}
			lines[line] = append(erasedBody(cfg.Prompt.ResponseField, t), '\n')
		}
		done, left, err := eraseOutputs(dir, lines)
		for _, path := range done {
			note("erased from " + path)
		}
		for path, why := range left {
			note(path + " is as it was: " + why)
		}
		return err
	}
}

// lineOf returns the hash of the line that a job writes for a result.
func lineOf(r stored.Result) (hash [sha256.Size]byte, err error) {
	var b bytes.Buffer
	err = writeJSONLine(&b, r)
	return sha256.Sum256(b.Bytes()), err
}

// eraseOutputs replaces the lines of results in the files that the job in dir has
// written. The key of lines is the hash of a line as the job wrote it, the value is the
// line that takes its place. Each file is replaced as a whole. It returns the files that
// were changed, and why others were left as they are.
func eraseOutputs(
	dir string, lines map[[sha256.Size]byte][]byte,
) (done []string, left map[string]string, err error) {
	notes := outputNotes{dir: dir}
	all, err := notes.read()
	if err != nil {
		return nil, nil, err
	}
	batch, err := writesBatchLines(dir)
	if err != nil {
		return nil, nil, err
	}
	const again = ": the same stage process command writes it again, without a call"
	left = make(map[string]string)
	seen := make(map[string]bool)
	for _, note := range all {
		if seen[note.Path] {
			continue
		}
		seen[note.Path] = true
		if partial := partialOf(note.Path, dir); os.Remove(partial) == nil {
			done = append(done, partial)
		}
		switch info, err := os.Stat(note.Path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return done, left, err
		case !info.Mode().IsRegular():
			left[note.Path] = "it is no regular file"
		case IsTable(note.Path):
			left[note.Path] = "it is a table" + again
		case batch:
			left[note.Path] = "it has the form of OpenAI's Batch API" + again
		default:
			changed, err := eraseLines(notes, note.Path, info.Mode().Perm(), lines)
			if err != nil {
				return done, left, err
			}
			if changed {
				done = append(done, note.Path)
			}
		}
	}
	return done, left, nil
}

// writesBatchLines reports whether the job in dir has requests of OpenAI's Batch API as
// rows, and so writes its results as [batchLines].
func writesBatchLines(dir string) (bool, error) {
	var id identity
	raw, err := os.ReadFile(filepath.Join(dir, jobs.IdentityFile))
	if err == nil {
		err = json.Unmarshal(raw, &id)
	}
	if err != nil {
		return false, fmt.Errorf("job %s: %w", filepath.Base(dir), err)
	}
	return id.Format == string(rowfile.FormatBatch), nil
}

// eraseLines writes a new file beside the old one, with other lines in place of the given
// ones, and moves it there, so that a kill leaves the old file or the new one. The note
// comes before the move. A kill between the two would otherwise leave a file that the job
// does not know as its own, and refuses to replace.
func eraseLines(
	notes outputNotes, path string, mode fs.FileMode, lines map[[sha256.Size]byte][]byte,
) (changed bool, err error) {
	in, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer in.Close() //nolint:errcheck // read only
	temp := path + ".erasing"
	out, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return false, err
	}
	defer os.Remove(temp) //nolint:errcheck // it is gone once it has taken its place

	whole := newContent()
	w := bufio.NewWriter(io.MultiWriter(out, whole))
	for r := bufio.NewReader(in); err == nil; {
		var line []byte
		if line, err = r.ReadBytes('\n'); len(line) == 0 {
			continue
		}
		if other, has := lines[sha256.Sum256(line)]; has {
			line, changed = other, true
		}
		if _, err := w.Write(line); err != nil {
			return false, errors.Join(err, out.Close())
		}
	}

	if !errors.Is(err, io.EOF) {
		return false, errors.Join(err, out.Close())
	}
	if err := errors.Join(w.Flush(), out.Sync(), out.Close()); err != nil || !changed {
		return false, err
	}
	if err := notes.add(whole.note(path, false)); err != nil {
		return false, err
	}
	return true, os.Rename(temp, path)
}
