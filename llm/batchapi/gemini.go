package batchapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// geminiBatches is Gemini's batch mode. It takes requests inline, too, but then the
// answers often come back without their keys, so that only their place tells them apart.
// And an input file can be withdrawn. So all requests go in files.
type geminiBatches struct{ caller }

// Limits implements [API].
func (*geminiBatches) Limits() Limits {
	return Limits{Rows: 1_000_000, Bytes: 2e9, Tokens: true, Window: 48 * time.Hour, OneModel: true}
}

// AppendLine implements [API].
func (g *geminiBatches) AppendLine(dst []byte, id string, p *llm.Prepared) []byte {
	request := p.Sent()
	if g.embeds() {
		request = llm.BatchEmbedContents{}.LineRequest(request)
	}
	dst = jsonbytes.AppendString(append(dst, `{"key":`...), id)
	return append(append(append(dst, `,"request":`...), request...), "}\n"...)
}

// embeds reports whether the lines ask for vectors, which have a method of their own.
func (g *geminiBatches) embeds() bool { return g.client.Task() == llm.TaskEmbed }

// Upload implements [API]. A first exchange announces the file and returns an address, to
// which the second one sends it.
func (g *geminiBatches) Upload(ctx context.Context, token string, lines Lines) (string, error) {
	base, err := url.Parse(g.client.BaseURL())
	if err != nil {
		return "", g.malformed(0, "at no address")
	}
	version := path.Base(base.Path)
	base.Path = strings.TrimSuffix(base.Path, "/"+version) + "/upload/" + version + "/files"
	const jsonl = "application/jsonl"
	size := strconv.FormatInt(lines.Size, 10)
	start := append(jsonbytes.AppendString([]byte(`{"file":{"displayName":`), token),
		`,"mimeType":"`+jsonl+`","sizeBytes":"`+size+`"}}`...)
	reply, err := g.call(ctx, &llm.RawRequest{
		Method: http.MethodPost, URL: base.String(), Body: strings.NewReader(string(start)),
		Size: int64(len(start)),
		Header: http.Header{
			"X-Goog-Upload-Protocol": {"resumable"}, "X-Goog-Upload-Command": {"start"},
			"X-Goog-Upload-Header-Content-Type":   {jsonl},
			"X-Goog-Upload-Header-Content-Length": {size},
		},
	}, nil)
	if err != nil {
		return "", err
	}
	to := reply.Header.Get("X-Goog-Upload-Url")
	if to == "" {
		return "", g.malformed(reply.Status, "without the address of the upload")
	}
	var done struct {
		File struct {
			Name text `json:"name"`
		} `json:"file"`
	}
	reply, err = g.call(ctx, &llm.RawRequest{
		Method: http.MethodPost, URL: to, Body: lines.Open(), Size: lines.Size,
		Header: http.Header{
			"Content-Type": {jsonl}, "X-Goog-Upload-Command": {"upload, finalize"},
			"X-Goog-Upload-Offset": {"0"},
		},
	}, &done)
	if err == nil && done.File.Name == "" {
		err = g.malformed(reply.Status, "a file without a name")
	}
	return string(done.File.Name), err
}

// operation is what the provider says of a batch.
type operation struct {
	Name     text            `json:"name"`
	Done     bool            `json:"done"`
	Error    json.RawMessage `json:"error"`
	Response batchOutput     `json:"response"`
	Metadata struct {
		Name        text  `json:"name"`
		DisplayName text  `json:"displayName"`
		State       text  `json:"state"`
		CreateTime  stamp `json:"createTime"`
		InputConfig struct {
			FileName text `json:"fileName"`
		} `json:"inputConfig"`
		Output batchOutput `json:"output"`
		Stats  struct {
			Requests   count `json:"requestCount"`
			Successful count `json:"successfulRequestCount"`
			Failed     count `json:"failedRequestCount"`
		} `json:"batchStats"`
	} `json:"metadata"`
}

