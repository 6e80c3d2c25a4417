package batches

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func (s *Server) gemini(rq *request) reply {
	switch rq.Op {
	case Upload:
		return s.uploadGemini(rq)
	case ListFiles:
		return s.listGemini(rq)
	case List:
		return s.listOperations(rq)
	case Create:
		return s.createGemini(rq)
	case GetFile, DeleteFile, Content:
		return s.geminiFile(rq)
	case Get, Cancel, Delete:
		j := s.find(Gemini, rq.ID)
		switch {
		case j == nil:
			return rq.refuse(http.StatusNotFound, "Requested entity was not found.")
		case rq.Op == Cancel:
			if !s.cancel(j) {
				return rq.refuse(http.StatusBadRequest, "The batch is over and can't be cancelled.")
			}
			return ok(object{})
		case rq.Op == Delete:
			if !j.settled {
				return rq.refuse(http.StatusBadRequest, "The batch is not over: cancel it first.")
			}
			s.drop(j)
			return ok(object{})
		}
		return ok(s.operation(j))
	}
	return rq.refuse(http.StatusNotFound, "no such method: %s %s", rq.r.Method, rq.r.URL.Path)
}

// maxUploads bounds the uploads that are started and not finished.
const maxUploads = 1000

// uploadGemini takes a file in one request of two parts, or in two requests.
func (s *Server) uploadGemini(rq *request) reply {
	h := rq.r.Header
	var meta struct {
		File struct {
			Name             string `json:"name"`
			DisplayName      string `json:"displayName"`
			DisplayNameSnake string `json:"display_name"`
			MimeType         string `json:"mimeType"`
		} `json:"file"`
	}
	id := rq.r.URL.Query().Get("upload_id")
	switch command := h.Get("X-Goog-Upload-Command"); {
	case h.Get("X-Goog-Upload-Protocol") == "multipart":
		_, parts, _, err := rq.form()
		if err != nil || len(parts) != 2 || json.Unmarshal(parts[0], &meta) != nil {
			return rq.refuse(http.StatusBadRequest, "want two parts: the metadata of the file, and its bytes")
		}
		return s.keep(rq, meta.File.DisplayName+meta.File.DisplayNameSnake, parts[1])
	case command == "start":
		if len(rq.Body) > 0 && json.Unmarshal(rq.Body, &meta) != nil {
			return rq.refuse(http.StatusBadRequest, "body: want the metadata of a file")
		}
		if len(s.uploads) >= maxUploads {
			clear(s.uploads)
		}
		s.serial++
		id = fmt.Sprintf("u%011x", s.serial)
		s.uploads[id] = meta.File.DisplayName + meta.File.DisplayNameSnake
		address := "http://" + rq.r.Host + rq.r.URL.Path + "?upload_id=" + url.QueryEscape(id) + "&upload_protocol=resumable"
		return reply{status: 200, body: []byte("{}"), header: map[string]string{"X-Goog-Upload-URL": address, "X-Goog-Upload-Status": "active"}}
	case strings.ReplaceAll(command, " ", "") == "upload,finalize":
		name, known := s.uploads[id]
		if !known || h.Get("X-Goog-Upload-Offset") != "0" {
			return rq.refuse(http.StatusBadRequest, "no such upload, or an offset that is not 0")
		}
		delete(s.uploads, id)
		a := s.keep(rq, name, rq.Body)
		a.header = map[string]string{"X-Goog-Upload-Status": "final"}
		return a
	}
	return rq.refuse(http.StatusBadRequest, "X-Goog-Upload-Command: want start, or upload, finalize")
}

func (s *Server) keep(rq *request, name string, data []byte) reply {
	if _, most := s.limits(Gemini, false); int64(len(data)) > most || !s.room(Gemini, len(data)) {
		return rq.refuse(http.StatusBadRequest, "The file is too large, or too many are stored.")
	}
	f := s.store(Gemini, name, data)
	f.expires = f.created.Add(48 * time.Hour)
	return ok(object{"file": f.gemini()})
}

func (f *file) gemini() object {
	return object{
		"name": "files/" + f.id, "displayName": f.name, "mimeType": "application/jsonl", "sizeBytes": strconv.Itoa(len(f.data)),
		"createTime": rfc(f.created), "updateTime": rfc(f.created), "expirationTime": rfc(f.expires), "state": "ACTIVE", "source": "UPLOADED",
	}
}

