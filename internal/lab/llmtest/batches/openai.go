package batches

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// openAI serves OpenAI's API and Azure's, which has other paths and habits.
func (s *Server) openAI(rq *request) reply {
	if rq.dated && rq.r.URL.Query().Get("api-version") == "" {
		return rq.refuse(http.StatusNotFound, "Resource not found: the address has no api-version")
	}
	switch rq.Op {
	case Upload:
		return s.upload(rq)
	case ListFiles:
		return s.listFiles(rq)
	case GetFile, DeleteFile, Content:
		return s.oneFile(rq)
	case Create:
		return s.create(rq)
	case List:
		return s.list(rq)
	case Get, Cancel:
		j := s.find(rq.Provider, rq.ID)
		switch {
		case j == nil:
			return rq.noSuch("batch", rq.ID)
		case rq.Op == Cancel && !s.cancel(j):
			return rq.refuse(http.StatusConflict, "Cannot cancel a batch with status '%s'.", j.phase(time.Now()))
		}
		s.settle()
		return ok(s.batch(j))
	case Delete:
	}
	return rq.refuse(http.StatusMethodNotAllowed, "no such method: %s %s", rq.r.Method, rq.r.URL.Path)
}

func (s *Server) upload(rq *request) reply {
	fields, parts, name, err := rq.form()
	_, most := s.limits(rq.Provider, false)
	switch {
	case err != nil:
		return rq.refuse(http.StatusBadRequest, "%v", err)
	case fields["purpose"] == "":
		return refuseParam("missing_required_parameter", "purpose", "'purpose' is a required property")
	case fields["purpose"] != "batch":
		return refuseParam("invalid_value", "purpose", "'%s' is not one of ['batch']", fields["purpose"])
	case len(parts) != 1 || name == "":
		return refuseParam("missing_required_parameter", "file", "'file' is a required property")
	case !strings.HasSuffix(name, ".jsonl"):
		return refuseParam("invalid_file_format", "file", "Invalid file format for Batch API. Must be .jsonl")
	case len(parts[0]) == 0:
		return refuseParam("empty_file", "file", "The file is empty.")
	case int64(len(parts[0])) > most:
		return rq.refuse(http.StatusRequestEntityTooLarge, "The file has %d bytes, the most is %d.", len(parts[0]), most)
	}
	var lasts int64
	// OpenAI's description has brackets, Azure's guide a dot.
	seconds := fields["expires_after[seconds]"] + fields["expires_after.seconds"]
	if anchor := fields["expires_after[anchor]"] + fields["expires_after.anchor"]; seconds+anchor != "" {
		if _, err := fmt.Sscan(seconds, &lasts); err != nil || lasts < 3600 || lasts > 2592000 || anchor != "created_at" {
			return refuseParam("invalid_value", "expires_after", "expires_after wants the anchor created_at and 3600 to 2592000 seconds")
		}
	}
	if !s.room(rq.Provider, len(parts[0])) {
		return refuseParam("file_limit_exceeded", "file", "Too many files are stored.")
	}
	f := s.store(rq.Provider, name, parts[0])
	if lasts > 0 {
		f.expires = f.created.Add(time.Duration(lasts) * time.Second)
	}
	return ok(f.openAI())
}

func (f *file) openAI() object {
	o := object{
		"id": f.id, "object": "file", "bytes": len(f.data), "created_at": f.created.Unix(), "filename": f.name,
		"purpose": "batch", "status": "processed",
	}
	if !f.expires.IsZero() {
		o["expires_at"] = f.expires.Unix()
	}
	return o
}

func (s *Server) listFiles(rq *request) reply {
	q := rq.r.URL.Query()
	n, good := rq.limit("limit", 10000, 10000)
	if !good {
		return refuseParam("integer_out_of_range", "limit", "limit: want 1 to 10000")
	}
	files := s.listedFiles(rq.Provider)
	if q.Get("order") == "asc" {
		slices.Reverse(files)
	}
	part, more, found := page(files, func(f *file) string { return f.id }, q.Get("after"), n)
	if !found {
		return rq.noSuch("file", q.Get("after"))
	}
	data := []any{}
	for _, f := range part {
		if purpose := q.Get("purpose"); purpose == "" || purpose == "batch" {
			data = append(data, f.openAI())
		}
	}
	return ok(listOf(data, more, "id"))
}

