package batchapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

const (
	// overheadBytes is more than what a line has around a reply.
	overheadBytes = 64 << 10
	// linesMax bounds the lines of one file: ten for each row of the largest batch.
	linesMax = 1_000_000
	// headBytes is how much of a line that is too long is searched for its custom id.
	headBytes = 1 << 10
)

var idOf = regexp.MustCompile(`^\s*\{(?:\s*"id"\s*:\s*"[^"\\]*"\s*,)?\s*"(?:custom_id|key)"\s*:\s*"([A-Za-z0-9_-]{1,64})"`)

// readLines calls f for each line of r that is not empty, until f returns an error. A
// line longer than a reply may be is read to its end, and kept no further than that.
func (c caller) readLines(
	ctx context.Context, r io.Reader, parse func([]byte) Line, f func(Line) error,
) error {
	limit := int(c.client.MaxReplyBytes()) + overheadBytes
	buffered := bufio.NewReaderSize(r, 32<<10)
	for n := 0; n < linesMax; {
		line, long, err := readLine(buffered, limit)
		if err != nil && !errors.Is(err, io.EOF) {
			return c.cut(ctx, err) // what came of the line is no line
		}
		line = bytes.TrimSpace(jsonbytes.TrimBOM(line))
		if len(line) > 0 {
			if n++; n == 1 && line[0] != '{' {
				return c.malformed(http.StatusOK, "no list of results: %.80q",
					excerpt.Of(c.client.Redacted(string(line[:min(len(line), headBytes)]))))
			}
			read := parse
			if long {
				read = longLine
			}
			if err := f(read(line)); err != nil {
				return err
			}
		}
		if err != nil {
			return nil //nolint:nilerr // the end
		}
	}
	return c.malformed(http.StatusOK, "longer than the results of any batch")
}

// cut returns the error of a stream that was cut off.
func (c caller) cut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return &llm.Error{Provider: c.client.Provider(), Err: cause}
	}
	return &llm.Error{
		Provider: c.client.Provider(), Class: llm.Transient, Reason: llm.ReasonAPICallFailed,
		Origin: llm.OfServer,
		Err:    fmt.Errorf("results of a batch were cut: %w", err),
	}
}

// readLine returns the next line in memory of its own, or the beginning of a line that is
// too long. With an error, [io.EOF] included, it returns what came before.
func readLine(r *bufio.Reader, limit int) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if room := limit - len(line); len(part) > room {
			part, long = part[:max(0, room)], true
		}
		if line = append(line, part...); !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

// longLine returns what a line is whose reply is too large. If its id is found it is an
// answer that is longer than any may be, as a live one would be.
func longLine(line []byte) Line {
	if id := idOf.FindSubmatch(line[:min(len(line), headBytes)]); id != nil {
		return Line{ID: string(id[1]), Kind: Answered, Status: http.StatusOK, Body: line}
	}
	return Line{Kind: Garbled}
}

// parseLine unmarshals a line into v and reports whether it is a JSON object.
func parseLine(line []byte, v any) bool {
	return line[0] == '{' && json.Unmarshal(line, v) == nil
}

// isObject reports whether raw is an object.
func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// errorBody returns raw, an error object, as the body of a reply.
func errorBody(raw json.RawMessage) []byte {
	return append(append([]byte(`{"error":`), raw...), '}')
}
