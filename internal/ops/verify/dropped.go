package verify

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// anchor is where the log of a partition goes on behind results that its owner has dropped
// for their age, by the owner's record.
type anchor struct {
	*streams.Dropped

	chain proof.Hash
	// left counts the results before the anchor that are still stored, because the purge
	// was interrupted half-way. They are not checked.
	left uint64
}

// drops are the records of dropped results.
type drops struct {
	anchors map[int]*anchor // by partition of the stage; where results were dropped
	// recorded has the records whose results are not purged yet. The log must lead to them.
	recorded map[int]*anchor
}

// droppedResults is what was dropped of a partition.
type droppedResults struct {
	Results  uint64    `json:"results"`
	Row      uint64    `json:"row"`      // of the last of them
	Sequence uint64    `json:"sequence"` // of the last of them, in the results stream
	At       time.Time `json:"at"`       // when
}

// readDropped reads which results were dropped for their age, and subtracts them from the
// stream's loss: they are explained. It does so for the other stages of the stream as well,
// since the server counts what is gone for the whole stream only.
func readDropped(ctx context.Context, s *store, report *Report, bounds []logBound, lost *streamLoss) (drops, error) {
	d := drops{anchors: make(map[int]*anchor), recorded: make(map[int]*anchor)}
	records := make(map[string][]*anchor)
	o := stored.ReadOptions{Stream: s.cfg.Result.Stream, Filters: []string{streams.DroppedSubject(s.cfg.Result.Subject, "*", "*")}}
	err := stored.Each(ctx, s.js, o, func(m *jetstream.RawStreamMsg) error {
		a := &anchor{Dropped: new(streams.Dropped)}
		err := json.Unmarshal(m.Data, a.Dropped)
		if err == nil {
			a.chain, err = proof.ParseHash(a.Chain)
		}
		if name, number := ofDropped(m.Subject); err != nil {
			if name == s.cfg.Name {
				report.violate(violationChain, number, 0,
					"message %d of the results stream, on %s, is no record of dropped "+
						"results: %v",
					m.Sequence, m.Subject, err)
			}
			return nil
		}
		records[m.Subject] = append(records[m.Subject], a)
		return nil
	})
	if err != nil {
		return d, err
	}
	gone := uint64(0)
	for subject, of := range records {
		if name, number := ofDropped(subject); name == s.cfg.Name && (number < 0 || number >= len(bounds) || of[len(of)-1].Sequence >= bounds[number].at) {
			last := of[len(of)-1] // an owner keeps the end of the log
			report.violate(violationChain, number, last.Row,
				"the record of dropped results on %s is of message %d of the results stream, "+
					"and the log does not go on behind it: its end is gone, or no owner has "+
					"dropped them",
				subject, last.Sequence)
			continue
		}
		n, err := d.add(ctx, s, subject, of)
		if err != nil {
			return d, err
		}
		gone += n
	}
	lost.explainMany(gone)
	return d, nil
}

// ofDropped returns the stage and the partition that the subject of a record names.
func ofDropped(subject string) (name string, partition int) {
	parts := strings.Split(subject, ".")
	partition, err := strconv.Atoi(parts[len(parts)-1])
	if err != nil {
		partition = -1
	}
	return parts[len(parts)-3], partition
}

// add takes the records of one partition, which may be of another stage, and
// returns how many messages are gone by them. The owner purges results, then claims, then
// the records before its last one, so a kill leaves some of these.
func (d *drops) add(ctx context.Context, s *store, subject string, records []*anchor) (gone uint64, err error) {
	name, number := ofDropped(subject)
	log := s.cfg.Result.Subject + "." + name + "." + strconv.Itoa(number)
	last := records[len(records)-1]
	left, err := s.countUpTo(ctx, log+".rows", last.Sequence)
	if err != nil {
		return 0, err
	}
	claims, err := s.countUpTo(ctx, log+".claim", max(1, last.ClaimsBelow)-1)
	if err != nil {
		return 0, err
	}
	gone = last.Results + last.Claims + last.Records
	gone -= min(gone, left+claims+uint64(len(records)))
	if name != s.cfg.Name {
		return gone, nil
	}
	before := uint64(0)
	if len(records) > 1 {
		before = records[len(records)-2].Results
	}
	switch {
	case left > 0 && left == last.Results-before:
		d.recorded[number] = last
		if len(records) > 1 {
			d.anchors[number] = records[len(records)-2]
		}
	default:
		last.left = left
		d.anchors[number] = last
	}
	return gone, nil
}

// beginAt has the log begin at an anchor: as if the last owner before it had claimed there.
func (v *logVerifier) beginAt(a *anchor) {
	i := slices.IndexFunc(v.claims, func(c stored.Claim) bool { return c.At > a.Sequence })
	if i < 0 {
		i = len(v.claims)
	}
	if i == 0 { // the claim that every drop keeps is gone
		return
	}
	c := v.claims[i-1]
	c.At, c.Mark, c.Header, c.Body = a.Sequence, a.Low, nil, nil
	c.Progress = stored.Progress{Named: c.Progress.Named, Low: a.Low, Ahead: uint64(max(0, a.Ahead)), From: 1} //nolint:gosec // not negative
	v.claims = append([]stored.Claim{c}, v.claims[i:]...)
	v.anchor, v.resultsGone, v.chain.on = a, true, true
	v.stats.Dropped = &droppedResults{Results: a.Results, Row: a.Row, Sequence: a.Sequence, At: a.At}
	if a.left > 0 {
		v.report.note("partition %d: %d results up to row %d are still there, whose removal was "+
			"interrupted: they were not checked",
			v.stats.Partition, a.left, a.Row)
	}
}
