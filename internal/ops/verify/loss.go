package verify

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// streamLoss is what a stream no longer holds, by its own counters, and how much of that
// its settings can have removed. By age or by a limit a stream loses only its beginning.
// Anything else was removed by a person or by acks.
type streamLoss struct {
	info   *jetstream.StreamInfo // nil means that the stream does not exist
	front  uint64                // messages that are gone from its beginning
	inside int                   // messages that are gone after its first one
	oldest time.Time             // when its first message was stored
	gone   time.Time             // messages stored from then on are all there, or zero if all are
	// expired is the time before which messages were stored that can have expired, or zero
	// if none can.
	expired time.Time

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
		// Events go before their result, and some while the others are read.
		l.expired = l.expired.Add(auditSlack)
	}
	l.gone = l.goneOf(l.inside > 0)
	return l
}

// goneOf returns [streamLoss.gone]. inside says whether messages may be missing after the
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

// explain takes messages out of the loss that a tombstone or a copy stands for, so that
// their contents are known all the same. A message that is still there does not count.
func (l *streamLoss) explain(places []uint64, deleted *deletions) error {
	if l.info == nil {
		return nil
	}
	for _, at := range places {
		if at < l.info.State.FirstSeq {
			l.front -= min(l.front, 1)
			continue
		}
		gone, err := deleted.has(at)
		if err != nil {
			return err
		}
		if gone {
			l.inside = max(0, l.inside-1)
		}
	}
	l.gone = l.goneOf(l.inside > 0)
	return nil
}

// explainMany takes so many messages out of the loss, of which only their number is known.
func (l *streamLoss) explainMany(n uint64) {
	unexplained := l.front + uint64(l.inside) //nolint:gosec // a count
	unexplained -= min(unexplained, n)
	l.inside = min(l.inside, int(unexplained))       //nolint:gosec // a count
	l.front = unexplained - uint64(max(0, l.inside)) //nolint:gosec // a count
	l.gone = l.goneOf(l.inside > 0)
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

// losses is what the three streams had lost when the check began. What is known all the same,
// by a tombstone, a copy or a record of dropped results, does not count.
type losses struct{ input, results, audit streamLoss }

// gapOf returns which events of a partition may be missing from the audit.
func (all *losses) gapOf(log *logVerifier, runs *runVerifier) auditGap {
	return auditGap{
		until:    all.auditGone(log, runs, all.audit.gone),
		byItself: all.auditGone(log, runs, all.audit.goneByItself()),
		expired:  all.audit.expired,
	}
}

// auditGone returns the time from which on the audit of a partition is complete, or zero
// if all of it is there. gone is the same for the whole stream. If the start of the
// process that made the first claim is in the audit, no event before that was about the
// partition.
func (all *losses) auditGone(log *logVerifier, runs *runVerifier, gone time.Time) time.Time {
	l := &all.audit
	whole := len(log.claims) > 0 && log.claims[0].Mark == 0 // the log is, from its beginning on
	switch began := all.logBegan(log, whole); {
	case l.info != nil && !began.IsZero() && began.Before(l.info.Created):
		l.recreated = true
		return later(gone, l.info.Created)
	case whole && gone.Before(forever) && l.front > 0 && runs.started(log.claims[0].Owner):
		return time.Time{}
	}
	return gone
}

// logBegan returns when the log of a partition began, or a time before that if its
// beginning is gone. It is zero if there is no log.
func (all *losses) logBegan(log *logVerifier, whole bool) time.Time {
	switch {
	case whole:
		return log.claims[0].Stored
	case log.logEnd > 0 && all.results.info != nil:
		return all.results.info.State.FirstTime
	}
	return time.Time{}
}

// explain reports the losses of the streams that no single row shows.
func (all *losses) explain(parts []*partitionVerifier, report *Report) {
	r, in := &all.results, &all.input
	var incomplete, without bool
	for _, p := range parts {
		incomplete = incomplete || p.log.logEnd > 0 && !p.audit.gap.until.IsZero()
		without = without || p.stats.ByAudit > 0 || p.stats.Unknown > 0
		if p.log.logEnd == 0 && r.any() {
			report.cannot("partition %d: stream %s holds nothing of it, and messages of the stream are "+
				"gone: %s",
				p.stats.Partition, r.info.Config.Name, r.cause())
		}
		if p.log.purged && p.log.anchor == nil {
			report.cannot("partition %d: the results begin in the middle, after row %d; earlier ones, of %d rows that the other streams still have, are gone from stream %s: %s",
				p.stats.Partition, p.log.base, p.stats.ResultsGone, r.info.Config.Name, r.cause())
		}
	}
	if r.inside > 0 {
		report.cannot("stream %s lacks %d messages after its first one, which may have been results of rows of which nothing else has a record: %s",
			r.info.Config.Name, r.inside, r.cause())
	}
	if in.any() && in.info != nil && without {
		report.note("stream %s lacks %d messages at its beginning and %d after its first one: %s",
			in.info.Config.Name, in.front, in.inside, in.cause())
	}
	a := &all.audit
	if a.info == nil || !incomplete {
		return
	}
	switch name := a.info.Config.Name; {
	case a.inside > 0:
		report.cannot("stream %s lacks %d messages after its first one: %s", name, a.inside, a.cause())
	case a.front == 0 && !a.recreated: // all that is missing was erased
	case a.front == 0 && !a.canExpire():
		report.cannot("stream %s was created at %s, after the first results: what an earlier one held "+
			"is gone",
			name, a.info.Created.Format(time.RFC3339))
	case a.recreated && !a.canExpire():
		report.cannot("stream %s was created at %s, after the first results: what an earlier one held "+
			"is gone, and so are its own first %d messages",
			name, a.info.Created.Format(time.RFC3339), a.front)
	case !a.canExpire() && a.info.State.Msgs == 0:
		report.cannot("all %d messages of stream %s are gone: %s", a.front, name, a.cause())
	case !a.canExpire():
		report.cannot("the first %d messages of stream %s are gone: %s", a.front, name, a.cause())
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
