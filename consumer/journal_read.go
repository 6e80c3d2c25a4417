package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// marked handles the answer to the marker and requests the first entries.
func (j *journal) marked(m *nats.Msg, now time.Time) {
	if !j.reading {
		return
	}
	marker, err := streams.StoredAt(m)
	if err != nil {
		// A full journal takes no marker but may hold entries: read until nothing is
		// pending.
		j.setProblem(err.Error())
	}
	j.marker, j.last, j.readNext = marker, max(j.last, marker), 1
	if j.c.cfg.Lane != nil {
		j.indexDue, j.readBy = true, now.Add(aheadReadMost+aheadAskMost)
		return
	}
	j.ask(now)
}

// journalRef says that an entry of the journal is about a row of the input.
type journalRef struct{ entry, row uint64 }

// journalIndex says where the replies are that earlier terms have kept.
type journalIndex struct {
	entries []journalRef
	err     error
}

// askIndex has the headers of the entries before the marker read, once the marker is there.
func (j *journal) askIndex(ctx context.Context) {
	if !j.indexDue {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, aheadReadMost)
	j.indexDue, j.stop, j.indexed = false, cancel, make(chan journalIndex, 1)
	to, created := j.marker, j.c.inputCreated.Format(time.RFC3339Nano)
	if to == 0 {
		to = math.MaxUint64
	}
	go func() {
		var read journalIndex
		for wait := range streams.Retry(ctx, storeRetryFirst, streams.RequestTimeout) {
			read.entries = read.entries[:0]
			read.err = j.c.eachHeader(ctx, j.c.cfg.JournalStream, j.subject, 1, to, func(at uint64, h nats.Header) error {
				row, err := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
				if err == nil && h.Get(headerRequestHash) != "" && h.Get(streams.HeaderItem) == "" && h.Get(streams.HeaderSourceStream) == j.c.cfg.InputStream && h.Get(headerInputCreated) == created {
					read.entries = append(read.entries, journalRef{entry: at, row: row})
				}
				return nil
			})
			if read.err == nil || wait > streams.RequestTimeout/2 {
				break
			}
		}
		j.indexed <- read
	}()
}

// readIndex takes what askIndex has read. Of a row with several entries the last one
// counts.
func (j *journal) readIndex(read journalIndex) {
	if !j.reading {
		return
	}
	j.index = make(map[uint64]uint64, len(read.entries))
	var before []journalRef
	for _, e := range read.entries {
		j.last = max(j.last, e.entry)
		if !j.rows.finished(e.row) {
			j.index[e.row] = e.entry
			before = append(before, e)
		}
	}
	j.live = append(before, j.live...)
	j.c.at("journal read")
	if read.err != nil {
		j.giveUp(read.err.Error())
		return
	}
	j.readDone()
}

// take returns where the reply to a row is, once; 0 means nowhere.
func (j *journal) take(row uint64) (entry uint64) {
	entry = j.index[row]
	delete(j.index, row)
	return entry
}

func (j *journal) ask(now time.Time) {
	j.readAgain, j.readBy = time.Time{}, now.Add(streams.RequestTimeout)
	body, err := json.Marshal(struct {
		Seq      uint64 `json:"seq"`
		NextFor  string `json:"next_by_subj"`
		Batch    int    `json:"batch"`
		MaxBytes int    `json:"max_bytes"`
	}{j.readNext, j.subject, journalReadBatch, journalReadBytes})
	if err == nil {
		err = j.send("g", &nats.Msg{Subject: streams.APIPrefix(j.c.nc) + "DIRECT.GET." + j.c.cfg.JournalStream, Data: body})
	}
	if err != nil {
		j.giveUp(err.Error())
	}
}

