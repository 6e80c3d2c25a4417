package verify

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// streamLoss is what a stream no longer holds, by its own counters, and which of that its
// settings can have removed. By age or by a limit a stream loses only its beginning;
// anything else was removed by a person or by acks.
type streamLoss struct {
	info    *jetstream.StreamInfo // nil means that the stream does not exist
	front   uint64                // messages that are gone from its beginning
	inside  int                   // messages that are gone after its first one
	oldest  time.Time             // when its first message was stored
	gone    time.Time             // messages stored from then on are all there; zero if all are
	expired time.Time             // messages stored before then can have expired; zero if none can

	// recreated is set when the stream is younger than the results that its messages were
	// stored before: an earlier stream of its name was deleted, perhaps while a process
	// was running, with all that it held.
	recreated bool
}

// forever is later than every message.
var forever = time.Unix(math.MaxInt32, 0)

// fullPercent is how full, at least, a stream is that drops its oldest messages: it drops
// no more than the next one needs.
const fullPercent = 90

// lossOf returns the loss of a stream, from its state. A nil state means that the stream no
// longer exists.
func lossOf(info *jetstream.StreamInfo) streamLoss {
	if info == nil {
		return streamLoss{gone: forever}
	}
	cfg, state := &info.Config, &info.State
	l := streamLoss{info: info, inside: state.NumDeleted}
	if first := max(1, cfg.FirstSeq); state.FirstSeq > first {
		l.front = state.FirstSeq - first
	}
	l.oldest = state.FirstTime
	if state.Msgs == 0 {
		l.oldest = forever
	}
	if cfg.MaxAge > 0 {
		l.expired = info.TimeStamp.Add(-cfg.MaxAge)
	}
	if isFull(info) {
		l.expired = later(l.expired, l.oldest)
	}
	if !l.expired.IsZero() {
		l.expired = l.expired.Add(auditSlack) // events go before their result, and some while the others are read
	}
	l.gone = l.goneOf(l.inside > 0)
	return l
}

// goneOf returns [streamLoss.gone]; inside says whether messages may be missing after the
// first one.
func (l *streamLoss) goneOf(inside bool) time.Time {
	switch {
	case inside:
		return forever
	case l.front > 0:
		return later(l.oldest, l.expired)
	}
	return time.Time{}
}

// goneByItself is [streamLoss.gone] without what only a person can have removed: single
// messages after the first one, where no setting of the stream removes such.
func (l *streamLoss) goneByItself() time.Time {
	if l.info == nil {
		return l.gone
	}
	cfg := &l.info.Config
	return l.goneOf(l.inside > 0 && (cfg.Retention != jetstream.LimitsPolicy || cfg.MaxMsgsPerSubject > 0 || cfg.AllowMsgTTL))
}

// isFull reports whether the stream drops its oldest messages now.
func isFull(info *jetstream.StreamInfo) bool {
	cfg, state := &info.Config, &info.State
	return cfg.Discard == jetstream.DiscardOld && (cfg.MaxMsgs > 0 && state.Msgs >= uint64(cfg.MaxMsgs) ||
		cfg.MaxBytes > 0 && state.Bytes >= uint64(cfg.MaxBytes)/100*fullPercent)
}

// explainOne takes a message out of the loss whose contents are known all the same: a
// tombstone, or a copy, stands for it. The caller then works out [streamLoss.gone] again.
func (l *streamLoss) explainOne(at uint64, gone *deletions) error {
	if l.info == nil {
		return nil
	}
	if at < l.info.State.FirstSeq {
		l.front -= min(l.front, 1)
		return nil
	}
	deleted, err := gone.has(at)
	if deleted {
		l.inside = max(0, l.inside-1)
	}
	return err
}

// any reports whether anything is gone.
func (l *streamLoss) any() bool { return !l.gone.IsZero() || l.recreated }

// removed reports whether the stream lacks its beginning and that can't have expired.
func (l *streamLoss) removed() bool { return (l.front > 0 || l.recreated) && !l.canExpire() }

// canExpire reports whether anything that the stream ever held can have expired by now.
func (l *streamLoss) canExpire() bool { return l.info != nil && l.expired.After(l.info.Created) }

