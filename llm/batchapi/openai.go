package batchapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// openAI is OpenAI's Batch API, and Azure's, which is made after it.
type openAI struct {
	caller

	endpoint string // of the lines
	path     string // of the API, below the base URL
	query    string // of each address
	azure    bool
	expires  bool // uploaded files may be given an end, without which Azure keeps 500
	limits   Limits
}

const (
	// tokenKey is the token's name in the metadata of a batch.
	tokenKey = "llm_stage_batch"
	// fileLife is the age at which Azure deletes files that nobody else has deleted. It
	// is the longest that Azure allows.
	fileLife = 30 * 24 * time.Hour
	// clockSkew is how far the provider's clock may be from ours.
	clockSkew = time.Hour
	// fileWait is how long Azure may take to process an uploaded file.
	fileWait = 2 * time.Minute
)

func newOpenAI(c caller, endpoint string) *openAI {
	return &openAI{
		caller: c, endpoint: endpoint,
		limits: Limits{
			Rows: 50_000, Bytes: 200e6, Tokens: true, Window: 24 * time.Hour, OneModel: true,
		},
	}
}

func newAzure(c caller) (API, error) {
	p, err := c.client.Prepare(&llm.Request{Prompt: "x"})
	if err != nil {
		return nil, err
	}
	api := &openAI{
		caller: c, endpoint: "/v1" + endpointOf(c.client), path: "/openai/v1", azure: true,
		expires: true,
		limits: Limits{
			Rows: 100_000, Bytes: 200e6, Tokens: true, Poll: time.Minute, OneModel: true,
		},
	}
	// A client for a dated version has it in the address of its calls.
	if _, version, ok := strings.Cut(p.Target(), "api-version="); ok {
		api.endpoint, api.path, api.query, api.expires = endpointOf(c.client), "/openai",
			"api-version="+version, false
	}
	return api, nil
}

// Limits implements [API].
func (o *openAI) Limits() Limits { return o.limits }

// AppendLine implements [API].
func (o *openAI) AppendLine(dst []byte, id string, p *llm.Prepared) []byte {
	dst = jsonbytes.AppendString(append(dst, `{"custom_id":`...), id)
	dst = jsonbytes.AppendString(append(dst, `,"method":"POST","url":`...), o.endpoint)
	return append(append(append(dst, `,"body":`...), p.Sent()...), "}\n"...)
}

// at returns an address of the API.
func (o *openAI) at(path, query string) string {
	query = strings.Trim(o.query+"&"+query, "&")
	if query != "" {
		query = "?" + query
	}
	return o.path + path + query
}

// fileObject is what the provider says of a file.
type fileObject struct {
	ID        text  `json:"id"`
	Filename  text  `json:"filename"`
	CreatedAt stamp `json:"created_at"`
	Status    text  `json:"status"`
}

// Upload implements [API].
func (o *openAI) Upload(ctx context.Context, token string, lines Lines) (string, error) {
	boundary := boundaryOf(token)
	fields := [][2]string{{"purpose", "batch"}}
	if o.expires {
		life := strconv.Itoa(int(fileLife.Seconds()))
		fields = append(fields, [2]string{"expires_after.seconds", life},
			[2]string{"expires_after.anchor", "created_at"})
	}
	var head bytes.Buffer
	for _, f := range fields {
		head.WriteString("--" + boundary + "\r\nContent-Disposition: form-data; name=\"" +
			f[0] + "\"\r\n\r\n" + f[1] + "\r\n")
	}
	head.WriteString("--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"; " +
		"filename=\"" + fileName(token) +
		"\"\r\nContent-Type: application/jsonl\r\n\r\n")
	tail := "\r\n--" + boundary + "--\r\n"
	size := int64(head.Len()) + lines.Size + int64(len(tail))
	var file fileObject
	_, err := o.call(ctx, &llm.RawRequest{
		Method: http.MethodPost, URL: o.at("/files", ""),
		Header: http.Header{"Content-Type": {"multipart/form-data; boundary=" + boundary}},
		Body:   io.MultiReader(&head, lines.Open(), strings.NewReader(tail)), Size: size,
	}, &file)
	if err == nil && file.ID == "" {
		err = o.malformed(http.StatusOK, "a file without an id")
	}
	if err == nil && o.azure {
		err = o.processed(ctx, &file)
	}
	return string(file.ID), err
}

// boundaryOf returns a boundary that practically no request contains: the token in it is
// random, so it cannot be known beforehand.
func boundaryOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "llm-stage-" + hex.EncodeToString(sum[:16])
}

// fileName is the name of the token's input file.
func fileName(token string) string { return token + ".jsonl" }