func listOf(data []any, more bool, id string) object {
	o := object{"object": "list", "data": data, "has_more": more, "first_id": nil, "last_id": nil}
	if len(data) > 0 {
		o["first_id"], o["last_id"] = data[0].(object)[id], data[len(data)-1].(object)[id]
	}
	return o
}

// oneFile serves an input file, or the results of a batch, whose file ids are made of the
// batch's.
func (s *Server) oneFile(rq *request) reply {
	if f := s.file(rq.Provider, rq.ID); f != nil {
		switch rq.Op { //nolint:exhaustive // the caller sends no others
		case DeleteFile:
			s.removeFile(f)
			return ok(object{"id": f.id, "object": "file", "deleted": true})
		case Content:
			return reply{status: 200, kind: "application/octet-stream", body: f.data}
		}
		return ok(f.openAI())
	}
	batch, isOutput := strings.CutPrefix(rq.ID, "file-out-")
	batch, isErrors := strings.CutPrefix(batch, "file-err-")
	j := s.byID[batch]
	if j == nil || isOutput == isErrors || j.provider != rq.Provider || !j.settled || isOutput && j.noOutput || isErrors && j.noErrors {
		return rq.noSuch("file", rq.ID)
	}
	switch rq.Op { //nolint:exhaustive // the caller sends no others
	case DeleteFile:
		j.noOutput, j.noErrors = j.noOutput || isOutput, j.noErrors || isErrors
		if j.noOutput && j.noErrors {
			s.release(j)
		}
		return ok(object{"id": rq.ID, "object": "file", "deleted": true})
	case GetFile:
		var size counter
		s.openAIResults(j, isOutput).stream(&size)
		return ok(object{
			"id": rq.ID, "object": "file", "bytes": int64(size), "created_at": j.end(j.phase(time.Now())).Unix(),
			"filename": batch + ".jsonl", "purpose": "batch_output", "status": "processed",
		})
	}
	return s.openAIResults(j, isOutput)
}

func (s *Server) openAIResults(j *job, output bool) reply {
	code, message := "batch_expired", "This request could not be executed before the completion window expired."
	if !j.cancelAt.IsZero() {
		code, message = "batch_cancelled", "This request was not executed because the batch was cancelled."
	}
	put := func(dst []byte, i int, l *line) []byte {
		o := object{"id": fmt.Sprintf("batch_req_%d_%d", j.n, i), "custom_id": l.id, "response": nil, "error": nil}
		if l.status == 0 {
			o["error"] = object{"code": code, "message": message}
		} else {
			o["response"] = object{"status_code": l.status, "request_id": fmt.Sprintf("req_%d_%d", j.n, i), "body": json.RawMessage(s.body(j, l))}
		}
		return append(dst, encode(o)...)
	}
	want := func(l *line) bool { return (l.status == 200) == output }
	return reply{status: 200, kind: "application/octet-stream", stream: s.results(j.lines, j, false, want, put)}
}

// endpoints that lines may be for, as the live endpoints have them.
var endpoints = map[string]string{
	"/v1/chat/completions": "/v1/chat/completions", "/v1/responses": "/v1/responses", "/v1/embeddings": "/v1/embeddings",
	"/chat/completions": "/v1/chat/completions", "/responses": "/v1/responses", "/embeddings": "/v1/embeddings", // Azure's guide has these
}

