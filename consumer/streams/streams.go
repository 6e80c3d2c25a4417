// Package streams knows the JetStream side of a stage by name: its streams, durable
// consumers, subjects and headers, which it creates, checks, reads and appends to.
//
//	cfg := streams.Config{Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", …}
//	err := streams.Ensure(ctx, nc, cfg)
//	durable, err := streams.OpenDurable(ctx, nc, streams.DurableConfig{Name: "stage", …})
//	seq, err := streams.Append(ctx, nc, msgs) // all or none
//
// It holds no state of its own: package consumer decides about rows.
package streams

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config says which streams a stage works on, and how those that are missing are created.
type Config struct {
	// Name of the stage.
	Name string
	// InputStream holds rows on InputSubject, which may contain [PartitionToken]. It may
	// be ResultStream, where the rows are the results of another stage.
	InputStream, InputSubject string
	// ResultStream captures `<ResultSubject>.>`, AuditStream `<AuditSubject>.>`.
	ResultStream, ResultSubject string
	AuditStream, AuditSubject   string
	// ResultBucket is the bucket of results that are larger than a message, or empty.
	ResultBucket string
	// DeadLetterSubject must be captured by some stream, unless it is empty.
	DeadLetterSubject string
	// Partitions is at least 1.
	Partitions int
	// Create allows the creation of missing streams. Streams that exist are checked,
	// never changed.
	Create bool
	// Replicas, Memory and the limits are for streams that are created here.
	Replicas                      int
	Memory                        bool
	AuditMaxAge                   time.Duration
	AuditMaxBytes, ResultMaxBytes int64
	// AuditDuplicates is how long the server knows the ids of audit events. The default
	// of the server, for 0, is two minutes.
	AuditDuplicates time.Duration
	// Journal says whether JournalStream is needed.
	Journal         bool
	JournalStream   string
	JournalMaxBytes int64
	// LaneStream holds the records of batches. It is empty for a stage without a batch
	// lane.
	LaneStream string
	// BatchStream holds deferred batches, see [EnsureBatches]. It is empty for a stage that
	// serves none.
	BatchStream string
}

// Ensure creates the streams that are missing and checks those that exist. Its error
// lists every problem and says what to change. A request that nobody answers, mostly for
// want of a permission, ends it after five seconds: the others would only be waited for
// in the same way.
func Ensure(ctx context.Context, nc *nats.Conn, s Config) error {
	if !elsewhere(nc) { // elsewhere, a stream names the version: see ensure
		if err := checkServer(nc.ConnectedServerVersion()); err != nil {
			return err
		}
	}
	js, err := JetStream(nc)
	if err != nil {
		return err
	}
	var looks []func() error
	for _, part := range s.parts(batchesKnown(nc)) {
		looks = append(looks, func() error { return s.ensure(ctx, js, part) })
	}
	if s.DeadLetterSubject != "" {
		looks = append(looks, func() error { return captured(ctx, js, s.DeadLetterSubject) })
	}
	var problems []error
	for _, look := range looks {
		err := look()
		problems = append(problems, err)
		if Unanswered(err) {
			break
		}
	}
	return errors.Join(problems...)
}

// part is one of the streams of a stage: how it is created, the setting of its name, and
// what may be wrong with it.
type part struct {
	want  jetstream.StreamConfig
	field Field
	check func(jetstream.StreamConfig) findings
}

// Wanted returns the streams as [Ensure] creates them, without batches of messages that are
// acknowledged together: a server before 2.14 refuses a stream that allows them.
func (s Config) Wanted() []jetstream.StreamConfig {
	var wanted []jetstream.StreamConfig
	for _, part := range s.parts(false) {
		wanted = append(wanted, part.want)
	}
	if s.BatchStream != "" {
		wanted = append(wanted, s.batchConfig())
	}
	return wanted
}

// EnsureBatches creates the stream of deferred batches if it is missing, or checks it.
// [Ensure] leaves it out, as no row depends on it.
func EnsureBatches(ctx context.Context, nc *nats.Conn, s Config) error {
	js, err := JetStream(nc)
	if err != nil {
		return err
	}
	return s.ensure(ctx, js, part{s.batchConfig(), FieldBatchStream, s.checkBatches})
}