// processed waits until Azure has processed a file: it refuses a batch of a file that is
// pending.
func (o *openAI) processed(ctx context.Context, file *fileObject) error {
	for start := time.Now(); time.Since(start) < fileWait; {
		switch stateWord(file.Status) {
		case "pending", "running", "notrunning":
		case "error", "failed":
			return o.refuse([]fault{{Message: "the provider could not process the file of the " +
				"batch"}}).Err
		default:
			return nil
		}
		select {
		case <-ctx.Done():
			return &llm.Error{Provider: o.client.Provider(), Err: context.Cause(ctx)}
		case <-time.After(time.Second):
		}
		if _, err := o.get(ctx, o.at("/files/"+url.PathEscape(string(file.ID)), ""),
			file); err != nil {
			return err
		}
	}
	return nil // then the batch's creation shows what is wrong
}

// batchObject is what the provider says of a batch.
type batchObject struct {
	ID           text            `json:"id"`
	Status       text            `json:"status"`
	CreatedAt    stamp           `json:"created_at"`
	InputFileID  text            `json:"input_file_id"`
	OutputFileID text            `json:"output_file_id"`
	ErrorFileID  text            `json:"error_file_id"`
	Metadata     json.RawMessage `json:"metadata"`
	Errors       json.RawMessage `json:"errors"`
	Counts       struct {
		Total     count `json:"total"`
		Completed count `json:"completed"`
		Failed    count `json:"failed"`
	} `json:"request_counts"`
}

func (o *openAI) batch(b *batchObject) Batch {
	batch := Batch{
		ID: string(b.ID), State: stateOf(b.Status), Created: b.CreatedAt.Time,
		Input: string(b.InputFileID), Output: string(b.OutputFileID), Errors: string(b.ErrorFileID),
		Rows: b.Counts.Total.number(), Answered: b.Counts.Completed.number(),
		Failed: b.Counts.Failed.number(),
	}
	var metadata map[string]text
	if json.Unmarshal(b.Metadata, &metadata) == nil {
		batch.Token = string(metadata[tokenKey])
	}
	if batch.State != Refused {
		return batch
	}
	if batch.Output != "" || batch.Errors != "" && b.Counts.Completed.orZero() > 0 {
		batch.State = Ended
		return batch
	}
	batch.Refusal = o.refuse(faultsOf(b.Errors))
	return batch
}

// faultsOf reads a batch's errors: {"data": [...]}, or the list alone.
func faultsOf(raw json.RawMessage) []fault {
	var faults []fault
	list := raw
	if isObject(raw) {
		list = jsonbytes.Find(raw, "data")
	}
	_ = json.Unmarshal(list, &faults) // a list that is malformed has no faults
	return faults
}

// one reads the reply about one batch.
func (o *openAI) one(reply *llm.RawReply, b *batchObject, err error) (Batch, error) {
	if err != nil {
		return Batch{}, err
	}
	if b.ID == "" {
		return Batch{}, &uncertainError{o.malformed(reply.Status, "a batch without an id")}
	}
	batch := o.batch(b)
	batch.RetryAfter = llm.ParseWait(reply.Header, time.Now()).RetryAfter
	return batch, nil
}

// Create implements [API].
func (o *openAI) Create(ctx context.Context, job Job) (Batch, error) {
	body := jsonbytes.AppendString([]byte(`{"input_file_id":`), job.File)
	body = jsonbytes.AppendString(append(body, `,"endpoint":`...), o.endpoint)
	body = jsonbytes.AppendString(append(body, `,"completion_window":"24h","metadata":{"`+tokenKey+
		`":`...), job.Token)
	body = append(body, "}}"...)
	var b batchObject
	reply, err := o.post(ctx, o.at("/batches", ""), body, &b)
	return o.one(reply, &b, err)
}

// Get implements [API].
func (o *openAI) Get(ctx context.Context, id string) (Batch, error) {
	var b batchObject
	reply, err := o.get(ctx, o.at("/batches/"+url.PathEscape(id), ""), &b)
	return o.one(reply, &b, err)
}

// page is one page of a list.
type page[T any] struct {
	Data    []T  `json:"data"`
	HasMore bool `json:"has_more"`
	LastID  text `json:"last_id"`
}

// list calls f for each page of a list, until f returns false.
func list[T any](
	ctx context.Context, c caller, at func(query string) string, query, cursor string,
	id func(*T) text, f func([]T) bool,
) error {
	after := ""
	for range pagesMax {
		var p page[T]
		q := query
		if after != "" {
			q += "&" + cursor + "=" + url.QueryEscape(after)
		}
		reply, err := c.get(ctx, at(q), &p)
		if err != nil {
			return err
		}
		if p.Data == nil {
			return c.malformed(reply.Status, "no list")
		}
		if !f(p.Data) || !p.HasMore || len(p.Data) == 0 {
			return nil
		}
		next := string(cmp.Or(p.LastID, id(&p.Data[len(p.Data)-1])))
		if next == after || next == "" {
			return c.malformed(reply.Status, "a list that does not advance")
		}
		after = next
	}
	return c.malformed(http.StatusOK, "a list of more than %d pages", pagesMax)
}

