package batches

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"
)

func (s *Server) anthropic(rq *request) reply {
	if rq.r.Header.Get("Anthropic-Version") == "" {
		return rq.refuse(http.StatusBadRequest, "anthropic-version: header is required")
	}
	if rq.Op == Create {
		return s.createMessages(rq)
	}
	if rq.Op == List {
		return s.listMessages(rq)
	}
	j := s.find(Anthropic, rq.ID)
	if j == nil {
		return rq.refuse(http.StatusNotFound, "Message Batch %s not found.", rq.ID)
	}
	switch rq.Op { //nolint:exhaustive // the others are above, or not Anthropic's
	case Get:
	case Cancel:
		if !s.cancel(j) {
			return rq.refuse(http.StatusBadRequest, "Message Batch %s has ended and can't be canceled.", j.id)
		}
		s.settle()
	case Delete:
		if !j.settled {
			return rq.refuse(http.StatusBadRequest, "Message Batch %s is in progress: cancel it first.", j.id)
		}
		s.drop(j)
		return ok(object{"id": j.id, "type": "message_batch_deleted"})
	case Content:
		if !j.settled {
			return rq.refuse(http.StatusNotFound, "Message Batch %s has no available results.", j.id)
		}
		return s.messageResults(j)
	default:
		return rq.refuse(http.StatusMethodNotAllowed, "Method Not Allowed")
	}
	return ok(s.messageBatch(rq, j))
}

var customID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func (s *Server) createMessages(rq *request) reply {
	var v struct {
		Requests []struct {
			CustomID string          `json:"custom_id"`
			Params   json.RawMessage `json:"params"`
		} `json:"requests"`
	}
	most, bytes := s.limits(Anthropic, true)
	bad := func(n int, format string, args ...any) reply {
		where := fmt.Sprintf("requests.%d.", n)
		if s.cfg.Unnamed {
			where = ""
		}
		return s.refused(rq.refuse(http.StatusBadRequest, "%s", where+fmt.Sprintf(format, args...)))
	}
	if err := strict(rq.Body, &v); err != nil {
		return s.refused(rq.refuse(http.StatusBadRequest, "body: %v", err))
	}
	switch {
	case int64(len(rq.Body)) > bytes:
		return s.refused(rq.refuse(http.StatusRequestEntityTooLarge, "Request exceeds the maximum size"))
	case len(v.Requests) == 0:
		return s.refused(rq.refuse(http.StatusBadRequest, "requests: List should have at least 1 item"))
	case len(v.Requests) > most:
		return s.refused(rq.refuse(http.StatusBadRequest, "requests: List should have at most %d items", most))
	case s.stored+int64(len(rq.Body)) > maxStored:
		return s.refused(rq.refuse(529, "Overloaded"))
	}
	j := &job{provider: Anthropic, endpoint: "/v1/messages", size: int64(len(rq.Body))}
	seen := map[string]bool{}
	for i, r := range v.Requests {
		var params struct {
			Model string `json:"model"`
		}
		switch err := json.Unmarshal(r.Params, &params); {
		case !customID.MatchString(r.CustomID):
			return bad(i, "custom_id: String should match pattern '%s'", customID)
		case seen[r.CustomID]:
			return bad(i, "custom_id: duplicate custom_id '%s'", r.CustomID)
		case err != nil:
			return bad(i, "params: Input should be an object")
		case s.cfg.Poison != nil && s.cfg.Poison(r.CustomID, r.Params):
			return bad(i, "params: This request is invalid.")
		}
		seen[r.CustomID] = true
		j.model = params.Model // of the last: a batch may have several
		j.tokens += int64(len(r.Params)) / 4
		j.lines = append(j.lines, line{id: r.CustomID, body: r.Params})
	}
	if s.full(j) {
		return s.refused(rq.refuse(http.StatusTooManyRequests, "The batch queue is full: at most %d tokens.", s.cfg.Enqueued))
	}
	return ok(s.messageBatch(rq, s.add(j)))
}

func (s *Server) listMessages(rq *request) reply {
	n, good := rq.limit("limit", 20, 1000)
	if !good {
		return rq.refuse(http.StatusBadRequest, "limit: Input should be 1 to 1000")
	}
	q := rq.r.URL.Query()
	list, after := s.listed(Anthropic), q.Get("after_id")
	backwards := q.Get("before_id") != ""
	if backwards {
		slices.Reverse(list)
		after = q.Get("before_id")
	}
	part, more, found := page(list, func(j *job) string { return j.id }, after, n)
	if !found {
		return rq.refuse(http.StatusBadRequest, "no Message Batch %s", after)
	}
	if backwards {
		part = slices.Clone(part)
		slices.Reverse(part)
	}
	data := []any{}
	for _, j := range part {
		data = append(data, s.messageBatch(rq, j))
	}
	o := listOf(data, more, "id")
	delete(o, "object")
	return ok(o)
}

func (s *Server) messageBatch(rq *request, j *job) object {
	stamp := func(t time.Time, is bool) any {
		if !is {
			return nil
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	p := j.phase(time.Now())
	status, counts := "in_progress", object{"processing": j.total, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
	switch {
	case j.settled:
		status = "ended"
		counts["processing"], counts["succeeded"], counts["errored"] = 0, j.answered, j.failed
		if p == cancelled {
			counts["canceled"] = j.lapsed
		} else {
			counts["expired"] = j.lapsed
		}
	case !j.cancelAt.IsZero():
		status = "canceling"
	}
	o := object{
		"id": j.id, "type": "message_batch", "processing_status": status, "request_counts": counts,
		"created_at": stamp(j.created, true), "expires_at": stamp(j.created.Add(24*time.Hour), true),
		"ended_at": stamp(j.end(p), j.settled), "archived_at": nil,
		"cancel_initiated_at": stamp(j.cancelAt, !j.cancelAt.IsZero()), "results_url": nil,
	}
	if j.settled {
		o["results_url"] = "http://" + rq.r.Host + "/v1/messages/batches/" + j.id + "/results"
	}
	return o
}

func (s *Server) messageResults(j *job) reply {
	lapse := "expired"
	if !j.cancelAt.IsZero() {
		lapse = "canceled"
	}
	put := func(dst []byte, _ int, l *line) []byte {
		result := object{"type": lapse}
		switch {
		case l.status == 200:
			result = object{"type": "succeeded", "message": json.RawMessage(s.body(j, l))}
		case l.status != 0:
			result = object{"type": "errored", "error": json.RawMessage(s.body(j, l))}
		}
		return append(dst, encode(object{"custom_id": l.id, "result": result})...)
	}
	all := func(*line) bool { return true }
	return reply{status: 200, kind: "application/x-jsonl", stream: s.results(j.lines, j, false, all, put)}
}
