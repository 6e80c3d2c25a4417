package consumer

import (
	"encoding/json"
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
		// A full journal takes no marker but may hold entries: read until nothing is pending.
		j.setProblem(err.Error())
	}
	j.marker, j.last, j.readNext = marker, max(j.last, marker), 1
	j.ask(now)
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
		err = j.send("g", &nats.Msg{Subject: jetstream.DefaultAPIPrefix + "DIRECT.GET." + j.c.cfg.JournalStream, Data: body})
	}
	if err != nil {
		j.giveUp(err.Error())
	}
}

// read handles one answer to a request for entries: an entry, the end of the request, or none.
func (j *journal) read(m *nats.Msg, now time.Time) {
	if !j.reading {
		return
	}
	status := ""
	if len(m.Data) == 0 {
		status = m.Header.Get("Status")
	}
	switch status {
	case "":
		j.readEntry(m, now)
	case "204": // end of the batch
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
		j.giveUp("read: " + m.Header.Get("Description"))
	}
}

func (j *journal) readEntry(m *nats.Msg, now time.Time) {
	entry, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return
	}
	if j.marker > 0 && entry >= j.marker { // above: another owner has purged the marker, and it may be its entry
		j.c.at("journal read")
		j.readDone()
		return
	}
	j.readBy, j.readNext, j.last = now.Add(streams.RequestTimeout), entry+1, max(j.last, entry)
	seq, k, err := j.c.parseEntry(m.Header, m.Data)
	if err != nil || j.rows.finished(seq) {
		return
	}
	if j.kept[seq] == nil {
		j.keptBytes += int64(len(m.Data))
	}
	if j.keptBytes > j.c.cfg.WindowBytes {
		j.giveUp("more replies are kept than the window has room for")
		return
	}
	j.kept[seq] = k
	j.live = append(j.live, journalRef{entry: entry, row: seq})
}

// readEnd is reached when nothing is pending: all is read, or the replica that answered does not have the marker yet.
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