// passed reports whether a list has come to batches older than since: it goes back in
// time, and its page ends before since.
func passed(first, last, since time.Time) bool {
	return !last.IsZero() && !first.Before(last) && last.Before(since.Add(-clockSkew))
}

// Find implements [API].
func (o *openAI) Find(ctx context.Context, token string, since time.Time, _ int) ([]Batch, error) {
	var files []string
	if o.azure { // its samples show no metadata
		var err error
		if files, err = o.inputs(ctx, token, since); err != nil {
			return nil, err
		}
	}
	var found []Batch
	err := list(ctx, o.caller, func(q string) string { return o.at("/batches", q) }, "limit=100",
		"after",
		func(b *batchObject) text { return b.ID },
		func(data []batchObject) bool {
			for i := range data {
				if b := o.batch(&data[i]); b.ID != "" &&
					(b.Token == token || slices.Contains(files, b.Input)) {
					found = append(found, b)
				}
			}
			return len(data) > 0 && !passed(data[0].CreatedAt.Time,
				data[len(data)-1].CreatedAt.Time, since)
		})
	return found, err
}

// inputs returns the token's input files.
func (o *openAI) inputs(
	ctx context.Context, token string, since time.Time,
) (ids []string, err error) {
	err = list(ctx, o.caller, func(q string) string { return o.at("/files", q) },
		"purpose=batch&limit=1000", "after",
		func(f *fileObject) text { return f.ID },
		func(data []fileObject) bool {
			for _, f := range data {
				if string(f.Filename) == fileName(token) && f.ID != "" {
					ids = append(ids, string(f.ID))
				}
			}
			return len(data) > 0 && !passed(data[0].CreatedAt.Time,
				data[len(data)-1].CreatedAt.Time, since)
		})
	return ids, err
}

// Results implements [API].
func (o *openAI) Results(ctx context.Context, b Batch, f func(Line) error) error {
	for _, file := range [...]string{b.Output, b.Errors} {
		if file == "" {
			continue
		}
		stream, err := o.stream(ctx, o.at("/files/"+url.PathEscape(file)+"/content", ""))
		if err == nil {
			err = o.readLines(ctx, stream, openAILine, f)
			_ = stream.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openAILine reads a line of results.
func openAILine(raw []byte) Line {
	var l struct {
		CustomID text            `json:"custom_id"`
		Response json.RawMessage `json:"response"`
		Error    json.RawMessage `json:"error"`
	}
	if !parseLine(raw, &l) || l.CustomID == "" {
		return Line{Kind: Garbled}
	}
	line := Line{ID: string(l.CustomID), Kind: Answered}
	var response struct {
		StatusCode count           `json:"status_code"`
		Body       json.RawMessage `json:"body"`
	}
	var failure fault
	if isObject(l.Error) && json.Unmarshal(l.Error, &failure) != nil {
		return Line{Kind: Garbled}
	}
	switch {
	case lapsed[string(failure.Code)]:
		line.Kind = Lapsed
	case isObject(l.Response) && json.Unmarshal(l.Response, &response) == nil &&
		(response.StatusCode.orZero() != 0 || isObject(response.Body)):
		line.Status, line.Body = response.StatusCode.orZero(), response.Body
		if len(line.Body) > 0 && line.Body[0] == '"' && utf8.Valid(line.Body) {
			// The body is a string. A damaged one stays as it is, and is judged later.
			line.Body = []byte(jsonbytes.Text(line.Body))
		}
	case isObject(l.Error):
		line.Body = errorBody(l.Error)
	default:
		return Line{Kind: Garbled}
	}
	return line
}

// lapsed are the codes of rows that were not answered in time.
var lapsed = map[string]bool{"batch_expired": true, "batch_cancelled": true, "batch_canceled": true}

// Cancel implements [API].
func (o *openAI) Cancel(ctx context.Context, id string) error {
	_, err := o.post(ctx, o.at("/batches/"+url.PathEscape(id)+"/cancel", ""), nil, nil)
	return err
}

// Withdraw implements [API].
func (o *openAI) Withdraw(ctx context.Context, token string, since time.Time) (bool, error) {
	files, err := o.inputs(ctx, token, since)
	for _, id := range files {
		if err == nil {
			err = o.removeFile(ctx, id)
		}
	}
	return err == nil, err
}

// removeFile deletes a file.
func (o *openAI) removeFile(ctx context.Context, id string) error {
	return o.remove(ctx, o.at("/files/"+url.PathEscape(id), ""))
}

// Delete implements [API].
func (o *openAI) Delete(ctx context.Context, b Batch) error {
	for _, id := range [...]string{b.Output, b.Errors, b.Input} {
		if id == "" {
			continue
		}
		if err := o.removeFile(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
