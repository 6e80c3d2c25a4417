package batches

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// request is a Request with what only the dialects need.
type request struct {
	Request
	r      *http.Request
	model  string // Gemini's, in the path
	embeds bool   // Gemini's batch of vectors
	dated  bool   // Azure with ?api-version
}

// Handles reports whether a request is for a Batch API or for the files of one.
func Handles(r *http.Request) bool {
	_, ok := route(r)
	return ok
}

// route reads a request's address, whatever stands before the API's own path.
func route(r *http.Request) (*request, bool) {
	path := r.URL.Path
	rq := &request{r: r, Request: Request{Provider: OpenAI}}
	if before, after, ok := strings.Cut(path, "/messages/batches"); ok && !strings.Contains(before, "/messages/") {
		rq.Provider = Anthropic
		return rq, rq.find(after, map[string]Op{"results": Content, "cancel": Cancel}, Create, List, Get, Delete)
	}
	if strings.Contains(path, "/v1beta/") || strings.Contains(path, "/v1alpha/") || strings.HasPrefix(path, "/upload/") ||
		strings.HasPrefix(path, "/download/") || r.Header.Get("X-Goog-Api-Key") != "" || strings.HasSuffix(path, geminiCreate) || strings.HasSuffix(path, geminiEmbed) {
		return rq, rq.routeGemini(path)
	}
	if strings.Contains(path, "/openai/") {
		rq.Provider, rq.dated = Azure, !strings.Contains(path, "/openai/v1/")
	}
	if _, after, ok := strings.Cut(path, "/batches"); ok {
		return rq, rq.find(after, map[string]Op{"cancel": Cancel}, Create, List, Get, "")
	}
	if _, after, ok := strings.Cut(path, "/files"); ok {
		return rq, rq.find(after, map[string]Op{"content": Content}, Upload, ListFiles, GetFile, DeleteFile)
	}
	return rq, false
}

// find reads what stands behind the name of a collection: nothing, an id, or an id and a
// verb.
func (rq *request) find(after string, verbs map[string]Op, post, list, get, remove Op) bool {
	if after != "" && after[0] != '/' {
		return false
	}
	id, verb, _ := strings.Cut(strings.TrimPrefix(after, "/"), "/")
	rq.ID = id
	method := rq.r.Method
	switch {
	case verb != "":
		rq.Op = verbs[verb]
		if (rq.Op == Cancel) != (method == http.MethodPost) {
			rq.Op = ""
		}
	case id == "" && method == http.MethodPost:
		rq.Op = post
	case id == "" && method == http.MethodGet:
		rq.Op = list
	case method == http.MethodGet:
		rq.Op = get
	case method == http.MethodDelete:
		rq.Op = remove
	}
	return true
}

// The methods that create a batch, of answers and of vectors.
const (
	geminiCreate = ":batchGenerateContent"
	geminiEmbed  = ":asyncBatchEmbedContent"
)

func (rq *request) routeGemini(path string) bool {
	rq.Provider = Gemini
	if strings.HasPrefix(path, "/upload/") && strings.HasSuffix(path, "/files") {
		rq.Op = Upload
		return true
	}
	for _, method := range [...]string{geminiCreate, geminiEmbed} {
		if before, ok := strings.CutSuffix(path, method); ok {
			_, rq.model, _ = strings.Cut(before, "/models/")
			rq.Op, rq.embeds = Create, method == geminiEmbed
			return true
		}
	}
	if _, after, ok := strings.Cut(path, "/batches"); ok {
		if after, ok := strings.CutSuffix(after, ":cancel"); ok {
			after += "/cancel"
			return rq.find(after, map[string]Op{"cancel": Cancel}, "", List, Get, Delete)
		}
		return rq.find(after, nil, "", List, Get, Delete)
	}
	if _, after, ok := strings.Cut(path, "/files"); ok {
		if after, ok := strings.CutSuffix(after, ":download"); ok {
			return rq.find(after+"/download", map[string]Op{"download": Content}, "", "", "", "")
		}
		return rq.find(after, nil, "", ListFiles, GetFile, DeleteFile)
	}
	return false
}

// reply is an answer that is not written yet.
type reply struct {
	status int
	kind   string // Content-Type; "": JSON
	header map[string]string
	body   []byte
	stream func(io.Writer) // in place of body
	lost   bool            // close the connection in place of it
	cut    bool            // break off in the middle
}