func (s *Server) create(rq *request) reply {
	var v struct {
		InputFileID  string            `json:"input_file_id"`
		Endpoint     string            `json:"endpoint"`
		Window       string            `json:"completion_window"`
		Metadata     map[string]string `json:"metadata"`
		OutputExpiry json.RawMessage   `json:"output_expires_after"`
	}
	if err := strict(rq.Body, &v); err != nil {
		return s.refused(refuseParam("invalid_request", "", "body: %v", err))
	}
	endpoint := endpoints[v.Endpoint]
	if rq.Provider == OpenAI && endpoint != v.Endpoint {
		endpoint = ""
	}
	f := s.file(rq.Provider, v.InputFileID)
	switch {
	case v.InputFileID == "":
		return s.refused(refuseParam("missing_required_parameter", "input_file_id", "Missing required parameter: 'input_file_id'."))
	case endpoint == "":
		return s.refused(refuseParam("invalid_value", "endpoint", "Invalid value: '%s'. Supported values are: '/v1/responses', '/v1/chat/completions', '/v1/embeddings'.",
			v.Endpoint))
	case v.Window != "24h":
		return s.refused(refuseParam("invalid_value", "completion_window", "Invalid value: '%s'. Value must be one of ['24h'].", v.Window))
	case f == nil:
		return s.refused(refuseParam("invalid_input_file", "input_file_id", "File '%s' not found.", v.InputFileID))
	case len(v.Metadata) > 16:
		return s.refused(refuseParam("object_above_max_properties", "metadata", "Expected at most 16 pairs."))
	}
	for name, value := range v.Metadata {
		if len(name) > 64 || len(value) > 512 {
			return s.refused(refuseParam("string_above_max_length", "metadata", "metadata: keys have at most 64 characters, values 512."))
		}
	}
	j := &job{provider: rq.Provider, endpoint: endpoint, input: f.id, size: int64(len(f.data))}
	if v.Metadata != nil {
		j.metadata = encode(v.Metadata)
	}
	s.readLines(j, f.data)
	if len(j.problems) == 0 && s.full(j) {
		message := fmt.Sprintf("Enqueued token limit reached for %s. Limit: %d enqueued tokens. Please try again once some in_progress batches have been completed.",
			j.model, s.cfg.Enqueued)
		if s.cfg.RefuseAtOnce {
			return s.refused(reply{status: 429, body: openAIFault(429, "token_limit_exceeded", "", message)})
		}
		j.problems = []problem{{code: "token_limit_exceeded", message: message}}
	}
	return ok(s.batchAt(s.add(j), validating))
}

func (s *Server) refused(r reply) reply {
	s.stats.Refused++
	return r
}

// maxProblems are named in a refusal.
const maxProblems = 100

// readLines takes the lines of an input file, or the problems for which the batch will
// fail.
func (s *Server) readLines(j *job, data []byte) {
	add := func(n int, code, param, format string, args ...any) {
		if len(j.problems) < maxProblems {
			if s.cfg.Unnamed {
				n = 0
			}
			j.problems = append(j.problems, problem{line: n, code: code, param: param, message: fmt.Sprintf(format, args...)})
		}
	}
	most, _ := s.limits(j.provider, false)
	seen := map[string]bool{}
	n := 0
	for text := range bytes.Lines(data) {
		n++
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		var v struct {
			CustomID string          `json:"custom_id"`
			Method   string          `json:"method"`
			URL      string          `json:"url"`
			Body     json.RawMessage `json:"body"`
		}
		var body struct {
			Model string `json:"model"`
		}
		if err := json.Unmarshal(text, &v); err != nil {
			add(n, "invalid_json_line", "", "This line is not parseable as valid JSON.")
			continue
		}
		switch bad := json.Unmarshal(v.Body, &body); {
		case v.CustomID == "":
			add(n, "missing_required_parameter", "custom_id", "Missing required parameter: 'custom_id'.")
		case seen[v.CustomID]:
			add(n, "duplicate_custom_id", "custom_id", "The custom_id '%s' is used by another line.", v.CustomID)
		case v.Method != http.MethodPost:
			add(n, "invalid_method", "method", "Invalid value: '%s'. Value must be 'POST'.", v.Method)
		case endpoints[v.URL] != j.endpoint || j.provider == OpenAI && v.URL != j.endpoint:
			add(n, "url_mismatch", "url", "The URL provided for this request does not match the batch's endpoint.")
		case bad != nil || body.Model == "":
			add(n, "missing_required_parameter", "body.model", "Missing required parameter: 'model'.")
		case j.model != "" && body.Model != j.model:
			add(n, "model_mismatch", "body.model", "The provided model in the requests should be the same across the file.")
		case s.cfg.Poison != nil && s.cfg.Poison(v.CustomID, v.Body):
			add(n, "invalid_request", "", "This line is invalid.")
		}
		seen[v.CustomID] = true
		if j.model == "" {
			j.model = body.Model
		}
		j.tokens += int64(len(v.Body)) / 4
		j.lines = append(j.lines, line{id: v.CustomID, body: v.Body})
	}
	switch {
	case len(j.lines) > most:
		j.problems = []problem{{code: "too_many_tasks", message: fmt.Sprintf("The number of requests is %d, the most is %d.", len(j.lines), most)}}
	case len(j.lines) == 0 && len(j.problems) == 0:
		j.problems = []problem{{code: "empty_file", message: "The input file is empty."}}
	}
}