func rfc(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func (s *Server) listGemini(rq *request) reply {
	n, good := rq.limit("pageSize", 10, 100)
	part, more, found := page(s.listedFiles(Gemini), func(f *file) string { return f.id }, rq.r.URL.Query().Get("pageToken"), n)
	if !good || !found {
		return rq.refuse(http.StatusBadRequest, "pageSize: want 1 to 100; pageToken: want one of the last answer")
	}
	data := []any{}
	for _, f := range part {
		data = append(data, f.gemini())
	}
	o := object{"files": data}
	if more {
		o["nextPageToken"] = part[len(part)-1].id
	}
	return ok(o)
}

func (s *Server) listOperations(rq *request) reply {
	n, good := rq.limit("pageSize", 10, 100)
	part, more, found := page(s.listed(Gemini), func(j *job) string { return j.id }, rq.r.URL.Query().Get("pageToken"), n)
	if !good || !found {
		return rq.refuse(http.StatusBadRequest, "pageSize: want 1 to 100; pageToken: want one of the last answer")
	}
	data := []any{}
	for _, j := range part {
		data = append(data, s.operation(j))
	}
	o := object{"operations": data}
	if more {
		o["nextPageToken"] = part[len(part)-1].id
	}
	return ok(o)
}

func (s *Server) geminiFile(rq *request) reply {
	if f := s.file(Gemini, rq.ID); f != nil {
		switch rq.Op { //nolint:exhaustive // the caller sends no others
		case DeleteFile:
			s.removeFile(f)
			return ok(object{})
		case Content:
			return rq.refuse(http.StatusBadRequest, "Only generated files can be downloaded.")
		}
		return ok(object{"name": "files/" + f.id, "displayName": f.name, "sizeBytes": strconv.Itoa(len(f.data)), "state": "ACTIVE"})
	}
	batch, isOutput := strings.CutPrefix(rq.ID, "batch-")
	j := s.byID[batch]
	if j == nil || !isOutput || j.provider != Gemini || j.phase(time.Now()) != completed || j.noOutput && j.noErrors {
		return rq.refuse(http.StatusForbidden, "You do not have permission to access the File %s or it may not exist.", rq.ID)
	}
	if rq.Op == DeleteFile {
		return rq.refuse(http.StatusBadRequest, "A generated file is deleted with its batch.")
	}
	if rq.Op == GetFile {
		return ok(object{"name": "files/" + rq.ID, "state": "ACTIVE", "source": "GENERATED"})
	}
	if rq.r.URL.Query().Get("alt") != "media" {
		return rq.refuse(http.StatusBadRequest, "alt: want media")
	}
	put := func(dst []byte, _ int, l *line) []byte {
		kind, value := s.geminiLine(j, l)
		return append(dst, encode(object{"key": l.id, kind: value})...)
	}
	all := func(*line) bool { return true }
	return reply{status: 200, kind: "application/octet-stream", stream: s.results(j.lines, j, true, all, put)}
}

// geminiLine is a response, or a status object.
func (s *Server) geminiLine(j *job, l *line) (kind string, value any) {
	body := s.body(j, l)
	if l.status == 200 {
		return "response", json.RawMessage(body)
	}
	var fault struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &fault) // our own
	return "error", object{"code": rpcCode(l.status), "message": fault.Error.Message}
}

// rpcCode is the code of a status object, which is not that of HTTP.
func rpcCode(status int) int {
	code, known := map[int]int{
		400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 429: 8, 499: 1, 501: 12, 503: 14, 504: 4,
	}[status]
	switch {
	case known:
		return code
	case status < 500:
		return 3
	}
	return 13
}

// geminiInput is where the requests of a batch are. The API takes both forms of names.
type geminiInput struct {
	FileName      string `json:"fileName"`
	FileNameSnake string `json:"file_name"`
	Requests      struct {
		Requests []struct {
			Request  json.RawMessage `json:"request"`
			Metadata struct {
				Key string `json:"key"`
			} `json:"metadata"`
		} `json:"requests"`
	} `json:"requests"`
}

func (s *Server) createGemini(rq *request) reply {
	var v struct {
		Batch struct {
			DisplayName      string          `json:"displayName"`
			DisplayNameSnake string          `json:"display_name"`
			Model            string          `json:"model"`
			Input            *geminiInput    `json:"inputConfig"`
			InputSnake       *geminiInput    `json:"input_config"`
			Priority         json.RawMessage `json:"priority"`
		} `json:"batch"`
	}
	refuse := func(status int, format string, args ...any) reply {
		return s.refused(rq.refuse(status, format, args...))
	}
	if err := strict(rq.Body, &v); err != nil {
		return refuse(http.StatusBadRequest, "Invalid JSON payload received. %v", err)
	}
	b := &v.Batch
	input := cmp.Or(b.Input, b.InputSnake, new(geminiInput))
	name, fileName := b.DisplayName+b.DisplayNameSnake, input.FileName+input.FileNameSnake
	inline := fileName == ""
	_, most := s.limits(Gemini, inline)
	switch {
	case name == "":
		return refuse(http.StatusBadRequest, "batch.display_name: required")
	case rq.model == "" || b.Model != "" && strings.TrimPrefix(b.Model, "models/") != rq.model:
		return refuse(http.StatusBadRequest, "batch.model: want that of the address")
	case inline == (len(input.Requests.Requests) == 0):
		return refuse(http.StatusBadRequest, "batch.input_config: want requests or a file name")
	case inline && int64(len(rq.Body)) > most:
		return refuse(http.StatusBadRequest, "Request payload size exceeds the limit: %d bytes.", most)
	}
	method := ":generateContent"
	if rq.embeds {
		method = ":embedContent"
	}
	j := &job{provider: Gemini, endpoint: "/v1beta/models/" + rq.model + method, model: rq.model, name: name}
	if inline {
		j.size = int64(len(rq.Body))
		for _, r := range input.Requests.Requests {
			j.lines = append(j.lines, line{id: r.Metadata.Key, body: r.Request})
		}
	} else {
		f := s.file(Gemini, strings.TrimPrefix(fileName, "files/"))
		if f == nil {
			return refuse(http.StatusNotFound, "The file %s was not found.", fileName)
		}
		j.input, j.size = f.id, int64(len(f.data))
		s.geminiLines(j, f.data)
	}
	maxLines, _ := s.limits(Gemini, inline)
	for i, l := range j.lines {
		if s.cfg.Poison != nil && s.cfg.Poison(l.id, l.body) {
			s.geminiProblem(j, i+1, "the request is invalid")
		}
		j.tokens += int64(len(l.body)) / 4
	}
	switch {
	case len(j.lines) > maxLines:
		return refuse(http.StatusBadRequest, "The batch has %d requests, the most is %d.", len(j.lines), maxLines)
	case s.full(j):
		return refuse(http.StatusTooManyRequests, "You exceeded your current quota: at most %d enqueued tokens.", s.cfg.Enqueued)
	}
	return ok(s.operation(s.add(j)))
}

