package consumer

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// earlierTerms knows which rows earlier terms have kept a reply to. It does not hold the
// replies themselves: they may be large, and behind a batch lane there may be a million.
//
// It asks the leader of the stream for the subjects that exist. Only a leader that has
// applied its whole log answers, so the subject of each acknowledged entry is among them.
type earlierTerms struct {
	link *journalLink

	refs    []keptRef // sorted; some rows may be emitted
	emitted int       // how many refs at the front are of emitted rows
	known   bool      // all subjects are read, so refs is complete
	// waiting says that no row is started until the subjects are known. It ends at by:
	// rows start without their replies then, and are paid for again. The question is
	// repeated all the same, since nothing is purged by sequence until it is answered.
	waiting bool
	by      time.Time
	again   time.Time // when to ask once more

	// These are about a reading that is not complete. The subjects may not fit in one
	// answer.
	found []keptRef // read so far
	read  int       // how many subjects were read, those that name no reply included
	total int       // how many subjects exist, by the first answer
	upTo  uint64    // highest sequence of the stream by then
}

// open asks which subjects exist. Rows wait for the answer, but no longer than a request
// may take.
func (e *earlierTerms) open(now time.Time) {
	e.waiting, e.by = true, now.Add(streams.RequestTimeout)
	e.ask(now)
}

// ask asks which subjects exist, from the first one on that was not read. It asks twice
// within the time that rows wait for, since an answer may get lost, and for a further page
// less often, as it takes long to make.
func (e *earlierTerms) ask(now time.Time) {
	e.again = now.Add(streams.RequestTimeout / 2)
	if e.read > 0 {
		e.again = now.Add(2 * streams.RequestTimeout)
	}
	e.link.ask(topicSubjects, "STREAM.INFO", struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}{e.link.filter(), e.read})
}

// received reads an answer to ask, and reports whether it completes the subjects. An
// answer has 100,000 subjects at most, sorted. A request that was repeated may be answered
// twice. The second answer is ignored, unless it has the first subjects: it begins the
// reading again.
//
// Where subjects were removed between two answers, all are read again:
//
//	A reads the first 100,000 of 100,010 subjects. An old purge removes 5 of these.
//	A asks for the subjects from number 100,000 on, and gets the last 5. It has not seen
//	the 5 before them. The total is 100,005 now.
func (e *earlierTerms) received(m *nats.Msg, now time.Time) (complete bool) {
	if e.known {
		return false
	}
	var page struct {
		Error  *jetstream.APIError `json:"error"`
		Total  int                 `json:"total"`
		Offset int                 `json:"offset"`
		State  struct {
			Last     uint64            `json:"last_seq"`
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	err := json.Unmarshal(m.Data, &page)
	switch code, why := streams.StatusOf(m); {
	case code != "":
		err = fmt.Errorf("%s %s", code, why)
	case err == nil && page.Error != nil:
		err = page.Error
	}
	if err != nil {
		e.link.setProblem("read: " + err.Error())
		e.again = now.Add(journalScan + streams.RequestTimeout/20)
		return false
	}
	if page.Offset == 0 {
		e.found, e.read, e.total, e.upTo = nil, 0, page.Total, page.State.Last
	}
	if page.Offset != e.read {
		return false
	}
	for subject := range page.State.Subjects {
		if ref, ok := e.link.ref(subject); ok {
			e.found = append(e.found, ref)
		}
	}
	e.read += len(page.State.Subjects)
	switch {
	case page.Total != e.total:
		e.read = 0
		e.ask(now)
		return false
	case e.read < e.total && len(page.State.Subjects) > 0:
		// The server works through all subjects for each page: of a million, several
		// seconds.
		e.by = now.Add(4 * streams.RequestTimeout)
		e.ask(now)
		return false
	}
	slices.SortFunc(e.found, keptRef.compare)
	e.refs, e.found = e.found, nil
	e.known, e.waiting, e.again = true, false, time.Time{}
	return true
}

// step asks again where no answer has come, and returns when to be called again.
func (e *earlierTerms) step(now time.Time) (next time.Time) {
	if e.known {
		return time.Time{}
	}
	if !now.Before(e.again) {
		e.ask(now)
	}
	if e.waiting && !now.Before(e.by) {
		e.waiting = false
		e.link.setProblem("no answer")
	}
	if e.waiting {
		return soonest(e.again, e.by)
	}
	return e.again
}

// of returns which replies to a row and its elements are kept.
func (e *earlierTerms) of(seq uint64) []keptRef {
	from, _ := slices.BinarySearchFunc(e.refs, keptRef{row: seq, item: wholeRow}, keptRef.compare)
	to, _ := slices.BinarySearchFunc(e.refs, keptRef{row: seq + 1, item: wholeRow}, keptRef.compare)
	return e.refs[from:to]
}

// has reports whether the reply to a row, or to an element, is kept.
func (e *earlierTerms) has(row *Row) bool {
	_, has := slices.BinarySearchFunc(e.refs, keptRef{row.Seq, row.itemIndex()}, keptRef.compare)
	return has
}

// dropEmitted forgets all entries once all their rows are emitted, and reports whether
// none is needed any more. They are in the order of their rows and not of their sequences
// in the stream, so either all of them can be purged by sequence or none.
func (e *earlierTerms) dropEmitted(finished func(seq uint64) bool) (none bool) {
	for e.emitted < len(e.refs) && finished(e.refs[e.emitted].row) {
		e.emitted++
	}
	if !e.known || e.emitted < len(e.refs) {
		return false
	}
	e.refs, e.emitted = nil, 0
	return true
}

// sift forgets the entries of rows that do not need them any more.
func (e *earlierTerms) sift(unneeded func(seq uint64) bool) {
	e.refs = slices.DeleteFunc(e.refs, func(r keptRef) bool { return unneeded(r.row) })
	e.emitted = 0
}
