package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
)

// The requests about deferred batches: the last token of their subjects.
const (
	RequestSubmit = "submit"
	RequestGet    = "get"
	RequestCancel = "cancel"
)

const (
	// keepDefault is how long the answers of a batch are kept whose request does not say
	// so.
	keepDefault = 24 * time.Hour
	keepLeast   = time.Second
	// waitMax bounds how long a get may wait for the end of a batch.
	waitMax = 10 * time.Minute
	// asksMax bounds the requests about deferred batches in progress in a process, most of
	// which wait. answersMax bounds those that have the answers of a batch in memory.
	asksMax    = 256
	answersMax = 4
)

// SubmitReply answers a submit: the batch is stored.
type SubmitReply struct {
	ID string `json:"id"`
}

// Deferred answers a get or cancel.
type Deferred struct {
	ID    string `json:"id"`
	State State  `json:"state"`
	// Done is how many prompts have their result, some seconds ago while the batch runs.
	Done  int `json:"done"`
	Total int `json:"total"`
	// Problem is why prompts wait, if they do.
	Problem string `json:"problem,omitempty"`
	// Expires is when the answers are removed, once the batch is over.
	Expires *time.Time `json:"expires,omitempty"`
	// From is the first prompt that Results are about, and Next the one behind their last,
	// if there are more. They are for answers that do not fit into a message together.
	From int `json:"from,omitempty"`
	Next int `json:"next,omitempty"`
	// BatchReply has the results of a batch that is over.
	*llm.BatchReply
}

// deferredError is why a request about a deferred batch is refused.
type deferredError struct{ body ErrorBody }

// Error is the human-readable message.
func (e *deferredError) Error() string { return e.body.Error }

func refusal(code, format string, args ...any) *deferredError {
	return &deferredError{ErrorBody{Code: code, Error: fmt.Sprintf(format, args...)}}
}

// submission is a request for a deferred batch.
type submission struct {
	request *llm.BatchRequest
	id      string
	keep    time.Duration
}

// readSubmission decodes a submit. The error is human-readable.
func readSubmission(data []byte) (*submission, error) {
	var w struct {
		wireRequest

		ID   *string `json:"id"`
		Keep *string `json:"keep"`
	}
	if err := decode(data, &w); err != nil {
		return nil, fmt.Errorf("request is not a batch in JSON: %w",
			explainJSON(err, "{"+requestForm+`, "id": text, "keep": duration as text}`))
	}
	s := &submission{id: call.NewID(), keep: keepDefault}
	if w.ID != nil {
		if s.id = *w.ID; !validID(s.id) {
			return nil, fmt.Errorf("id is %.80q: give 1 to 64 letters, digits, - and _, or leave "+
				"it out", s.id)
		}
	}
	if w.Keep != nil {
		var err error
		if s.keep, err = readDuration("keep", *w.Keep, keepLeast,
			streams.BatchKeepMax); err != nil {
			return nil, err
		}
	}
	var err error
	s.request, err = w.request()
	return s, err
}

// CheckSubmission checks a request for a deferred batch as far as a client can, and
// returns its id, or a new one if it names none. The error is human-readable.
func CheckSubmission(data []byte) (id string, err error) {
	s, err := readSubmission(data)
	if err != nil {
		return "", err
	}
	return s.id, nil
}

// readDuration reads a duration of a request.
func readDuration(name, text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf(`%s is %.80q: give a duration between %v and %v, such as "5m"`, name,
			text, least, most)
	}
	return d, nil
}

// question is a get or cancel.
type question struct {
	id   string
	wait time.Duration
	from *int // first prompt whose result is wanted; nil means that all are, in one reply
}