// batchOutput says where the results are: in a file or, for a small batch, in the operation
// itself.
type batchOutput struct {
	ResponsesFile text            `json:"responsesFile"`
	Inlined       json.RawMessage `json:"inlinedResponses"`
}

// inlined is the [Batch.Output] of results that are in the operation itself.
const inlined = "inlined"

func (g *geminiBatches) batch(op *operation) Batch {
	m := &op.Metadata
	b := Batch{
		ID: string(op.Name), Token: string(m.DisplayName), State: stateOf(m.State),
		Created: m.CreateTime.Time, Input: string(m.InputConfig.FileName),
		Rows: m.Stats.Requests.number(), Answered: m.Stats.Successful.number(),
		Failed: m.Stats.Failed.number(),
	}
	if b.ID == "" {
		b.ID = string(m.Name)
	}
	for _, output := range [...]batchOutput{op.Response, m.Output} {
		if b.Output == "" {
			b.Output = string(output.ResponsesFile)
		}
		if b.Output == "" && isObject(output.Inlined) {
			b.Output = inlined
		}
	}
	var status rpcStatus
	if isObject(op.Error) {
		_ = json.Unmarshal(op.Error, &status) // unknown: without a code
	}
	switch {
	case b.State == Running && op.Done && status.Code.orZero() == rpcCancelled:
		b.State = Cancelled
	case b.State == Running && op.Done && isObject(op.Error), b.State == Refused && b.Output == "":
		b.State = Refused
		b.Refusal = g.refuse([]fault{status.fault()})
	case b.State == Running && op.Done, b.State == Refused:
		b.State = Ended
	}
	return b
}

func (g *geminiBatches) one(reply *llm.RawReply, op *operation, err error) (Batch, error) {
	if err != nil {
		return Batch{}, err
	}
	b := g.batch(op)
	if b.ID == "" {
		return Batch{}, &uncertainError{g.malformed(reply.Status, "a batch without a name")}
	}
	b.RetryAfter = llm.ParseWait(reply.Header, time.Now()).RetryAfter
	return b, nil
}

// resource returns the path of a name such as "batches/x" or "files/x". Other slashes in
// the name are escaped, so it cannot leave the path.
func resource(kind, name string) string {
	return "/" + kind + "/" + url.PathEscape(strings.TrimPrefix(name, kind+"/"))
}

// Create implements [API].
func (g *geminiBatches) Create(ctx context.Context, job Job) (Batch, error) {
	model := job.Model
	if model == "" {
		model = g.client.Model()
	}
	body := jsonbytes.AppendString([]byte(`{"batch":{"displayName":`), job.Token)
	body = append(jsonbytes.AppendString(append(body, `,"inputConfig":{"fileName":`...), job.File),
		"}}}"...)
	to := strings.TrimSuffix(llm.GenerateContent{}.Path(model), ":generateContent") +
		":batchGenerateContent"
	if g.embeds() {
		to = strings.TrimSuffix(llm.BatchEmbedContents{}.Path(model), ":batchEmbedContents") +
			":asyncBatchEmbedContent"
	}
	var op operation
	reply, err := g.post(ctx, to, body, &op)
	return g.one(reply, &op, err)
}

// Get implements [API].
func (g *geminiBatches) Get(ctx context.Context, id string) (Batch, error) {
	var op operation
	reply, err := g.get(ctx, resource("batches", id), &op)
	return g.one(reply, &op, err)
}

// pages calls f with each page of a list, until it returns false.
func (g *geminiBatches) pages(ctx context.Context, at string, f func(body []byte) bool) error {
	token := ""
	for range pagesMax {
		var p struct {
			Next text `json:"nextPageToken"`
		}
		reply, err := g.get(ctx, at+"&pageToken="+url.QueryEscape(token), &p)
		switch {
		case err != nil:
			return err
		case !f(reply.Body) || p.Next == "":
			return nil
		case string(p.Next) == token:
			return g.malformed(reply.Status, "a list that does not advance")
		}
		token = string(p.Next)
	}
	return g.malformed(http.StatusOK, "a list of more than %d pages", pagesMax)
}

