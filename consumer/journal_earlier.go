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
	refs    []keptRef // sorted; some rows may be emitted
	emitted int       // refs at the front whose rows are
	known   bool
	// waiting says that no row is started until the subjects are known. It ends at by:
	// rows start without, and are paid for again. The question is repeated all the same,
	// since nothing is purged by sequence until it is answered.
	waiting bool
	by      time.Time
	again   time.Time // when to ask once more

	pages []keptRef // read so far, where the subjects don't fit in one answer
	read  int       // subjects in them
	total int       // subjects that exist, by the first answer
	upTo  uint64    // highest sequence of the stream by then
}

// askEarlier asks which subjects exist, from the first one on that was not read. It asks
// twice within the time that rows wait for, since an answer may get lost, and a further
// page less often, as it takes long to make.
func (j *journal) askEarlier(now time.Time) {
	j.earlier.again = now.Add(streams.RequestTimeout / 2)
	if j.earlier.read > 0 {
		j.earlier.again = now.Add(2 * streams.RequestTimeout)
	}
	j.link.ask(topicSubjects, "STREAM.INFO", struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}{j.link.filter(), j.earlier.read})
}

// readEarlier reads an answer to askEarlier. An answer has 100,000 subjects at most,
// sorted. Where a subject was removed between two answers, the second one begins behind a
// subject that was in neither, so all are read again.
func (j *journal) readEarlier(m *nats.Msg, now time.Time) {
	e := &j.earlier
	if e.known {
		return // the second answer to a request that was repeated
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
		j.link.setProblem("read: " + err.Error())
		e.again = now.Add(journalScan + streams.RequestTimeout/20)
		return
	}
	if page.Offset == 0 {
		e.pages, e.read, e.total, e.upTo = nil, 0, page.Total, page.State.Last
	}
	if page.Offset != e.read {
		return // of a request that was repeated
	}
	for subject := range page.State.Subjects {
		if ref, ok := j.link.ref(subject); ok {
			e.pages = append(e.pages, ref)
		}
	}
	e.read += len(page.State.Subjects)
	switch {
	case page.Total != e.total:
		e.read = 0
		j.askEarlier(now)
	case e.read < e.total && len(page.State.Subjects) > 0:
		// The server works through all subjects for each page: of a million, several
		// seconds.
		e.by = now.Add(4 * streams.RequestTimeout)
		j.askEarlier(now)
	default:
		slices.SortFunc(e.pages, keptRef.compare)
		e.refs, e.pages = e.pages, nil
		e.known, e.waiting, e.again = true, false, time.Time{}
		j.purges.begin(e.upTo)
		j.dropFinished()
		j.link.c.at("journal read")
	}
}

// stepEarlier asks again where no answer has come, and returns when to be called again.
func (j *journal) stepEarlier(now time.Time) (next time.Time) {
	e := &j.earlier
	if e.known {
		return time.Time{}
	}
	if !now.Before(e.again) {
		j.askEarlier(now)
	}
	if e.waiting && !now.Before(e.by) {
		e.waiting = false
		j.link.setProblem("no answer")
	}
	if e.waiting {
		return soonest(e.again, e.by)
	}
	return e.again
}

// of returns which replies to a row and its elements are kept.
func (e *earlierTerms) of(seq uint64) []keptRef {
	from, _ := slices.BinarySearchFunc(e.refs, keptRef{row: seq, item: wholeRow}, keptRef.compare)
	to := from
	for to < len(e.refs) && e.refs[to].row == seq {
		to++
	}
	return e.refs[from:to]
}

// has reports whether the reply to a row, or to an element, is kept.
func (e *earlierTerms) has(row *Row) bool {
	_, has := slices.BinarySearchFunc(e.refs, keptRef{row.Seq, row.itemIndex()}, keptRef.compare)
	return has
}
