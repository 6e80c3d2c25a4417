package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/ops/tail"
)

// Rows answers questions about single rows from what is stored. Both take as long as the
// server does, and end with ctx.
type Rows struct {
	// Story returns what /api/row writes as JSON. Its error is one of [tail.IsNoEvent] if
	// there is no such row.
	Story func(ctx context.Context, o tail.StoryOptions) (any, error)
	// Failures returns what /api/failures writes as JSON.
	Failures func(ctx context.Context, o tail.FailuresOptions) (any, error)
}

// Bounds of questions about rows. They read streams, over the connection that results are
// stored on.
const (
	rowsAtOnce      = 2
	rowsPatience    = 10 * time.Second // for an answer
	rowsTurn        = 3 * time.Second  // for one of the others to be answered
	failuresDefault = 50
	failuresMost    = 200
	partitionsMost  = 1024
)

// rowsServer serves the questions about the rows of one stage.
type rowsServer struct {
	rows  Rows
	turns chan struct{} // holds a token for each question that is being answered
}

func newRowsServer(rows Rows) *rowsServer {
	return &rowsServer{rows: rows, turns: make(chan struct{}, rowsAtOnce)}
}

// serveRow serves /api/row?sequence=N&partition=P.
func (s *rowsServer) serveRow(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, []string{"sequence", "partition"}, func(query url.Values) (func(context.Context) (any, error), error) {
		var o tail.StoryOptions
		var err error
		if o.Row, o.Item, err = tail.ParseRow(strings.TrimSpace(query.Get("sequence"))); err != nil {
			return nil, fmt.Errorf("sequence=%w (# is %%23 in an address)", err)
		}
		if text := query.Get("partition"); text != "" {
			p, err := number(text, 0, partitionsMost-1)
			if err != nil {
				return nil, fmt.Errorf("partition=%w", err)
			}
			o.Partition = new(int(p)) //nolint:gosec // bounded
		}
		return func(ctx context.Context) (any, error) { return s.rows.Story(ctx, o) }, nil
	})
}

// serveFailures serves /api/failures?reason=R&before=N&limit=N.
func (s *rowsServer) serveFailures(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, []string{"reason", "before", "limit"}, func(query url.Values) (func(context.Context) (any, error), error) {
		o := tail.FailuresOptions{Reason: query.Get("reason"), Limit: failuresDefault}
		if text := query.Get("before"); text != "" {
			n, err := number(text, 1, 1<<63)
			if err != nil {
				return nil, fmt.Errorf("before=%w", err)
			}
			o.Before = n
		}
		if text := query.Get("limit"); text != "" {
			n, err := number(text, 1, failuresMost)
			if err != nil {
				return nil, fmt.Errorf("limit=%w", err)
			}
			o.Limit = int(n) //nolint:gosec // bounded
		}
		return func(ctx context.Context) (any, error) { return s.rows.Failures(ctx, o) }, nil
	})
}

// number reads a number of a query.
func number(text string, least, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%.40q: give a number from %d to %d", text, least, most)
	}
	return n, nil
}

// serve answers a question. read reads it from its query, which may have no other names
// than the known ones.
//
// A page of another site cannot read an answer, but it could make a browser ask, again
// and again. Browsers say which site a request comes from, and one from another site is
// refused.
func (s *rowsServer) serve(w http.ResponseWriter, r *http.Request, known []string, read func(url.Values) (func(context.Context) (any, error), error)) {
	if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" && from != "none" {
		writePlain(w, http.StatusForbidden, "this is for the page of the stage: open that, or the address itself")
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	for name := range query {
		if err == nil && !slices.Contains(known, name) {
			err = fmt.Errorf("%.40q: there are %s", name, strings.Join(known, ", "))
		}
	}
	var ask func(context.Context) (any, error)
	if err == nil {
		ask, err = read(query)
	}
	if err != nil {
		writePlain(w, http.StatusBadRequest, err.Error())
		return
	}
	turn := time.NewTimer(rowsTurn)
	defer turn.Stop()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-turn.C:
		w.Header().Set("Retry-After", "2")
		writePlain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d questions about rows are being answered: try again in a few seconds", rowsAtOnce))
		return
	case <-r.Context().Done(): // the client has gone
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), rowsPatience, fmt.Errorf("no answer within %v: "+
		"NATS is slow, or the audit holds too much to search; stage tail takes the time that it needs", rowsPatience))
	defer cancel()
	answer, err := ask(ctx)
	switch {
	case err == nil:
		writeJSON(w, http.StatusOK, answer)
	case tail.IsNoEvent(err):
		writePlain(w, http.StatusNotFound, err.Error())
	default:
		w.Header().Set("Retry-After", "2")
		writePlain(w, http.StatusServiceUnavailable, err.Error())
	}
}