func (s *Server) list(rq *request) reply {
	n, good := rq.limit("limit", 20, 100)
	if !good {
		return refuseParam("integer_out_of_range", "limit", "limit: want 1 to 100")
	}
	after := rq.r.URL.Query().Get("after")
	part, more, found := page(s.listed(rq.Provider), func(j *job) string { return j.id }, after, n)
	if !found {
		return rq.noSuch("batch", after)
	}
	data := []any{}
	for _, j := range part {
		data = append(data, s.batch(j))
	}
	return ok(listOf(data, more, "id"))
}

func (s *Server) batch(j *job) object { return s.batchAt(j, j.phase(time.Now())) }

func (s *Server) batchAt(j *job, p phase) object {
	stamp := func(t time.Time, is bool) any {
		switch {
		case !is:
			return nil
		case j.provider == Azure && j.n%2 == 1: // its samples have both
			return t.UTC().Format(time.RFC3339)
		}
		return t.Unix()
	}
	answered, bad := s.counts(j)
	expires := j.expires
	if expires.IsZero() || expires.After(j.created.Add(24*time.Hour)) {
		expires = j.created.Add(24 * time.Hour)
	}
	begun := p != validating && p != failed
	o := object{
		"id": j.id, "object": "batch", "endpoint": j.endpoint, "model": j.model, "errors": nil, "input_file_id": j.input,
		"completion_window": "24h", "status": string(p), "output_file_id": nil, "error_file_id": nil, "metadata": j.metadata,
		"created_at": stamp(j.created, true), "in_progress_at": stamp(j.valid, begun), "expires_at": stamp(expires, true),
		"finalizing_at": stamp(j.done, p == finalizing || p == completed), "completed_at": stamp(j.done, p == completed),
		"failed_at": stamp(j.valid, p == failed), "expired_at": stamp(j.expires, p == expired),
		"cancelling_at": stamp(j.cancelAt, !j.cancelAt.IsZero()), "cancelled_at": stamp(j.cancelledAt, p == cancelled),
		"request_counts": object{"total": j.total, "completed": answered, "failed": bad},
	}
	if p == validating {
		o["request_counts"] = object{"total": 0, "completed": 0, "failed": 0}
		if j.provider == Azure {
			o["status"], o["request_counts"] = "Validating", nil
		}
	}
	if p == failed {
		data := []any{}
		for _, e := range j.problems {
			var n any
			if e.line > 0 {
				n = e.line
			}
			data = append(data, object{"code": e.code, "message": e.message, "param": orNull(e.param), "line": n})
		}
		o["errors"] = object{"object": "list", "data": data}
	}
	if j.settled && p != failed {
		if !j.noOutput {
			o["output_file_id"] = "file-out-" + j.id
		}
		if !j.noErrors {
			o["error_file_id"] = "file-err-" + j.id
		}
		o["usage"] = object{
			"input_tokens": j.prompt, "output_tokens": j.completion, "total_tokens": j.prompt + j.completion,
			"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0},
		}
	}
	return o
}