func (a reply) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if a.kind != "" {
		h.Set("Content-Type", a.kind)
	}
	for name, value := range a.header {
		h.Set(name, value)
	}
	if a.stream == nil {
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body) // the client is gone: nothing to do
		return
	}
	w.WriteHeader(a.status)
	if !a.cut {
		a.stream(w)
		return
	}
	var size counter
	a.stream(&size)
	a.stream(&limited{w: w, left: int64(size) / 2})
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// limited writes the first bytes and drops the rest.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(int64(len(p)), l.left)
	l.left -= n
	if n > 0 {
		_, _ = l.w.Write(p[:n])
	}
	return len(p), nil
}

// fault is the provider's error object.
func (rq *request) fault(status int, message string) []byte {
	switch rq.Provider {
	case Anthropic:
		kind := map[int]string{
			401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
			429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
		}[status]
		switch {
		case kind != "":
		case status >= 500:
			kind = "api_error"
		default:
			kind = "invalid_request_error"
		}
		return encode(object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": fmt.Sprintf("req_%d", rq.N)})
	case Gemini:
		return encode(object{"error": object{"code": status, "message": message, "status": googleStatus(status)}})
	case OpenAI, Azure:
	}
	return openAIFault(status, "", "", message)
}

func openAIFault(status int, code, param, message string) []byte {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "requests"
	case status >= 500:
		kind = "server_error"
	}
	return encode(object{"error": object{"message": message, "type": kind, "param": orNull(param), "code": orNull(code)}})
}

func googleStatus(status int) string {
	switch status {
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusServiceUnavailable:
		return "UNAVAILABLE"
	}
	if status >= 500 {
		return "INTERNAL"
	}
	return "INVALID_ARGUMENT"
}

func (rq *request) refuse(status int, format string, args ...any) reply {
	return reply{status: status, body: rq.fault(status, fmt.Sprintf(format, args...))}
}

// refuseParam is a 400 that names the parameter and a code, as OpenAI's do.
func refuseParam(code, param, format string, args ...any) reply {
	return reply{status: 400, body: openAIFault(400, code, param, fmt.Sprintf(format, args...))}
}

func (rq *request) noSuch(what, id string) reply {
	return rq.refuse(http.StatusNotFound, "No %s found with id '%s'.", what, id)
}

func ok(v any) reply { return reply{status: http.StatusOK, body: encode(v)} }

type object map[string]any

// encode cannot fail: it is given plain values.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// strict decodes a body in which no unknown field may stand.
func strict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
}

// sleep waits and reports whether the client did too.
func sleep(r *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// form reads a multipart body: the fields, and the file with its name. Gemini's has two
// parts without names.
func (rq *request) form() (fields map[string]string, parts [][]byte, name string, err error) {
	_, params, err := mime.ParseMediaType(rq.r.Header.Get("Content-Type"))
	if err != nil || params["boundary"] == "" {
		return nil, nil, "", fmt.Errorf("body: want multipart with a boundary")
	}
	fields = map[string]string{}
	reader := multipart.NewReader(bytes.NewReader(rq.Body), params["boundary"])
	for {
		part, err := reader.NextPart()
		if err == io.EOF { //nolint:errorlint // as the package documents it
			return fields, parts, name, nil
		}
		if err != nil {
			return nil, nil, "", fmt.Errorf("body: %w", err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return nil, nil, "", fmt.Errorf("body: %w", err)
		}
		if field := part.FormName(); field != "" && part.FileName() == "" {
			fields[field] = string(data)
			continue
		}
		name = part.FileName()
		parts = append(parts, data)
	}
}

// limit reads the size of a page.
func (rq *request) limit(name string, otherwise, most int) (int, bool) {
	v := rq.r.URL.Query().Get(name)
	if v == "" {
		return otherwise, true
	}
	n, err := strconv.Atoi(v)
	return n, err == nil && n >= 1 && n <= most
}

// page returns the elements of a list behind the one named after, at most n, and whether
// there are more; ok is false where there is no such one.
func page[T any](list []T, id func(T) string, after string, n int) (part []T, more, ok bool) {
	if after != "" {
		at := -1
		for i, v := range list {
			if id(v) == after {
				at = i
			}
		}
		if at < 0 {
			return nil, false, false
		}
		list = list[at+1:]
	}
	return list[:min(n, len(list))], len(list) > n, true
}
