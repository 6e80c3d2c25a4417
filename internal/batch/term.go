package batch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

const (
	// contentMax bounds the answers of a deferred batch together. A process holds those of
	// a batch in memory while it answers a request for them.
	contentMax = 16 << 20
	// fatalWait is how long a batch waits after an error that someone must fix first.
	fatalWait = time.Minute
	// storeAgainFirst and storeAgainMost bound the wait before a result is stored again.
	storeAgainFirst = 100 * time.Millisecond
	storeAgainMost  = 5 * time.Second
)

// What prompts without a result have in place of one, by how the batch has ended.
const (
	whyCancelled = "the batch was cancelled"
	whyTooOld    = "the batch has ended after seven days"
)

// Why a term ends before its batch has all results.
var (
	errFenced    = errors.New("another replica has taken the batch over")
	errCancelled = errors.New(whyCancelled)
	errOver      = errors.New("the batch has ended")
	errGone      = errors.New("the batch was removed from its stream")
	errLarge     = fmt.Errorf("its answers take more than %d bytes together", contentMax)
	errUncertain = errors.New("this process was suspended, or can't reach its NATS server, and " +
		"does not know whether the batch is still its own")
)

// endedBy is why a term ends when its batch has ended elsewhere.
func endedBy(s State) error {
	if s == StateCancelled {
		return errCancelled
	}
	return errOver
}

// term is the time from a claim of a deferred batch to its end, by this process. It
// implements [llm.BatchKeeper].
type term struct {
	service *Service
	shelf   *shelf
	run     *run
	id      string
	before  uint64 // sequence of the claim before its own
	stop    context.CancelCauseFunc
	hard    func() context.Context // ends when the process must end at once

	claim   uint64        // sequence of its own claim; constant once it has one
	writing chan struct{} // has a place for the one write under way, see write
	gone    bool          // the batch is not in the stream any more; for the desk, after the term
	proof   atomic.Pointer[time.Time]
	problem atomic.Pointer[string] // why prompts wait

	mu    sync.Mutex // guards the rest, for a few instructions
	kept  []bool     // by prompt
	count int        // of them
	bytes int        // of all answers
}

// work claims the batch and works on it until it has all results, or ctx ends.
func (t *term) work(ctx context.Context) {
	request, err := t.begin(ctx)
	if request == nil {
		t.gone = errors.Is(err, errGone)
		if err != nil && ctx.Err() == nil {
			t.service.log.Debug("deferred batch not taken", slog.String("batch_id", t.id),
				slog.Any("error", err))
		}
		return
	}
	if err := t.write(partBeat, t.sign(), nil); err != nil { //nolint:contextcheck // ctx may be over, and what is stored bounds itself
		t.finish(err) //nolint:contextcheck // as above. While the stream is full no call begins
		return
	}
	t.service.log.Info("deferred batch taken", slog.String("batch_id", t.id),
		slog.Int("prompts", len(request.Prompts)), slog.Int("results", t.done()))
	beating, still := context.WithCancel(context.WithoutCancel(ctx))
	var beats sync.WaitGroup
	beats.Go(func() { t.beat(beating) })
	err = t.resume(ctx, request)
	if why, over := outcome(err); over {
		err = t.end(ctx, why)
	}
	still()
	beats.Wait()
	t.finish(err) //nolint:contextcheck // ctx may be over, and what is stored bounds itself
}