// Find implements [API].
func (g *geminiBatches) Find(
	ctx context.Context, token string, since time.Time, _ int,
) ([]Batch, error) {
	var found []Batch
	var unread error
	err := g.pages(ctx, "/batches?pageSize=50", func(body []byte) bool {
		var p struct {
			Operations []operation `json:"operations"`
			Batches    []operation `json:"batches"`
		}
		if unread = json.Unmarshal(body, &p); unread != nil {
			return false
		}
		all := append(p.Operations, p.Batches...)
		for i := range all {
			if b := g.batch(&all[i]); b.Token == token && b.ID != "" {
				found = append(found, b)
			}
		}
		n := len(all)
		return n == 0 || !passed(all[0].Metadata.CreateTime.Time, all[n-1].Metadata.CreateTime.Time,
			since)
	})
	if unread != nil {
		err = g.malformed(http.StatusOK, "%w", unread)
	}
	return found, err
}

// Withdraw implements [API].
func (g *geminiBatches) Withdraw(ctx context.Context, token string, _ time.Time) (bool, error) {
	var names []string
	err := g.pages(ctx, "/files?pageSize=100", func(body []byte) bool {
		var p struct {
			Files []struct {
				Name        text `json:"name"`
				DisplayName text `json:"displayName"`
			} `json:"files"`
		}
		_ = json.Unmarshal(body, &p) // the page is an object; without a list of files it has none
		for _, f := range p.Files {
			if string(f.DisplayName) == token {
				names = append(names, string(f.Name))
			}
		}
		return true
	})
	for _, name := range names {
		if err == nil {
			err = g.remove(ctx, resource("files", name))
		}
	}
	return err == nil, err
}

// Results implements [API].
func (g *geminiBatches) Results(ctx context.Context, b Batch, f func(Line) error) error {
	to := resource("batches", b.ID)
	switch b.Output {
	case "":
		return nil // an expired batch has none
	case inlined:
	default:
		to = resource("files", b.Output) + ":download?alt=media"
	}
	stream, err := g.stream(ctx, to)
	if deleted(err) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if b.Output == inlined {
		return g.readInlined(ctx, stream, f)
	}
	return g.readLines(ctx, stream, geminiLine, f)
}

// readInlined reads the results within an operation, one at a time:
// response.inlinedResponses.inlinedResponses, or the same below metadata.output.
func (g *geminiBatches) readInlined(ctx context.Context, r io.Reader, f func(Line) error) error {
	limited := &bounded{r: r, max: g.client.MaxReplyBytes() + overheadBytes}
	limited.left = limited.max
	buffered := bufio.NewReader(limited)
	start, _ := buffered.Peek(3) // an error is read again below
	_, _ = buffered.Discard(len(start) - len(jsonbytes.TrimBOM(start)))
	dec := json.NewDecoder(buffered)
	for name := ""; ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return g.cut(ctx, err)
		}
		switch t := token.(type) {
		case json.Delim:
			if t == '[' && name == "inlinedResponses" {
				return g.readElements(ctx, dec, limited, f)
			}
			name = ""
		case string:
			name = t
		default:
			name = ""
		}
	}
}

