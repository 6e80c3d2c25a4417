package batchapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

func clientOf(tb testing.TB, provider string, limit int64) caller {
	tb.Helper()
	client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{BaseURL: "http://llm.test/v1", APIKey: redact.NewSecret("sk-secret-0123456789"), Model: "m", MaxReplyBytes: limit}))(tb)
	tb.Cleanup(client.Close)
	return caller{client}
}

// TestBatchesAndLinesAreReadLeniently runs testdata/read/lenient.txt: what this package makes of a batch, or of a line.
func TestBatchesAndLinesAreReadLeniently(t *testing.T) {
	datadriven.RunTest(t, "testdata/read/lenient.txt", func(t *testing.T, d *datadriven.TestData) string {
		body := d.Input
		if d.HasArg("quoted") {
			body = must.Value(strconv.Unquote(body))(t)
		}
		if d.HasArg("line") {
			read := map[string]func([]byte) Line{llm.OpenAI: openAILine, llm.Anthropic: messageLine, llm.Gemini: geminiLine}[d.Cmd]
			l := read([]byte(body))
			kind := map[Kind]string{Answered: "answered", Lapsed: "lapsed", Garbled: "garbled"}[l.Kind]
			return fmt.Sprintf("%s %s %d %s\n", l.ID, kind, l.Status, strings.ToValidUTF8(string(l.Body), `\x`))
		}
		c := clientOf(t, d.Cmd, 0)
		var b Batch
		switch d.Cmd {
		case llm.Anthropic:
			var m messageBatch
			must.Do(t, json.Unmarshal([]byte(body), &m))
			b = m.batch()
		case llm.Gemini:
			var op operation
			must.Do(t, json.Unmarshal([]byte(body), &op))
			b = (&geminiBatches{c}).batch(&op)
		default:
			var o batchObject
			must.Do(t, c.read(&llm.RawReply{Status: 200, Body: []byte(body)}, &o))
			b = newOpenAI(c, "").batch(&o)
		}
		got := fmt.Sprintf("%s %s %s %s in %s out %s err %s rows %d %d %d\n", b.ID, b.Token, b.State, b.Created.Format(time.RFC3339Nano), b.Input, b.Output, b.Errors, b.Rows, b.Answered, b.Failed)
		if r := b.Refusal; r != nil {
			got += fmt.Sprintf("capacity %t %v %v %s\n", r.Capacity, r.Lines, r.Err.Class, cmp.Or(r.Err.Code, r.Err.Type))
		}
		return got
	})
}

// A line that is longer than any reply may be fails its row as a live reply does, where its id can be told.
func TestLongLinesAreBounded(t *testing.T) {
	c := clientOf(t, llm.OpenAI, 1000)
	long := `{"id":"r","custom_id":"a-1","response":{"status_code":200,"body":"` + strings.Repeat("x", 1<<20)
	input := "\ufeff" + `{"custom_id":"a-0","response":{"status_code":200,"body":{}}}` + "\r\n\n" + long + "\n" + strings.Repeat("y", 1<<20) + "\n" + `{"custom_id":"a-2","response":{"status_code":200,"body":{}}}`
	var got []string
	err := c.readLines(t.Context(), strings.NewReader(input), openAILine, func(l Line) error {
		got = append(got, fmt.Sprintf("%s %d", l.ID, l.Kind))
		if l.ID == "a-1" {
			p, err := c.client.Prepare(&llm.Request{Prompt: "x"})
			if err != nil {
				return err
			}
			if _, err := c.client.ReadReply(p, l.Status, l.Body); err == nil || !strings.Contains(err.Error(), "bound") || len(l.Body) > 1000+overheadBytes {
				t.Errorf("the long line's error: %v, %d bytes", err, len(l.Body))
			}
		}
		return nil
	})
	if want := "[a-0 1 a-1 1  3 a-2 1]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v %v, want %s", got, err, want)
	}
}

// A byte order mark before Gemini's list of results, which is one JSON value, is ignored.
func TestInlinedResultsBehindAByteOrderMark(t *testing.T) {
	g := &geminiBatches{clientOf(t, llm.Gemini, 1000)}
	for _, mark := range []string{"", "\ufeff"} {
		var got []string
		err := g.readInlined(t.Context(), strings.NewReader(mark+`{"response":{"inlinedResponses":{"inlinedResponses":[{"key":"a","response":{}}]}}}`), func(l Line) error {
			got = append(got, l.ID)
			return nil
		})
		if err != nil || fmt.Sprint(got) != "[a]" {
			t.Errorf("mark %q: %v, %v", mark, got, err)
		}
	}
}

// Whatever a file of results holds, each line of it is read once, in bounded time and memory.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"custom_id":"a-1","response":{"status_code":200,"body":{}}}` + "\n" + `{"custom_id":"a-2","result":{"type":"errored","error":{"type":"x"}}}`))
	f.Add([]byte("\ufeff{\"key\":\"a\",\"error\":{\"code\":8,\"details\":[1]}}\r\n\r\n{"))
	f.Add([]byte(`{"response":{"inlinedResponses":{"inlinedResponses":[{"key":"a","response":{}},{"metadata":{"key":"b"}}]}}}`))
	c := clientOf(f, llm.OpenAI, 1<<10)
	g := &geminiBatches{c}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := strings.Count(string(data), "\n") + 1
		for _, read := range []func([]byte) Line{openAILine, messageLine, geminiLine} {
			n := 0
			_ = c.readLines(t.Context(), strings.NewReader(string(data)), read, func(l Line) error { // any error will do
				if n++; l.Kind == 0 || (l.ID == "") != (l.Kind == Garbled) || len(l.Body) > 2*len(data)+200 {
					t.Errorf("line %+v", l)
				}
				return nil
			})
			if n > lines {
				t.Errorf("%d lines of %d", n, lines)
			}
		}
		_ = g.readInlined(t.Context(), strings.NewReader(string(data)), func(Line) error { return nil }) // as above
	})
}