// begin stores the claim and reads what there is of the batch. The request is nil if the
// batch is another's, or gone.
func (t *term) begin(ctx context.Context) (*llm.BatchRequest, error) {
	subject, sent := t.shelf.subject(t.id, partClaim), time.Now()
	seq, err := t.shelf.append(ctx, subject,
		nats.Header{streams.HeaderOwner: {t.service.caller.RunID()}}, nil, subject, t.before)
	if err != nil && !streams.Conflict(err) {
		return nil, err
	}
	m, readErr := t.shelf.last(ctx, t.id, partRequest)
	switch {
	case readErr == nil && m == nil: // removed by hand, or by a limit of the stream
		return nil, errGone
	case cmp.Or(err, readErr) != nil:
		return nil, cmp.Or(err, readErr)
	}
	t.claim = seq
	t.proof.Store(&sent)
	request := new(llm.BatchRequest)
	if err := json.Unmarshal(m.Data, request); err != nil {
		return nil, err
	}
	t.run.may = t.sure
	t.kept = make([]bool, len(request.Prompts))
	if t.before == 0 {
		return request, nil // no term before this one could store a result
	}
	err = t.shelf.results(ctx, t.id, func(prompt int, r *storedResult) {
		if prompt >= 0 && prompt < len(t.kept) {
			t.noteKept(prompt, r)
		}
	})
	if err != nil {
		return nil, err
	}
	return request, nil
}

// resume sends the prompts that have no result. A fatal error fails none: it is tried
// again once a minute, as someone may fix it, unless the batch has a model of its own.
func (t *term) resume(ctx context.Context, request *llm.BatchRequest) error {
	for {
		err := t.service.batch.Resume(ctx, t.run, request, t)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fatal, is := errors.AsType[*llm.Error](err)
		if !is || request.Model != "" && fatal.Reason != reasonCostCeiling {
			return err
		}
		t.Waits(fatal)
		t.service.log.Warn("deferred batch waits: the provider refuses its calls",
			slog.String("batch_id", t.id), slog.Any("error", fatal))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(fatalWait):
		}
	}
}

// outcome returns whether the batch is over by the error of its term, and what prompts
// without a result have in place of one.
func outcome(err error) (why string, over bool) {
	fatal, isFatal := errors.AsType[*llm.Error](err)
	switch {
	case err == nil:
		return "", true
	case isFatal:
		return fatal.Error(), true
	case errors.Is(err, errLarge):
		return errLarge.Error(), true
	}
	return "", false
}

// end stores the end of the batch. While the stream is full, or can't be reached, it tries
// again until ctx ends.
func (t *term) end(ctx context.Context, why string) error {
	for range streams.Retry(ctx, storeAgainFirst, storeAgainMost) { //nolint:contextcheck // as in work
		_ = t.write(partBeat, t.progress(), nil) // how many results there are, for lists
		err := t.shelf.end(t.hard(), t.id, StateDone, why)
		if err == nil {
			return errOver
		}
		t.note("the end of the batch can't be stored: " + explained(err))
	}
	return context.Cause(ctx)
}

// finish gives the batch up, for others to take unless it is over or theirs.
func (t *term) finish(why error) {
	log := t.service.log.With(slog.String("batch_id", t.id), slog.Int("results", t.done()),
		slog.Any("why", why))
	if errors.Is(why, errCancelled) {
		_ = t.write(partBeat, t.progress(), nil) // of the calls that were in flight, for lists
	}
	if errors.Is(why, errFenced) || errors.Is(why, errCancelled) || errors.Is(why, errOver) ||
		errors.Is(why, errGone) {
		log.Info("deferred batch ended here")
		return
	}
	if err := t.write(partClaim, nats.Header{streams.HeaderOwner: {""}}, nil); err != nil {
		log.Info("deferred batch not released: others take it over when its owner is silent",
			slog.Any("error", err))
		return
	}
	log.Info("deferred batch released")
}

// beat stores signs of life until ctx ends.
func (t *term) beat(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(beatEvery):
		}
		err := t.write(partBeat, t.progress(), nil) //nolint:contextcheck // as in work
		if streams.Full(err) {
			err = t.write(partBeat, t.sign(), nil) //nolint:contextcheck // as in work
		}
		if errors.Is(err, errFenced) {
			t.stop(errFenced)
			return
		}
	}
}