// readElements reads the elements of the list that dec is in.
func (g *geminiBatches) readElements(
	ctx context.Context, dec *json.Decoder, limited *bounded, f func(Line) error,
) error {
	for dec.More() {
		var raw json.RawMessage
		limited.left = limited.max
		if err := dec.Decode(&raw); err != nil {
			return g.cut(ctx, err)
		}
		if err := f(geminiLine(raw)); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the end of the list, or of the stream
	if err != nil {
		return g.cut(ctx, err)
	}
	return nil
}

// bounded fails where more than max bytes are read for one element.
type bounded struct {
	r         io.Reader
	max, left int64
}

var errTooLong = errors.New("a result is too long")

// Read implements [io.Reader].
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

// geminiLine reads a line of results.
func geminiLine(raw []byte) Line {
	var l struct {
		Key      text `json:"key"`
		Metadata struct {
			Key text `json:"key"`
		} `json:"metadata"`
		Response json.RawMessage `json:"response"`
		Error    json.RawMessage `json:"error"`
	}
	if !parseLine(raw, &l) || l.Key == "" && l.Metadata.Key == "" {
		return Line{Kind: Garbled}
	}
	line := Line{ID: string(l.Key), Kind: Answered}
	if line.ID == "" {
		line.ID = string(l.Metadata.Key)
	}
	switch {
	case isObject(l.Response):
		line.Status, line.Body = http.StatusOK, l.Response
	case isObject(l.Error):
		var status rpcStatus
		if json.Unmarshal(l.Error, &status) != nil {
			return Line{Kind: Garbled}
		}
		if status.Code.orZero() == rpcCancelled {
			line.Kind = Lapsed
			return line
		}
		line.Status, line.Body = status.read(l.Error)
	default:
		return Line{Kind: Garbled}
	}
	return line
}

// rpcStatus is a google.rpc.Status. Its codes are not HTTP codes.
type rpcStatus struct {
	Code    count `json:"code"`
	Status  text  `json:"status"`
	Message text  `json:"message"`
}

const rpcCancelled = 1

// rpcCodes are what live calls report for each code.
var rpcCodes = map[int]struct {
	status int
	name   string
}{
	2: {500, "UNKNOWN"}, 3: {400, "INVALID_ARGUMENT"}, 4: {504, "DEADLINE_EXCEEDED"},
	5: {404, "NOT_FOUND"},
	6: {409, "ALREADY_EXISTS"}, 7: {403, "PERMISSION_DENIED"}, 8: {429, "RESOURCE_EXHAUSTED"},
	9:  {400, "FAILED_PRECONDITION"},
	10: {409, "ABORTED"}, 11: {400, "OUT_OF_RANGE"}, 12: {501, "UNIMPLEMENTED"},
	13: {500, "INTERNAL"},
	14: {503, "UNAVAILABLE"}, 15: {500, "DATA_LOSS"}, 16: {401, "UNAUTHENTICATED"},
}

// read returns the HTTP status of the error, and the body that a live call would have got.
// raw is the error.
func (s *rpcStatus) read(raw json.RawMessage) (status int, body []byte) {
	code, known := rpcCodes[s.Code.orZero()]
	if !known { // of HTTP already, or none
		if n := s.Code.orZero(); n >= 400 && n < 600 {
			status = n
		}
		return status, errorBody(raw)
	}
	body = append([]byte(`{"error":{"code":`), strconv.Itoa(code.status)...)
	body = jsonbytes.AppendString(append(body, `,"message":`...), string(s.Message))
	body = jsonbytes.AppendString(append(body, `,"status":`...), code.name)
	if details := jsonbytes.Find(raw, "details"); len(details) > 0 {
		body = append(append(body, `,"details":`...), details...)
	}
	return code.status, append(body, "}}"...)
}

// fault returns the error as one of a batch.
func (s *rpcStatus) fault() fault {
	f := fault{Type: s.Status, Message: s.Message}
	if code, ok := rpcCodes[s.Code.orZero()]; ok {
		f.Type, f.status = text(code.name), code.status
	}
	return f
}

// Cancel implements [API].
func (g *geminiBatches) Cancel(ctx context.Context, id string) error {
	_, err := g.post(ctx, resource("batches", id)+":cancel", nil, nil)
	return err
}

// Delete implements [API].
func (g *geminiBatches) Delete(ctx context.Context, b Batch) error {
	if b.Input != "" {
		if err := g.remove(ctx, resource("files", b.Input)); err != nil && !deleted(err) {
			return err
		}
	}
	// Results are deleted with their batch; their file cannot be deleted alone.
	return g.remove(ctx, resource("batches", b.ID))
}

// deleted reports whether the file is gone already. The provider answers for a file that
// no longer exists, as for other people's files, that it may not be touched. It deletes
// files by itself after two days.
func deleted(err error) bool {
	e, ok := errors.AsType[*llm.Error](err)
	return ok && e.Status == http.StatusForbidden
}