// cause explains, from the stream's settings, why messages are gone.
func (l *streamLoss) cause() string {
	cfg := &l.info.Config
	var all []string
	if cfg.Retention != jetstream.LimitsPolicy {
		all = append(all, "its retention, "+strings.ToLower(cfg.Retention.String())+", deletes what is acked")
	}
	if cfg.MaxMsgsPerSubject > 0 {
		all = append(all, fmt.Sprintf("it keeps only %d messages a subject", cfg.MaxMsgsPerSubject))
	}
	if cfg.AllowMsgTTL {
		all = append(all, "its messages may have their own TTL")
	}
	if l.front > 0 && l.canExpire() {
		if cfg.MaxAge > 0 {
			all = append(all, fmt.Sprintf("its max age is %v", cfg.MaxAge))
		}
		if isFull(l.info) {
			all = append(all, "it is full and drops the oldest")
		}
	}
	if len(all) > 0 {
		return strings.Join(all, ", ")
	}
	if cfg.MaxAge > 0 && !l.canExpire() {
		return fmt.Sprintf("with a max age of %v and created %v ago none can have expired, so they were purged or deleted", cfg.MaxAge,
			l.info.TimeStamp.Sub(l.info.Created).Round(time.Second))
	}
	return "none of its settings removes them, so they were purged or deleted"
}

// auditOf returns from when on the audit of a partition is complete; zero means all of it
// is. gone is the loss of the stream. If the start of the process that made the first claim is in the audit, no event
// before that was about the partition.
func (v *verification) auditOf(p *partitionVerifier, gone time.Time) time.Time {
	l := &v.auditLoss
	whole := len(p.claims) > 0 && p.claims[0].Mark == 0 // the log is, from its beginning on
	switch began := v.logBegan(p, whole); {
	case l.info != nil && !began.IsZero() && began.Before(l.info.Created):
		l.recreated = true
		return later(gone, l.info.Created)
	case whole && gone.Before(forever) && l.front > 0 && v.runs.started(p.claims[0].Owner):
		return time.Time{}
	}
	return gone
}

// logBegan returns when the log of a partition began, or a time before then where its
// beginning is gone; zero means that there is no log.
func (v *verification) logBegan(p *partitionVerifier, whole bool) time.Time {
	switch {
	case whole:
		return p.claims[0].Stored
	case p.logEnd > 0 && v.resultsLoss.info != nil:
		return v.resultsLoss.info.State.FirstTime
	}
	return time.Time{}
}

// explain reports the losses of the streams that no single row shows.
func (v *verification) explain() {
	r, in := &v.resultsLoss, &v.inputLoss
	var incomplete, without bool
	for _, p := range v.parts {
		incomplete = incomplete || p.logEnd > 0 && !p.auditGone.IsZero()
		without = without || p.stats.ByAudit > 0 || p.stats.Unknown > 0
		if p.logEnd == 0 && r.any() {
			v.report.cannot("partition %d: stream %s holds nothing of it, and messages of the stream are "+
				"gone: %s",
				p.stats.Partition, r.info.Config.Name, r.cause())
		}
		if p.purged && p.anchor == nil {
			v.report.cannot("partition %d: the results begin in the middle, after row %d; earlier ones, of %d rows that the other streams still have, are gone from stream %s: %s",
				p.stats.Partition, p.base, p.stats.ResultsGone, r.info.Config.Name, r.cause())
		}
	}
	if r.inside > 0 {
		v.report.cannot("stream %s lacks %d messages after its first one, which may have been results of rows of which nothing else has a record: %s",
			r.info.Config.Name, r.inside, r.cause())
	}
	if in.any() && in.info != nil && without {
		v.report.note("stream %s lacks %d messages at its beginning and %d after its first one: %s",
			in.info.Config.Name, in.front, in.inside, in.cause())
	}
	a := &v.auditLoss
	if a.info == nil || !incomplete {
		return
	}
	switch name := a.info.Config.Name; {
	case a.inside > 0:
		v.report.cannot("stream %s lacks %d messages after its first one: %s", name, a.inside, a.cause())
	case a.front == 0 && !a.recreated: // all that is missing was erased
	case a.front == 0 && !a.canExpire():
		v.report.cannot("stream %s was created at %s, after the first results: what an earlier one held "+
			"is gone",
			name, a.info.Created.Format(time.RFC3339))
	case a.recreated && !a.canExpire():
		v.report.cannot("stream %s was created at %s, after the first results: what an earlier one held "+
			"is gone, and so are its own first %d messages",
			name, a.info.Created.Format(time.RFC3339), a.front)
	case !a.canExpire() && a.info.State.Msgs == 0:
		v.report.cannot("all %d messages of stream %s are gone: %s", a.front, name, a.cause())
	case !a.canExpire():
		v.report.cannot("the first %d messages of stream %s are gone: %s", a.front, name, a.cause())
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