// sign is the header of a beat without a problem. It always has the same size: a full
// stream takes a message in place of one that is no smaller, and an owner that waits for
// room must not seem silent, or others would make its calls again.
func (t *term) sign() nats.Header {
	return nats.Header{headerDone: {fmt.Sprintf("%07d", t.done())}}
}

// progress is the header of a beat.
func (t *term) progress() nats.Header {
	h := t.sign()
	if problem := t.problem.Load(); problem != nil {
		h[headerProblem] = []string{*problem}
	}
	return h
}

// write stores a message of the term. Its error is errFenced once another claim is stored.
// Writes go one after the other: a server of a cluster refuses a second one on the same
// condition while the first is under way.
func (t *term) write(p part, header nats.Header, body []byte) error {
	t.writing <- struct{}{}
	defer func() { <-t.writing }()
	claim, sent := t.shelf.subject(t.id, partClaim), time.Now()
	_, err := t.shelf.append(t.hard(), t.shelf.subject(t.id, p), header, body, claim, t.claim)
	if err == nil {
		t.proof.Store(&sent)
		return nil
	}
	if streams.Conflict(err) {
		last, readErr := t.shelf.last(t.hard(), t.id, partClaim)
		if readErr == nil && (last == nil || last.Sequence != t.claim) {
			return errFenced
		}
	}
	return err
}

// sure returns an error while it is not certain that the batch is this term's own: it was
// not proved lately. The wall clock counts, too, since the other stands still while the
// machine is suspended.
func (t *term) sure() error {
	proof, now := *t.proof.Load(), time.Now()
	if now.Sub(proof) < sureMax && now.Round(0).Sub(proof.Round(0)) < sureMax {
		return nil
	}
	return errUncertain
}

// Kept implements [llm.BatchKeeper].
func (t *term) Kept(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept[i]
}

// Keep implements [llm.BatchKeeper]. While the stream is full, or can't be reached, it
// tries again: the answer is paid for.
func (t *term) Keep(i int, r llm.BatchResult, tokens *llm.BatchTokens) error {
	result := &storedResult{r, tokens}
	body := encodeJSON(result)
	if size, most := len(body), t.service.bytesMax(); size > most {
		result.BatchResult = llm.BatchResult{
			Status: llm.BatchError, Reason: llm.ReasonResultTooLarge,
			Error: fmt.Sprintf("the answer takes %d bytes, and a message of the server at most %d",
				size, most),
		}
		body = encodeJSON(result)
	}
	for wait := storeAgainFirst; ; wait = min(2*wait, storeAgainMost) {
		err := t.write(part(string(partReply)+"."+strconv.Itoa(i)), nil, body)
		if err == nil {
			break
		}
		if errors.Is(err, errFenced) {
			return err
		}
		if wait == storeAgainFirst {
			t.service.log.Warn("a result of a deferred batch can't be stored, trying again; no "+
				"further call is made in its place",
				slog.String("batch_id", t.id), slog.Int("prompt", i), slog.Any("error", err))
		}
		t.note("a result can't be stored: " + explained(err))
		select {
		case <-t.hard().Done():
			return context.Cause(t.hard())
		case <-time.After(wait):
		}
	}
	t.note("")
	if t.noteKept(i, result) > contentMax {
		return errLarge
	}
	return nil
}

// Waits implements [llm.BatchKeeper].
func (t *term) Waits(err *llm.Error) { t.note(err.Error()) }

// note notes why prompts wait, or with an empty text that they do not.
func (t *term) note(problem string) {
	if problem == "" {
		t.problem.Store(nil)
		return
	}
	t.problem.Store(new(oneLine(problem)))
}

// noteKept notes a result that is stored, and returns the bytes of all answers.
func (t *term) noteKept(i int, r *storedResult) (bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.kept[i] {
		t.kept[i] = true
		t.count++
		t.bytes += len(r.Content)
	}
	return t.bytes
}

// done is how many prompts have their result.
func (t *term) done() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}