// read handles one answer to a request for entries: an entry, the end of the request, or
// none.
func (j *journal) read(m *nats.Msg, now time.Time) {
	if !j.reading {
		return
	}
	if entry, err := strconv.ParseUint(streams.Added(m.Header, jetstream.SequenceHeader), 10, 64); err == nil {
		j.readEntry(entry, m, now)
		return
	}
	switch status, why := streams.StatusOf(m); status {
	case "": // a message whose headers are none, which no stage has written
	case "204": // end of the batch
		if last, err := strconv.ParseUint(m.Header.Get("Nats-Last-Sequence"), 10, 64); err == nil {
			j.readNext = max(j.readNext, last+1)
		}
		if m.Header.Get("Nats-Num-Pending") != "0" {
			j.ask(now)
			return
		}
		j.readEnd(now)
	case "404": // no entry at or after the sequence
		j.readEnd(now)
	case "503":
		j.giveUp("stream " + j.c.cfg.JournalStream + " does not exist, has no leader, or does not allow direct gets")
	default:
		j.giveUp("read: " + why)
	}
}

func (j *journal) readEntry(entry uint64, m *nats.Msg, now time.Time) {
	if j.marker > 0 && entry >= j.marker { // above: another owner has purged the marker, and it may be its entry
		j.c.at("journal read")
		j.readDone()
		return
	}
	j.readBy, j.readNext, j.last = now.Add(streams.RequestTimeout), entry+1, max(j.last, entry)
	seq, index, k, err := j.c.parseEntry(m.Header, m.Data)
	if err != nil || j.rows.finished(seq) {
		return
	}
	if j.keptOf(seq, index) == nil {
		j.keptBytes += int64(len(m.Data))
	}
	if j.keptBytes > j.c.cfg.WindowBytes {
		j.giveUp("more replies are kept than the window has room for")
		return
	}
	if index == wholeRow {
		j.kept[seq] = k
	} else {
		if j.keptItems[seq] == nil {
			j.keptItems[seq] = make(map[int]*Kept)
		}
		if j.keptItems[seq][index] == nil {
			j.openItems++
		}
		j.keptItems[seq][index] = k
	}
	j.live = append(j.live, journalRef{entry: entry, row: seq})
}

// keptOf returns what an earlier term has kept of a row, or of one of its elements, or nil.
func (j *journal) keptOf(seq uint64, index int) *Kept {
	if index == wholeRow {
		return j.kept[seq]
	}
	return j.keptItems[seq][index]
}

// readEnd is reached when nothing is pending: all is read, or the replica that answered
// does not have the marker yet.
func (j *journal) readEnd(now time.Time) {
	if j.marker == 0 || j.readNext > j.marker || now.After(j.lagUntil) && !j.lagUntil.IsZero() {
		j.readDone()
		return
	}
	if j.lagUntil.IsZero() {
		j.lagUntil = now.Add(20 * journalLag)
	}
	j.readAgain = now.Add(journalLag)
}

// readStep retries where a replica lags, and gives up on answers that don't arrive.
func (j *journal) readStep(now time.Time) {
	switch {
	case !j.readAgain.IsZero() && !now.Before(j.readAgain):
		j.ask(now)
	case !now.Before(j.readBy):
		j.giveUp("no answer")
	}
}

// giveUp continues with what has been read.
func (j *journal) giveUp(why string) {
	j.setProblem(why)
	j.readDone()
}

func (j *journal) readDone() { j.reading, j.knownTo = false, j.last }

// eachHeader calls f with the headers of each message on a subject, from one sequence of
// a stream to another. Bodies are not read.
func (c *Consumer) eachHeader(ctx context.Context, stream, subject string, from, to uint64, f func(at uint64, h nats.Header) error) error {
	asking, cancel := context.WithTimeout(ctx, aheadAskMost)
	defer cancel()
	reading, err := streams.Read(asking, c.js, stream, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		HeadersOnly: true, InactiveThreshold: streams.RequestTimeout,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, c.denied(err))
	}
	defer reading.Close()
	for m, err := range reading.All(ctx) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, c.denied(err))
		}
		if m.Sequence > to {
			return nil
		}
		if err := f(m.Sequence, m.Header); err != nil {
			return err
		}
	}
	return nil
}
