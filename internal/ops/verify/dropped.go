package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// anchor is where the log of a partition goes on behind results that its owner has dropped
// for their age, by the owner's record.
type anchor struct {
	*streams.Dropped

	chain proof.Hash
	// left counts the results up to there that are still there: the purge was interrupted
	// half-way, and they are not checked.
	left uint64
}

// drops are the records of dropped results.
type drops struct {
	anchors map[int]*anchor // by partition of the stage; where results were dropped
	// recorded has records by which nothing is purged yet: the log must lead to them.
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
func (v *verification) readDropped(ctx context.Context, bounds []logBound) error {
	v.drops = drops{anchors: make(map[int]*anchor), recorded: make(map[int]*anchor)}
	r, err := stored.Open(ctx, v.js, stored.ReadOptions{Stream: v.cfg.Result.Stream, Filters: []string{streams.DroppedSubject(v.cfg.Result.Subject, "*", "*")}})
	if err != nil {
		return err
	}
	defer r.Close()
	records := make(map[string][]*anchor)
	for {
		m, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		a := &anchor{Dropped: new(streams.Dropped)}
		if err = json.Unmarshal(m.Data, a.Dropped); err == nil {
			a.chain, err = proof.ParseHash(a.Chain)
		}
		if name, number := ofDropped(m.Subject); err != nil {
			if name == v.cfg.Name {
				v.report.violate(violationChain, number, 0,
					"message %d of the results stream, on %s, is no record of dropped "+
						"results: %v",
					m.Sequence, m.Subject, err)
			}
			continue
		}
		records[m.Subject] = append(records[m.Subject], a)
	}
	gone := uint64(0)
	for subject, of := range records {
		if name, number := ofDropped(subject); name == v.cfg.Name && (number < 0 || number >= len(bounds) || of[len(of)-1].Sequence >= bounds[number].at) {
			last := of[len(of)-1] // an owner keeps the end of the log
			v.report.violate(violationChain, number, last.Row,
				"the record of dropped results on %s is of message %d of the results stream, "+
					"and the log does not go on behind it: its end is gone, or no owner has "+
					"dropped them",
				subject, last.Sequence)
			continue
		}
		n, err := v.addDropped(ctx, subject, of)
		if err != nil {
			return err
		}
		gone += n
	}
	l := &v.resultsLoss
	unexplained := l.front + uint64(l.inside) //nolint:gosec // a count
	unexplained -= min(unexplained, gone)
	l.inside = min(l.inside, int(unexplained))       //nolint:gosec // a count
	l.front = unexplained - uint64(max(0, l.inside)) //nolint:gosec // a count
	l.gone = l.goneOf(l.inside > 0)
	return nil
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

// addDropped takes the records of one partition, which may be of another stage, and
// returns how many messages are gone by them. The owner purges results, then claims, then
// the records before its last one, so a kill leaves some of these.
func (v *verification) addDropped(ctx context.Context, subject string, records []*anchor) (gone uint64, err error) {
	name, number := ofDropped(subject)
	log := v.cfg.Result.Subject + "." + name + "." + strconv.Itoa(number)
	last := records[len(records)-1]
	left, err := v.countUpTo(ctx, log+".rows", last.Sequence)
	if err != nil {
		return 0, err
	}
	claims, err := v.countUpTo(ctx, log+".claim", max(1, last.ClaimsBelow)-1)
	if err != nil {
		return 0, err
	}
	gone = last.Results + last.Claims + last.Records
	gone -= min(gone, left+claims+uint64(len(records)))
	if name != v.cfg.Name {
		return gone, nil
	}
	before := uint64(0)
	if len(records) > 1 {
		before = records[len(records)-2].Results
	}
	switch {
	case left > 0 && left == last.Results-before:
		v.drops.recorded[number] = last
		if len(records) > 1 {
			v.drops.anchors[number] = records[len(records)-2]
		}
	default:
		last.left = left
		v.drops.anchors[number] = last
	}
	return gone, nil
}

// countUpTo counts the messages of the results stream on a subject, up to a place.
func (v *verification) countUpTo(ctx context.Context, subject string, until uint64) (n uint64, err error) {
	first, err := streams.NextSequence(ctx, v.js.Conn(), v.cfg.Result.Stream, subject, 1)
	if err != nil || first == 0 || first > until {
		return 0, err
	}
	r, err := stored.OpenReader(ctx, v.js, v.cfg.Result.Stream, subject, until, true)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return n, err
		}
		n++
	}
}

// beginAt has the log begin at an anchor: as if the last owner before it had claimed there.
func (v *partitionVerifier) beginAt(a *anchor) {
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

// firsts says where the logs and the records of dropped results begin. [RunWith] compares
// it before and after a check. If it has changed, an owner has dropped results meanwhile:
// records that were read before the drop do not fit a log that was read after it.
func (v *verification) firsts(ctx context.Context) (text string, err error) {
	subjects := []string{streams.DroppedSubject(v.cfg.Result.Subject, v.cfg.Name, "*")}
	for p := range v.cfg.Streams.Partitions {
		subjects = append(subjects, stored.LogSubject(v.cfg, p, "rows"), stored.LogSubject(v.cfg, p, ">"))
	}
	for _, subject := range subjects {
		at, err := streams.NextSequence(ctx, v.js.Conn(), v.cfg.Result.Stream, subject, 1)
		if err != nil {
			return "", fmt.Errorf("look where the results begin: %w", err)
		}
		text += strconv.FormatUint(at, 10) + " "
	}
	return text, nil
}