// batchesKnown reports whether the server knows batches of messages that are acknowledged
// together.
func batchesKnown(nc *nats.Conn) bool { return serverSince(serverVersion(nc, nil), 14) }

// parts are the streams of the stage. batches is [batchesKnown] of their server.
func (s Config) parts(batches bool) []part {
	results := part{s.resultConfig(batches), FieldResultStream, s.checkResult}
	var parts []part
	if s.InputStream == s.ResultStream { // of a stage whose rows are another's results
		results.check = func(cfg jetstream.StreamConfig) findings {
			return append(s.checkResult(cfg), s.checkInput(cfg)...)
		}
	} else {
		parts = append(parts, part{s.inputConfig(batches), FieldInputStream, s.checkInput})
	}
	parts = append(parts, results, part{s.auditConfig(batches), FieldAuditStream, s.checkAudit})
	if s.Journal {
		parts = append(parts, part{s.journalConfig(), FieldJournalStream, s.checkJournal})
	}
	if s.LaneStream != "" {
		parts = append(parts, part{s.laneConfig(), FieldLaneStream, s.checkLane})
	}
	if s.ResultBucket != "" {
		parts = append(parts, part{s.bucketConfig(), FieldResultBucket, s.checkBucket})
	}
	return parts
}

// stream is what all streams of a stage have in common. None refuses to have a message
// deleted (deny_delete), which no server can undo: `stage erase` removes the bodies of
// rows, and `stage verify` reports each deletion that no tombstone of it explains.
func (s Config) stream(
	name, description string, bytesMax int64, subjects ...string,
) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name: name, Description: description, Subjects: subjects, MaxBytes: cmp.Or(bytesMax, -1),
		Replicas: s.Replicas, Discard: jetstream.DiscardNew, AllowDirect: true,
		AllowAtomicPublish: true,
	}
	if s.Memory {
		cfg.Storage = jetstream.MemoryStorage
	}
	return cfg
}

// inputConfig returns the stream of rows. Where these are another stage's results it is
// the stream that that stage would create, whichever of the two is first: one that holds
// the results alone would have no place for the claims.
func (s Config) inputConfig(batches bool) jetstream.StreamConfig {
	if prefix := resultPrefix(s.filter()); prefix != "" {
		upstream := s
		upstream.ResultStream, upstream.ResultSubject = s.InputStream, prefix
		return upstream.resultConfig(batches)
	}
	cfg := s.stream(s.InputStream, "rows for llm-stage", 0, s.filter())
	if s.Partitions > 1 {
		cfg.Subjects, cfg.SubjectTransform = partitionTransform(s.InputSubject, s.Partitions)
	}
	return cfg
}

func (s Config) resultConfig(batches bool) jetstream.StreamConfig {
	cfg := s.stream(s.ResultStream, "ordered results of llm-stage", s.ResultMaxBytes,
		s.ResultSubject+".>")
	cfg.AllowBatchPublish = batches
	return cfg
}

func (s Config) auditConfig(batches bool) jetstream.StreamConfig {
	cfg := s.stream(s.AuditStream, "audit events of llm-stage", s.AuditMaxBytes,
		s.AuditSubject+".>")
	cfg.MaxAge, cfg.Discard = s.AuditMaxAge, jetstream.DiscardOld
	cfg.Duplicates = s.AuditDuplicates
	if s.AuditMaxAge > 0 {
		cfg.Duplicates = min(cfg.Duplicates, s.AuditMaxAge)
	}
	cfg.AllowBatchPublish = batches
	return cfg
}

// journalConfig refuses newer replies when the journal is full: the older ones are nearer
// to their turn.
func (s Config) journalConfig() jetstream.StreamConfig {
	cfg := s.stream(s.JournalStream, "replies of llm-stage that wait for their turn",
		s.JournalMaxBytes, "journal.>")
	cfg.AllowAtomicPublish = false
	return cfg
}

// laneConfig has no limit of its own: what a partition records of its batches is bounded
// by how many may be open.
func (s Config) laneConfig() jetstream.StreamConfig {
	return s.stream(s.LaneStream, "records of the batches of llm-stage", 0, "lane.>")
}