// readQuestion decodes a get or cancel. The error is human-readable.
func readQuestion(data []byte, cancel bool) (*question, error) {
	var w struct {
		ID   string  `json:"id"`
		Wait *string `json:"wait"`
		From *int    `json:"from"`
	}
	err := decode(data, &w)
	switch {
	case err != nil:
		form := `{"id": text, "wait": duration as text, "from": whole number}`
		if cancel {
			form = `{"id": text}`
		}
		return nil, fmt.Errorf("request is not about a batch in JSON: %w", explainJSON(err, form))
	case !validID(w.ID):
		return nil, fmt.Errorf("id is %.80q, which no batch has", w.ID)
	case cancel && (w.Wait != nil || w.From != nil):
		return nil, errors.New("wait and from are of a get: leave them out")
	case w.From != nil && *w.From < 0:
		return nil, fmt.Errorf("from is %d: give the number of a prompt, from 0 on", *w.From)
	}
	q := &question{id: w.ID, from: w.From}
	if w.Wait != nil {
		q.wait, err = readDuration("wait", *w.Wait, 0, waitMax)
	}
	return q, err
}

// submit stores a batch.
func (b *Service) submit(ctx context.Context, data []byte) (any, error) {
	s, err := readSubmission(data)
	if err == nil {
		err = b.check(s.request)
	}
	if err != nil {
		return nil, err
	}
	body := encodeJSON(s.request)
	if size, most := len(body), b.bytesMax(); size > most {
		return nil, fmt.Errorf("the request takes %d bytes, the server's messages at most %d: "+
			"send several batches", size, most)
	}
	if err := b.desk.table.unfit(); err != nil {
		return nil, refusal(CodeUnavailable, "deferred batches are not served at the moment: %s",
			explained(err))
	}
	header := nats.Header{
		headerKeep: {s.keep.String()}, headerPrompts: {strconv.Itoa(len(s.request.Prompts))},
		headerHash: {hashOf(s.request)},
	}
	if err := b.desk.admit(ctx, int64(len(body))); err != nil {
		if stored, _ := b.desk.shelf.last(ctx, s.id, partRequest); stored != nil {
			return sameBatch(s.id, stored, header) // this one is in already
		}
		return nil, err
	}
	subject := b.desk.shelf.subject(s.id, partRequest)
	_, err = b.desk.shelf.append(ctx, subject, header, body, subject, 0)
	if err == nil {
		return SubmitReply{s.id}, nil
	}
	if !streams.Full(err) {
		// It may be stored all the same, now or by an earlier attempt of the client.
		if stored, _ := b.desk.shelf.last(ctx, s.id, partRequest); stored != nil {
			return sameBatch(s.id, stored, header)
		}
	}
	switch {
	case streams.Full(err):
		return nil, refusal(codeStoreFull, "%s", explained(err))
	case errors.Is(err, streams.ErrRefused):
		return nil, refusal(CodeUnavailable, "the batch is not stored: %s", explained(err))
	}
	unavailable := refusal(CodeUnavailable, "the batch is perhaps not stored: %s; submit it "+
		"again with this id, then it is one batch whatever became of the first attempt",
		explained(err))
	unavailable.body.ID = s.id
	return nil, unavailable
}

// sameBatch answers a submit whose id is stored already.
func sameBatch(id string, stored *jetstream.RawStreamMsg, header nats.Header) (any, error) {
	if stored.Header.Get(headerHash) != header.Get(headerHash) {
		return nil, refusal(CodeBadRequest, "another batch has the id %s: give another one, or "+
			"none", id)
	}
	return SubmitReply{id}, nil
}

