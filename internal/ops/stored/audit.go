package stored

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// AuditMessage is one message of the audit stream.
type AuditMessage struct {
	Sequence uint64    // in the audit stream
	Stored   time.Time // by the server's clock
	// Original is the sequence of the event that this message stands for. It is its own,
	// unless the message is what an erasure has left of an event.
	Original uint64
	Header   nats.Header
	Raw      []byte
	Event    *auditlog.Event // or nil if it is no event of this version
}

// AuditSubject is where the events of the stage of one kind are, in all partitions.
func AuditSubject(cfg *config.Config, kind auditlog.Kind) string {
	return cfg.Audit.Subject + "." + cfg.Name + ".*." + string(kind)
}

// ReadAudit calls f with the events of the stage, in the order of the stream, as stored
// and decoded. Only events of kinds are read, or all if that is empty. It reads the part of
// the stream that o selects, and sets Stream and Filters of o. A message that is no event
// of this version has a nil event. An error of f ends the reading and is returned.
func ReadAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o ReadOptions, kinds []auditlog.Kind, f func(raw []byte, e *auditlog.Event) error) error {
	return EachAudit(ctx, js, cfg, o, kinds, func(m AuditMessage) error { return f(m.Raw, m.Event) })
}

// EachAudit is [ReadAudit] with where each event is, and when it was stored.
func EachAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o ReadOptions, kinds []auditlog.Kind, f func(AuditMessage) error) error {
	o.Stream, o.Filters = cfg.Audit.Stream, nil
	for _, kind := range kinds {
		o.Filters = append(o.Filters, AuditSubject(cfg, kind))
	}
	if len(kinds) == 0 {
		o.Filters = []string{cfg.Audit.Subject + "." + cfg.Name + ".>"}
	}
	return Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error { return f(auditMessage(m)) })
}

// FindAudit calls f with the call and row events of one row of the input, in the order of
// the stream. It reads the ids of the events in the part of the stream that o selects, and
// the bodies of the row's own events alone: other bodies may hold megabytes. Before that it
// calls passed with the time at which each event was stored, also for events of other rows.
// The error of either function ends the reading and is returned.
func FindAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o ReadOptions, row uint64, passed func(time.Time) error, f func(AuditMessage) error) error {
	return FindAuditOf(ctx, js, cfg, o, func(from, to uint64) bool { return from <= row && row <= to }, passed, f)
}

// FindAuditOf is [FindAudit] for several rows. anyOf reports whether it looks for a row
// between two sequences, both included.
func FindAuditOf(
	ctx context.Context, js jetstream.JetStream, cfg *config.Config, o ReadOptions, anyOf func(from, to uint64) bool,
	passed func(time.Time) error, f func(AuditMessage) error,
) error {
	o.Stream, o.HeadersOnly = cfg.Audit.Stream, true
	o.Filters = []string{AuditSubject(cfg, auditlog.KindCall), AuditSubject(cfg, auditlog.KindRow)}
	return Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		if err := passed(m.Time); err != nil || !mayBeOf(m.Header, anyOf) {
			return err
		}
		whole, err := streams.MessageAt(ctx, js.Conn(), o.Stream, m.Sequence)
		if err != nil || whole == nil { // a message that was removed meanwhile is nil
			return err
		}
		return f(auditMessage(whole))
	})
}

// mayBeOf reports whether a call or row event may be of one of the rows, by its headers.
// With this most events need no decoding, or not even their bodies. The id, as
// [auditlog.MsgID] makes it, has as its fourth part the row's sequence, for an element
// followed by "#" and its index. The call of several rows has their range in a header. An
// event without an id must be looked at.
func mayBeOf(h nats.Header, anyOf func(from, to uint64) bool) bool {
	id := h.Get(jetstream.MsgIDHeader)
	if id == "" {
		return true
	}
	if low, high, several := strings.Cut(h.Get(streams.HeaderRows), "-"); several {
		from, err := strconv.ParseUint(low, 10, 64)
		to, errTo := strconv.ParseUint(high, 10, 64)
		return err != nil || errTo != nil || anyOf(from, to)
	}
	parts := strings.Split(id, "/")
	if len(parts) < 7 { // of a batched request: it is for no row
		return false
	}
	seq, err := strconv.ParseUint(auditlog.RowStateID(parts[3]), 10, 64)
	return err == nil && anyOf(seq, seq)
}

// auditMessage decodes a message.
func auditMessage(m *jetstream.RawStreamMsg) AuditMessage {
	e, err := auditlog.Decode(m.Data)
	if err != nil {
		e = nil
	}
	return AuditMessage{Sequence: m.Sequence, Original: Original(m), Stored: m.Time, Header: m.Header, Raw: m.Data, Event: e}
}

// Original returns [AuditMessage.Original] of a message of the audit.
func Original(m *jetstream.RawStreamMsg) uint64 {
	if len(m.Header[streams.HeaderErasedSeq]) == 0 { // nearly always
		return m.Sequence
	}
	seq, err := strconv.ParseUint(m.Header.Get(streams.HeaderErasedSeq), 10, 64)
	if err != nil {
		return m.Sequence
	}
	return seq
}