func (s *Server) geminiProblem(j *job, n int, message string) {
	if len(j.problems) > 0 {
		return // the operation has one error
	}
	if !s.cfg.Unnamed {
		message = fmt.Sprintf("line %d: %s", n, message)
	}
	j.problems = []problem{{message: message, line: n}}
}

func (s *Server) geminiLines(j *job, data []byte) {
	n := 0
	for text := range bytes.Lines(data) {
		n++
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		var v struct {
			Key     string          `json:"key"`
			Request json.RawMessage `json:"request"`
		}
		if err := strict(text, &v); err != nil || v.Request == nil {
			s.geminiProblem(j, n, "want an object with key and request")
			continue
		}
		j.lines = append(j.lines, line{id: v.Key, body: v.Request})
	}
	if n == 0 {
		s.geminiProblem(j, 1, "the file is empty")
	}
}

const typeURL = "type.googleapis.com/google.ai.generativelanguage.v1main."

// operation is a batch as an operation. Its states have the prefix of the reference or
// that of the guide, by turns.
func (s *Server) operation(j *job) object {
	p := j.phase(time.Now())
	if p.over() && !j.settled {
		p = validating // the answer to a creation
	}
	prefix := "BATCH_STATE_"
	if j.n%2 == 0 {
		prefix = "JOB_STATE_"
	}
	state := map[phase]string{
		validating: "PENDING", failed: "FAILED", expired: "EXPIRED", cancelled: "CANCELLED", completed: "SUCCEEDED",
	}[p]
	if state == "" {
		state = "RUNNING"
	}
	answered, bad := s.counts(j)
	stats := object{"requestCount": strconv.Itoa(j.total)}
	for name, n := range map[string]int{
		"successfulRequestCount": answered, "failedRequestCount": bad, "pendingRequestCount": j.total - answered - bad,
	} {
		if n > 0 { // zeros are left out
			stats[name] = strconv.Itoa(n)
		}
	}
	name := "batches/" + j.id
	meta := object{
		"@type": typeURL + "GenerateContentBatch", "name": name, "model": "models/" + j.model, "displayName": j.name,
		"createTime": rfc(j.created), "updateTime": rfc(time.Now()), "batchStats": stats, "state": prefix + state,
	}
	if j.input != "" {
		meta["inputConfig"] = object{"fileName": "files/" + j.input}
	}
	o := object{"name": name, "metadata": meta}
	if !j.settled {
		return o
	}
	meta["endTime"] = rfc(j.end(p))
	o["done"] = true
	switch p { //nolint:exhaustive // the others are not over
	case failed:
		o["error"] = object{"code": 3, "message": j.problems[0].message, "status": "INVALID_ARGUMENT"}
	case expired:
		o["error"] = object{"code": 4, "message": "The batch expired."}
	case cancelled:
		o["error"] = object{"code": 1, "message": "The batch was cancelled."}
	case completed:
		output := object{"@type": typeURL + "GenerateContentBatchOutput"}
		if j.input != "" {
			output["responsesFile"] = "files/batch-" + j.id
		} else {
			output["inlinedResponses"] = object{"inlinedResponses": s.inlined(j)}
		}
		o["response"], meta["output"] = output, output
	}
	return o
}

// inlined are the results of a batch without a file. Those that are torn are missing: the
// answer is one JSON value.
func (s *Server) inlined(j *job) []any {
	list := []any{}
	put := func(_ []byte, _ int, l *line) []byte {
		kind, value := s.geminiLine(j, l)
		return encode(object{"metadata": object{"key": l.id}, kind: value})
	}
	var text bytes.Buffer
	s.results(j.lines, j, true, func(*line) bool { return true }, put)(&text)
	for one := range bytes.Lines(text.Bytes()) {
		if json.Valid(one) {
			list = append(list, json.RawMessage(one))
		}
	}
	return list
}