// admit refuses a batch that there is no room for. Requests may take half of the stream:
// the rest is for answers.
func (d *desk) admit(ctx context.Context, size int64) error {
	batches, bytes, bytesMax, err := d.shelf.room(ctx)
	switch {
	case err != nil:
		return refusal(CodeUnavailable, "the batch is not stored: %s", explained(err))
	case batches >= storedMax:
		e := refusal(codeBatchesAtMax, "%d deferred batches are stored, which is the maximum: "+
			"retry when some were removed, which is when their time to be kept is over", batches)
		e.body.Size, e.body.Max = new(batches), new(storedMax)
		return e
	case bytesMax > 0 && bytes+size > bytesMax/2:
		e := refusal(codeStoreFull, "stream %s holds %d bytes: a batch of %d is only stored in "+
			"the first half of its limit of %d, as the rest is for answers. "+
			"Retry when batches were removed, ask for a shorter keep, or raise the limit: nats "+
			"stream edit %s --max-bytes=…", d.shelf.stream, bytes, size, bytesMax,
			d.shelf.stream)
		e.body.Size, e.body.Max = new(int(bytes)), new(int(bytesMax))
		return e
	}
	return nil
}

// get reports how far a batch has come, with its results once it is over. It waits for
// that as long as asked to, unless ctx ends.
func (b *Service) get(ctx context.Context, data []byte) (any, error) {
	q, err := readQuestion(data, false)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(q.wait)
	defer timer.Stop()
	for over := q.wait == 0; ; {
		// Before the stream, or an end between the two would be missed.
		_, _, ended := b.desk.table.look(q.id)
		found, err := b.desk.look(context.WithoutCancel(ctx), q.id)
		if err != nil {
			return nil, err
		}
		if found.reply.State.Over() {
			return b.answers(context.WithoutCancel(ctx), q, found)
		}
		if over {
			return found.reply, nil
		}
		select {
		case <-ended:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
}

// cancel cancels a batch. One that is over stays as it is.
func (b *Service) cancel(ctx context.Context, data []byte) (any, error) {
	q, err := readQuestion(data, true)
	if err != nil {
		return nil, err
	}
	found, err := b.desk.look(ctx, q.id)
	if err != nil || found.reply.State.Over() {
		return found.reply, err
	}
	if err := b.desk.shelf.end(ctx, q.id, StateCancelled, whyCancelled); err != nil {
		return nil, refusal(CodeUnavailable, "the batch may not be cancelled: %s; cancel it again",
			explained(err))
	}
	if found, err = b.desk.look(ctx, q.id); err != nil {
		return nil, err
	}
	return found.reply, nil
}

// found is what is known of a batch.
type found struct {
	reply     Deferred
	submitted time.Time
	ended     time.Time
	why       string // what prompts without a result have in place of one
}

// look reads what is known of a batch. The stream says whether it exists and is over, and
// the table how far it has come.
func (d *desk) look(ctx context.Context, id string) (found, error) {
	e, known, _ := d.table.look(id)
	end, err := d.shelf.last(ctx, id, partEnd)
	if err == nil && (!known || end != nil) {
		var request *jetstream.RawStreamMsg
		if request, err = d.shelf.last(ctx, id, partRequest); err == nil && request == nil {
			return found{}, refusal(CodeNotFound, "there is no batch %s: it was never stored, or "+
				"its time to be kept is over", id)
		}
		if err == nil && (!known || e.request != request.Sequence) {
			e = entry{id: id}
			e.note(partRequest, request, time.Now())
		}
	}
	if err != nil {
		return found{}, refusal(CodeUnavailable, "the batch can't be read: %s", explained(err))
	}
	if end != nil && end.Sequence > e.request {
		e.note(partEnd, end, time.Now())
	}
	f := found{
		reply: Deferred{
			ID: id, State: e.stateAt(time.Now()), Done: e.done, Total: e.prompts,
			Problem: e.problem,
		},
		submitted: e.submitted, ended: e.ended,
	}
	if f.reply.State.Over() {
		f.reply.Problem, f.why = "", cmp.Or(string(end.Data), whyCancelled)
		f.reply.Expires = new(e.ended.Add(e.keep).UTC())
	}
	return f, nil
}

// answers adds the results to the reply of a batch that is over.
func (b *Service) answers(ctx context.Context, q *question, f found) (any, error) {
	select {
	case b.answering <- struct{}{}:
		defer func() { <-b.answering }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	reply := &f.reply
	results := make([]llm.BatchResult, reply.Total)
	for i := range results {
		results[i] = llm.BatchResult{
			Status: llm.BatchError, Reason: llm.ReasonCancelled, Error: "not sent: " + f.why,
		}
	}
	reply.BatchReply = &llm.BatchReply{
		Results: results, TotalTimeMS: max(0, f.ended.Sub(f.submitted).Milliseconds()),
	}
	reply.Done = 0
	err := b.desk.shelf.results(ctx, q.id, func(prompt int, r *storedResult) {
		if prompt < 0 || prompt >= len(results) {
			return
		}
		results[prompt] = r.BatchResult
		reply.Done++
		reply.TotalTokens = reply.TotalTokens.Plus(r.Tokens)
	})
	if err != nil {
		return nil, refusal(CodeUnavailable, "the answers can't be read: %s", explained(err))
	}
	if q.from == nil {
		if size, most := len(encodeJSON(reply)), b.bytesMax(); size > most {
			e := refusal(CodeReplyTooLarge, `the answers take %d bytes, and a message at most `+
				`%d: get them in parts, first with "from": 0, then with the "next" of each reply`,
				size, most)
			e.body.Size, e.body.Max = &size, &most
			return nil, e
		}
		return reply, nil
	}
	reply.From = min(*q.from, len(results))
	// For the members around the results.
	room := b.bytesMax() - len(encodeJSON(Deferred{BatchReply: &llm.BatchReply{}})) - 512
	to := reply.From
	for ; to < len(results); to++ {
		if room -= len(encodeJSON(&results[to])) + 1; room < 0 && to > reply.From {
			break
		}
	}
	if reply.Results = results[reply.From:to]; to < len(results) {
		reply.Next = to
	}
	return reply, nil
}

// ask handles a request about deferred batches in its own goroutine, since it waits for
// the server, and perhaps for the end of a batch.
func (b *Service) ask(
	work, hard context.Context, handle func(ctx context.Context, data []byte) (any, error),
	req micro.Request,
) {
	// Read now, as the service reuses req.
	msg := &nats.Msg{Subject: req.Reply(), Header: nats.Header{}}
	if msg.Subject == "" {
		return
	}
	data := req.Data()
	err := b.beginAsk(func() {
		ctx, stop := context.WithCancelCause(work)
		defer stop(nil)
		defer context.AfterFunc(hard, func() { stop(context.Cause(hard)) })()
		reply, err := handle(ctx, data)
		var code, description string
		if err == nil {
			msg.Data = encodeJSON(reply)
		} else {
			msg.Data, code, description = encodeReply(b.cfg.LLM.Provider, nil, err, b.bytesMax())
			msg.Header[micro.ErrorHeader] = []string{oneLine(description)}
			msg.Header[micro.ErrorCodeHeader] = []string{code}
		}
		if err := b.conn.NC().PublishMsg(msg); err != nil {
			b.log.Warn("reply about a deferred batch not sent", slog.Any("error", err))
		}
	})
	if err != nil {
		body, code, description := encodeReply(b.cfg.LLM.Provider, nil, err, b.bytesMax())
		if err := req.Error(code, oneLine(description), body); err != nil {
			b.log.Debug("request about a deferred batch not answered", slog.Any("error", err))
		}
	}
}

// beginAsk runs answer in its own goroutine, unless the service has stopped or is busy.
func (b *Service) beginAsk(answer func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stopped:
		return refusal(CodeUnavailable, "%v", errStopping)
	case b.asks >= asksMax:
		return &busyError{asksMax, "requests about deferred batches"}
	}
	b.asks++
	b.working.Go(func() {
		defer func() {
			b.mu.Lock()
			b.asks--
			b.mu.Unlock()
		}()
		answer()
	})
	return nil
}
