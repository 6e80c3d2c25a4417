package executor

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strconv"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// newJob returns a job that continues where the row was handed back or parked.
func (e *Executor) newJob(row *consumer.Row) *job {
	j := &job{row: row}
	if before, ok := row.Spent.(*spent); ok {
		j.spent = *before
	} else if before := e.lane.spent.take(row); before != nil {
		j.spent = *before
		row.Continue(j.calls)
	}
	return j
}

// prepareAll makes jobs of the rows that need a call, and answers the others.
func (e *Executor) prepareAll(ctx context.Context, taken []entry) []*job {
	jobs := make([]*job, 0, len(taken))
	for _, w := range taken {
		var j *job
		if w.prompt != nil {
			e.prompts.submit(w.prompt)
			continue
		}
		switch stop := ctx.Err() != nil || !w.row.Wanted(); {
		case w.fan != nil:
			j = e.prepareElement(ctx, w, stop)
		case stop:
			e.handBack(w.row)
		case e.cfg.FansOut():
			e.fanOut(w.row)
		default:
			j = e.prepare(ctx, w.row)
		}
		if j != nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// prepare makes a job of a row, or answers one that needs no call and returns nil.
func (e *Executor) prepare(ctx context.Context, row *consumer.Row) *job {
	if e.passOn(row) {
		return nil
	}
	j := e.newJob(row)
	err := loadError(row, e.prompt.ownServer)
	if err == nil {
		err = e.render(j)
	}
	if err == nil && e.Lanes != nil {
		_, err = readWish(e.cfg, row)
	}
	if err != nil {
		e.answerError(j, err, e.uncalled(j), "")
		return nil
	}
	if media.NeedsReading(j.request.Messages) || e.finish(ctx, j) {
		return j
	}
	return nil
}

// fanOut puts a row back into the queue as a fan, or answers one that can't be or has no
// element to answer.
func (e *Executor) fanOut(in *consumer.Row) {
	f, ok := in.Spent.(*fan)
	if !ok {
		if e.passOn(in) {
			return
		}
		j := &job{row: in}
		var items *row.Items
		err := loadError(in, e.prompt.ownServer)
		if err == nil {
			j.parsed, err = e.parse(in)
		}
		if err == nil {
			items, err = e.prompt.Items(j.parsed)
		}
		if err == nil && e.cfg.Foreach.Errors == config.ForeachRow { // one that can't be rendered fails the row: pay for no other
			if failed := e.prompt.ItemProblems(items); failed != nil {
				err = row.ItemsFailed(failed, items.Len())
			}
		}
		if err != nil {
			e.answerError(j, err, e.uncalled(j), "")
			return
		}
		f = newFan(e, in, j.parsed, items, len(e.prompt.format.AppendItems(nil, j.parsed, nil)))
	}
	if f.start() == 0 {
		f.concludeIf(true)
		return
	}
	e.backlog.add(entry{row: in, fan: f})
}

// noMembers is what the result of an element is made of.
var noMembers, _ = row.Parse([]byte("{}"))

// prepareElement makes a job of an element, or answers one that needs no call and returns
// nil. stop says that its row is to be handed back.
func (e *Executor) prepareElement(ctx context.Context, w entry, stop bool) *job {
	j := &job{row: w.row, fan: w.fan, index: w.index, parsed: noMembers}
	if before := w.fan.elements[w.index].spent; before != nil {
		j.spent = *before
	}
	if stop || w.fan.gaveUp() {
		e.giveBack(j)
		return nil
	}
	if tooLarge := w.fan.tooLarge(); tooLarge != nil { // whatever the reply: don't pay for it
		e.answerError(j, tooLarge, e.uncalled(j), "")
		return nil
	}
	if err := e.render(j); err != nil {
		e.answerError(j, err, e.uncalled(j), "")
		return nil
	}
	if media.NeedsReading(j.request.Messages) || e.finish(ctx, j) {
		return j
	}
	return nil
}

// loadError returns the error of a row that the loader published in the place of one that
// is too large for a message or is malformed in its file, and of a row whose body can't be
// read from the object store. For any other row it returns nil.
func loadError(in *consumer.Row, ownServer bool) error {
	if in.Unreadable != "" {
		return row.Broken("the row's body is an object of another stage: "+in.Unreadable, nil)
	}
	if problem, begin := readBroken(in); problem != "" {
		return row.Broken(problem, begin)
	}
	if llm.Reason(in.Header.Get(streams.HeaderRowError)) != llm.ReasonRowTooLarge {
		return nil
	}
	size, _ := strconv.ParseInt(in.Header.Get(streams.HeaderRowSize), 10, 64) // 0 if it is missing: unknown
	limit, _ := strconv.Atoi(in.Header.Get(streams.HeaderRowLimit))
	return row.TooLarge(size, limit, in.Body, ownServer)
}

// readBroken returns what a loader found wrong with a row of its file, and the beginning
// of that row. For any other row it returns "" and the body.
func readBroken(in *consumer.Row) (problem string, begin []byte) {
	problem = in.Header.Get(streams.HeaderRowProblem)
	begin, ok := bytes.CutPrefix(in.Body, []byte(problem+": "))
	if problem == "" || !ok { // without its text in the body the header is not the loader's
		return "", in.Body
	}
	return problem, bytes.TrimRight(begin, "\r\n")
}

// render parses the row and makes its request. Where media have to be read first, its bytes
// are made later, by finish.
func (e *Executor) render(j *job) (err error) {
	if j.fan != nil {
		j.request, j.vars, err = e.prompt.ItemRequest(j.fan.items, j.index)
	} else if j.parsed, err = e.parse(j.row); err == nil {
		j.request, j.vars, err = e.prompt.Request(j.parsed)
	}
	// The model becomes a label of metrics, and labels are UTF-8.
	if j.model = streams.Text(j.row.Header.Get(streams.HeaderModel)); j.model == "" {
		j.model = j.request.Model
	}
	return err
}

// finish makes the bytes of the request to the first target, and reports whether the job
// needs a call. One that fails, or whose reply is in the journal, is answered.
func (e *Executor) finish(ctx context.Context, j *job) bool {
	err := e.prompt.Media.Describe(ctx, j.request.Messages) // of the media in the request itself
	if err == nil {
		err = j.addressFirst(e.caller)
	}
	if err != nil {
		e.answerError(j, err, e.uncalled(j), "")
		return false
	}
	return !e.restore(j)
}

// finishAll is finish for jobs whose media have been looked up. It returns those that need
// a call.
func (e *Executor) finishAll(ctx context.Context, jobs []*job) []*job {
	return slices.DeleteFunc(jobs, func(j *job) bool {
		if ctx.Err() != nil || !j.row.Wanted() {
			e.giveBack(j)
			return true
		}
		return !e.finish(ctx, j)
	})
}

// parse parses a row. One that is a result of another stage keeps the fields of that.
func (e *Executor) parse(in *consumer.Row) (*row.Row, error) {
	parsed, err := row.Parse(in.Body)
	if err != nil {
		return nil, err
	}
	if stage := streams.Upstream(in.Header); stage != e.cfg.Name {
		parsed.KeepAs(stage)
	}
	return parsed, nil
}

// passOn answers a row that arrived as an error of an earlier stage, unless such rows are
// processed: it is passed on unchanged, in its place.
func (e *Executor) passOn(in *consumer.Row) bool {
	if e.cfg.Rows.OnUpstreamError != "pass" || in.Unreadable != "" || in.Header.Get(streams.HeaderStatus) != auditlog.RowError {
		return false
	}
	j := &job{row: in}
	body, event := in.Body, e.event(j, e.uncalled(j), auditlog.SourceUpstream)
	if len(body) > in.MaxBodyBytes {
		tooLarge := row.ResultTooLarge(len(body), in.MaxBodyBytes, e.prompt.moreRoom)
		body, event.Reason = e.prompt.errorBody(nil, in, tooLarge, nil), string(tooLarge.Reason)
		event.Errors = withCause(nil, tooLarge)
	}
	e.reply(in, &consumer.Reply{Body: body, Failed: true, Event: event, UpstreamReason: upstreamReason(in, e.cfg.Prompt.ResponseField)})
	return true
}

// upstreamError is the reason of an error row that does not state its own.
const upstreamError = "upstream_error"

// reasonWord is what a reason looks like. It goes into a header, and comes from another
// program.
var reasonWord = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// upstreamReason is why a row failed that arrived as an error: from its body, or from its
// header if it was a dead letter.
func upstreamReason(in *consumer.Row, field string) string {
	for _, reason := range []string{row.FailureReason(in.Body, field), in.Header.Get(streams.HeaderReason)} {
		if reasonWord.MatchString(reason) {
			return reason
		}
	}
	return upstreamError
}

// restore answers the job with the reply that an earlier term of ownership kept in the
// journal for the same request. Its result may have been made with other settings:
// another field, schema, template or largest message. So the result is always made again
// with the present ones, which gives the same bytes if they are the same. It reports
// false if no reply is kept, or if the kept one cannot be used with the present settings:
// then the call is made, and paid for, again.
func (e *Executor) restore(j *job) bool {
	kept := j.kept()
	if kept == nil || kept.RequestHash != j.key {
		return false
	}
	reply := consumer.Reply{Event: kept.Reply.Event, RequestHash: j.key}
	if e.Lanes != nil && reply.Event.RunID == e.caller.RunID() {
		reply.RequestHash = "" // behind the lane every reply waits in the journal: nothing was lost, and it is there
	} else {
		reply.Event.Source = auditlog.SourceJournal
	}
	reply.Event.TemplateHash, reply.Event.VariablesHash = e.prompt.templateHash(), j.vars
	var ok bool
	if kept.Reply.Failed {
		ok = e.prompt.errorAgain(j, &reply)
	} else {
		ok = e.prompt.successAgain(j, &reply)
	}
	if !ok {
		return false
	}
	if bytes.Equal(reply.Body, kept.Reply.Body) {
		reply.Body = kept.Reply.Body // the journal holds it until the row is emitted: no second copy
	}
	e.answer(j, &reply)
	return true
}