const (
	// BatchKeepMax is the longest time for which the answers of a deferred batch are kept
	// after its end.
	BatchKeepMax = 7 * 24 * time.Hour
	// BatchRunMax is how long after its submission a deferred batch ends at the latest.
	BatchRunMax = 7 * 24 * time.Hour
	// batchAgeLeast is the least age at which the stream may remove messages. It removes
	// what no replica was there to remove.
	batchAgeLeast = BatchRunMax + BatchKeepMax + 24*time.Hour
	// batchBytesMax is the size of a stream of deferred batches that is created here: as
	// many as a stage may hold (1000), each with 1 MB of prompts and answers.
	batchBytesMax = 1 << 30
)

// batchConfig keeps the newest message of each subject: a batch has one subject for each
// thing that there is to know of it.
func (s Config) batchConfig() jetstream.StreamConfig {
	cfg := s.stream(s.BatchStream, "deferred batches of llm-stage", batchBytesMax, "batches.>")
	cfg.AllowAtomicPublish, cfg.MaxMsgsPerSubject, cfg.MaxAge = false, 1, batchAgeLeast
	return cfg
}

// subjectOf maps the setting of a stream's name to the setting of its subject. The
// subjects of journal, lane and deferred batches are fixed.
var subjectOf = map[Field]Field{
	FieldInputStream:  FieldInputSubject,
	FieldResultStream: FieldResultSubject,
	FieldAuditStream:  FieldAuditSubject,
}

// ensure finds or creates one stream and checks it.
func (s Config) ensure(ctx context.Context, js jetstream.JetStream, p part) error {
	want, field := p.want, p.field
	stream, err := Look(ctx, js, want.Name)
	switch {
	case err == nil:
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return NewSettingError(field, "%s: %w", field, err)
	case !s.Create && field == FieldJournalStream:
		return nil // replies are not kept, then
	case field == FieldInputStream && Overlap(s.filter(), s.ResultSubject+".*.*.rows"):
		return NewSettingError(field,
			"%s: stream %s does not exist, and %s is a subject of results: "+
				"name the stream of the stage before this one, such as %s, or start that stage first",
			field, want.Name, s.InputSubject, s.ResultStream)
	case !s.Create:
		return NewSettingError(field, "%s: stream %s does not exist: create it, or set %s=true",
			field, want.Name, FieldCreate)
	default:
		if stream, err = s.create(ctx, js, want, field); err != nil {
			return err
		}
	}
	if err := checkServer(serverVersion(js.Conn(), stream.CachedInfo())); err != nil {
		return err
	}
	if wrong := p.check(stream.CachedInfo().Config); len(wrong) > 0 {
		return NewSettingError(field, "%s: stream %s: %w", field, want.Name, wrong)
	}
	return nil
}

// create creates one stream, without fast batches where the server refuses them. A server
// without a leader refuses everything, and the stream would lack them for good if there is
// one by the second attempt.
func (s Config) create(
	ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, field Field,
) (stream jetstream.Stream, err error) {
	stream, err = Create(ctx, js, want)
	refused, ok := errors.AsType[*jetstream.APIError](err)
	if ok && want.AllowBatchPublish && refused.ErrorCode != codeNoQuorum {
		want.AllowBatchPublish = false
		stream, err = Create(ctx, js, want)
		refused, ok = errors.AsType[*jetstream.APIError](err)
	}
	if ok && refused.ErrorCode == jetstream.JSErrCodeStreamNameInUse {
		return Look(ctx, js, want.Name) // another process, or stage, was first, with other limits
	}
	if errors.Is(err, ErrSubjectTaken) {
		if subject, has := subjectOf[field]; has {
			return nil, NewSettingError(field,
				"%s: %w: set %s to that stream if it is meant, else change %s", field, err, field,
				subject)
		}
		return nil, NewSettingError(field,
			"%s: %w: set it to that stream if it is meant, else take the subject out of it", field,
			err)
	}
	if err != nil {
		return nil, NewSettingError(field, "%s: %w", field, err)
	}
	return stream, nil
}

// filter is the input subject of all partitions.
func (s Config) filter() string { return strings.ReplaceAll(s.InputSubject, PartitionToken, "*") }
