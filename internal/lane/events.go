package lane

import (
	"log/slog"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// events records what happens to batches in the audit stream and in the log. It has no
// state of its own: each batch counts the events that are not stored yet
// ([batch.unstored]), and the records of a batch stay until none is left. So the next
// term repeats what a kill has lost.
type events struct {
	cfg   *Config
	log   *slog.Logger
	owner string
	mail  *mailbox
}

// about returns the event of a change in the life of a batch.
func (es *events) about(b *batch, phase auditlog.BatchPhase, reason string) *auditlog.Batch {
	return &auditlog.Batch{
		Header: auditlog.Header{Time: time.Now(), Partition: auditlog.Partition(es.cfg.Partition)},
		Owner:  es.owner, Phase: phase, Token: b.token, BatchID: b.id, Provider: es.cfg.Provider, Model: b.model,
		Rows: len(b.state), Bytes: b.bytes, Reason: reason,
	}
}

// changed records and logs a change in the life of a batch.
func (es *events) changed(b *batch, phase auditlog.BatchPhase, reason string) {
	es.report(b, es.about(b, phase, reason))
}

// report records and logs an event.
func (es *events) report(b *batch, e *auditlog.Batch) {
	es.send(b, e, false)
	es.log.Info("batch", slog.String("phase", string(e.Phase)), slog.String("token", e.Token), slog.String("batch_id", e.BatchID),
		slog.Int("rows", e.Rows), slog.String("reason", e.Reason))
}

// send records an event. With again, an earlier term has recorded it unless it was killed
// too soon.
func (es *events) send(b *batch, e *auditlog.Batch, again bool) {
	if es.cfg.Record == nil {
		return
	}
	b.unstored++
	es.cfg.Record(e, again, func() { es.mail.put(letter{kind: letterStored, body: b}) })
}

// repeat records what earlier terms should have recorded of a batch. The record abandoned
// is the one that gave the batch up, or nil.
func (es *events) repeat(b *batch, abandoned *Record) {
	es.send(b, es.about(b, auditlog.BatchIntent, ""), true)
	switch {
	case abandoned != nil:
		es.send(b, es.about(b, auditlog.BatchAbandoned, abandoned.Reason), true)
	case b.id != "" && b.adopted:
		es.send(b, es.about(b, auditlog.BatchAdopted, ""), true)
	case b.id != "":
		es.send(b, es.about(b, auditlog.BatchSubmitted, ""), true)
	}
}
