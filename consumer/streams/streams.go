// Package streams knows the JetStream side of a stage by name: its streams, durable consumers, subjects and headers,
// which it creates, checks, reads and appends to.
//
//	err := streams.Ensure(ctx, nc, streams.Config{Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", …})
//	durable, err := streams.OpenDurable(ctx, nc, streams.DurableConfig{Name: "stage", …})
//	seq, err := streams.Append(ctx, nc, msgs) // all or none
//
// It holds no state of its own: what a stage does with rows is the consumer's.
package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrServer is returned for a NATS server that can't serve a stage.
var ErrServer = errors.New("the NATS server can't serve a stage")

// Config says which streams a stage works on, and how those that are missing are created.
type Config struct {
	// Name of the stage.
	Name string
	// InputStream holds rows on InputSubject, which may contain [PartitionToken]. It may be ResultStream, where the rows are
	// the results of another stage.
	InputStream, InputSubject string
	// ResultStream captures `<ResultSubject>.>`, AuditStream `<AuditSubject>.>`.
	ResultStream, ResultSubject string
	AuditStream, AuditSubject   string
	// DeadLetterSubject must be captured by some stream; empty: none.
	DeadLetterSubject string
	// Partitions is at least 1.
	Partitions int
	// Create allows the creation of what is missing. What exists is checked, never changed.
	Create bool
	// Replicas, Memory and the limits are those of streams created here.
	Replicas                      int
	Memory                        bool
	AuditMaxAge                   time.Duration
	AuditMaxBytes, ResultMaxBytes int64
	// AuditDuplicates is how long the server knows the ids of audit events; 0: two minutes.
	AuditDuplicates time.Duration
	// Journal says whether JournalStream is needed.
	Journal         bool
	JournalStream   string
	JournalMaxBytes int64
	// LaneStream holds the records of batches; empty: none is needed.
	LaneStream string
}

// Ensure creates the streams that are missing and checks those that exist. Its error lists every problem and says
// what to change. A request that nobody answers, mostly for want of a permission, ends it after five seconds: the
// others would only be waited for in the same way.
func Ensure(ctx context.Context, nc *nats.Conn, s Config) error {
	if !elsewhere(nc) { // else a stream names the version, see ensure
		if err := checkServer(nc.ConnectedServerVersion()); err != nil {
			return err
		}
	}
	js, err := JetStream(nc)
	if err != nil {
		return err
	}
	var looks []func() error
	for _, part := range s.parts(nc) {
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

// part is one of the streams of a stage: how it is created, the setting of its name, and what may be wrong with it.
type part struct {
	want  jetstream.StreamConfig
	field Field
	check func(jetstream.StreamConfig) findings
}

// parts are the streams of the stage.
func (s Config) parts(nc *nats.Conn) []part {
	results := part{s.resultConfig(), FieldResultStream, s.checkResult}
	var parts []part
	if s.InputStream == s.ResultStream { // of a stage whose rows are another's results
		results.check = func(cfg jetstream.StreamConfig) findings { return append(s.checkResult(cfg), s.checkInput(cfg)...) }
	} else {
		parts = append(parts, part{s.inputConfig(), FieldInputStream, s.checkInput})
	}
	parts = append(parts, results, part{s.auditConfig(nc), FieldAuditStream, s.checkAudit})
	if s.Journal {
		parts = append(parts, part{s.journalConfig(), FieldJournalStream, s.checkJournal})
	}
	if s.LaneStream != "" {
		parts = append(parts, part{s.laneConfig(), FieldLaneStream, s.checkLane})
	}
	return parts
}

// stream is what all streams of a stage have in common.
func (s Config) stream(name, description string, bytesMax int64, subjects ...string) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name: name, Description: description, Subjects: subjects, MaxBytes: cmp.Or(bytesMax, -1),
		Replicas: s.Replicas, Discard: jetstream.DiscardNew, AllowDirect: true, AllowAtomicPublish: true,
	}
	if s.Memory {
		cfg.Storage = jetstream.MemoryStorage
	}
	return cfg
}

// inputConfig returns the stream of rows. Where these are another stage's results it is the stream that that stage would
// create, whichever of the two is first: one that holds the results alone would have no place for the claims.
func (s Config) inputConfig() jetstream.StreamConfig {
	if prefix := resultPrefix(s.filter()); prefix != "" {
		upstream := s
		upstream.ResultStream, upstream.ResultSubject = s.InputStream, prefix
		return upstream.resultConfig()
	}
	cfg := s.stream(s.InputStream, "rows for llm-stage", 0, s.filter())
	if s.Partitions > 1 {
		cfg.Subjects, cfg.SubjectTransform = partitionTransform(s.InputSubject, s.Partitions)
	}
	return cfg
}

func (s Config) resultConfig() jetstream.StreamConfig {
	cfg := s.stream(s.ResultStream, "ordered results of llm-stage", s.ResultMaxBytes, s.ResultSubject+".>")
	cfg.DenyDelete = true // the resume point is in here: nothing may be deleted unnoticed
	return cfg
}

func (s Config) auditConfig(nc *nats.Conn) jetstream.StreamConfig {
	cfg := s.stream(s.AuditStream, "audit events of llm-stage", s.AuditMaxBytes, s.AuditSubject+".>")
	cfg.MaxAge, cfg.Discard, cfg.DenyDelete = s.AuditMaxAge, jetstream.DiscardOld, true
	cfg.Duplicates = s.AuditDuplicates
	if s.AuditMaxAge > 0 {
		cfg.Duplicates = min(cfg.Duplicates, s.AuditMaxAge)
	}
	cfg.AllowBatchPublish = serverSince(serverVersion(nc, nil), 14)
	return cfg
}

// journalConfig refuses newer replies when the journal is full: the older ones are nearer to their turn.
func (s Config) journalConfig() jetstream.StreamConfig {
	cfg := s.stream(s.JournalStream, "replies of llm-stage that wait for their turn", s.JournalMaxBytes, "journal.>")
	cfg.AllowAtomicPublish = false
	return cfg
}

// laneConfig has no limit of its own: what a partition records of its batches is bounded by how many may be open.
func (s Config) laneConfig() jetstream.StreamConfig {
	return s.stream(s.LaneStream, "records of the batches of llm-stage", 0, "lane.>")
}

// subjectOf is the setting of the subject of a stream that one is the setting of. Journal and lane have none.
var subjectOf = map[Field]Field{
	FieldInputStream: FieldInputSubject, FieldResultStream: FieldResultSubject, FieldAuditStream: FieldAuditSubject,
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
		return NewSettingError(field, "%s: stream %s does not exist, and %s is a subject of results: name the stream of the stage before this one, such as %s, "+
			"or start that stage first", field, want.Name, s.InputSubject, s.ResultStream)
	case !s.Create:
		return NewSettingError(field, "%s: stream %s does not exist: create it, or set %s=true", field, want.Name, FieldCreate)
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

// create creates one stream, without fast batches where the server refuses them.
func (s Config) create(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, field Field) (stream jetstream.Stream, err error) {
	stream, err = Create(ctx, js, want)
	if err != nil && want.AllowBatchPublish && !Unanswered(err) {
		want.AllowBatchPublish = false
		stream, err = Create(ctx, js, want)
	}
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == jetstream.JSErrCodeStreamNameInUse {
		return Look(ctx, js, want.Name) // another process, or stage, was first, with other limits
	}
	if errors.Is(err, ErrSubjectTaken) {
		if subject, has := subjectOf[field]; has {
			return nil, NewSettingError(field, "%s: %w: set %s to that stream if it is meant, else change %s", field, err, field, subject)
		}
		return nil, NewSettingError(field, "%s: %w: set it to that stream if it is meant, else take the subject out of it", field, err)
	}
	if err != nil {
		return nil, NewSettingError(field, "%s: %w", field, err)
	}
	return stream, nil
}

// Look asks the server for a stream.
func Look(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", name, Denied(js.Conn(), err))
	}
	return stream, nil
}

// ErrSubjectTaken is returned by [Create] where another stream captures what the new one would.
var ErrSubjectTaken = errors.New("its subjects overlap with those of another stream")

// codeSubjectTaken is the server's refusal of a stream whose subjects overlap with those of another.
const codeSubjectTaken jetstream.ErrorCode = 10065

// Create creates a stream that is missing. That another process creates it with the same configuration at the same
// moment is no error. It returns [ErrSubjectTaken] with the name of the other stream where a subject belongs to one,
// and waits for an answer for five seconds.
func Create(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	creating, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	stream, err := js.CreateStream(creating, cfg)
	if err == nil {
		return stream, nil
	}
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == codeSubjectTaken {
		err = fmt.Errorf("%w: %s", ErrSubjectTaken, holder(ctx, js, cfg.Subjects))
	}
	return nil, fmt.Errorf("create stream %s on subject %s: %w", cfg.Name, strings.Join(cfg.Subjects, ", "), Denied(js.Conn(), err))
}

// holder names a stream that captures some message on one of the subjects.
func holder(ctx context.Context, js jetstream.JetStream, subjects []string) string {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	for _, subject := range subjects {
		if name, err := js.StreamNameBySubject(ctx, subject); err == nil {
			return "stream " + name
		}
	}
	return "only a user who may list streams can see which one"
}

// captured checks that some stream takes the dead letter subject.
func captured(ctx context.Context, js jetstream.JetStream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	_, err := js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return NewSettingError(FieldDeadLetterSubject, "%s: no stream captures the subject %s: add it to a stream's subjects", FieldDeadLetterSubject, subject)
	}
	if err != nil {
		return NewSettingError(FieldDeadLetterSubject, "%s: look for the stream of subject %s: %w", FieldDeadLetterSubject, subject, Denied(js.Conn(), err))
	}
	return nil
}

// takes returns what keeps a stream from storing messages on subjects, which field sets, as they are published. All is a
// subject that matches them.
func takes(cfg jetstream.StreamConfig, field Field, all string, subjects ...string) (wrong findings) {
	if cfg.Sealed || cfg.Mirror != nil {
		wrong.add("takes no messages (sealed or a mirror): name another stream")
		return wrong
	}
	for _, subject := range subjects {
		if !slices.ContainsFunc(cfg.Subjects, func(s string) bool { return covers(s, subject) }) {
			wrong.addSetting(field, "does not capture %s, only %s: add it to the stream's subjects (%s), or change %s",
				subject, strings.Join(cfg.Subjects, ", "), editSubjects(cfg, all), field)
			break // the others are likely to be missing, too
		}
	}
	if cfg.NoAck {
		wrong.add("does not acknowledge messages, so nobody knows whether they are stored: set no_ack to false (%s)", edit(cfg, "--ack"))
	}
	if cfg.SubjectTransform != nil {
		wrong.add("transforms subjects, so stored messages could not be found: remove the transform")
	}
	if cfg.AllowMsgCounter {
		wrong.add("holds counters only: name another stream")
	}
	return wrong
}

// filter is the input subject of all partitions.
func (s Config) filter() string { return strings.ReplaceAll(s.InputSubject, PartitionToken, "*") }

func (s Config) checkInput(cfg jetstream.StreamConfig) (wrong findings) {
	if cfg.Sealed && cfg.Retention != jetstream.LimitsPolicy {
		wrong.add("is sealed, so its rows can't be acked: use limits retention")
	}
	own := cfg.Mirror == nil && len(cfg.Sources) == 0 && cfg.SubjectTransform == nil
	if filter := s.filter(); own && !slices.ContainsFunc(cfg.Subjects, func(c string) bool { return Overlap(c, filter) }) {
		wrong.addSetting(FieldInputSubject, "holds %s, no row on %s: add it to the stream's subjects (%s), or change %s",
			strings.Join(cfg.Subjects, ", "), s.InputSubject, editSubjects(cfg, filter), FieldInputSubject)
	}
	for _, out := range []string{s.ResultSubject + "." + s.Name + ".>", s.AuditSubject + "." + s.Name + ".>", "journal." + s.Name + ".>", LaneSubjects(s.Name)} {
		if Overlap(s.filter(), out) && slices.ContainsFunc(cfg.Subjects, func(c string) bool { return Overlap(c, out) }) {
			wrong.addSetting(FieldInputSubject, "would feed the stage's own %s back to it as rows: change %s %s", out, FieldInputSubject, s.InputSubject)
		}
	}
	return append(wrong, s.checkPartitions(cfg)...)
}

// resultPrefix returns the prefix of the subjects that a stage has whose results an input subject takes, such as results
// of results.<name>.0.rows; empty: the subject is none of results.
func resultPrefix(filter string) string {
	tokens := strings.Split(filter, ".")
	n := len(tokens) - 3 // name, partition, rows
	if n < 1 || tokens[n+2] != "rows" || slices.ContainsFunc(tokens[:n], func(t string) bool { return t == "*" || t == ">" }) {
		return ""
	}
	if _, err := strconv.Atoi(tokens[n+1]); err != nil && tokens[n+1] != "*" {
		return ""
	}
	return strings.Join(tokens[:n], ".")
}

// checkResult refuses whatever could drop the end of the log, or a result, unnoticed.
func (s Config) checkResult(cfg jetstream.StreamConfig) (wrong findings) {
	var subjects []string
	for p := range max(1, s.Partitions) {
		subjects = append(subjects, ResultSubject(s.ResultSubject, s.Name, p), ClaimSubject(s.ResultSubject, s.Name, p))
	}
	wrong = takes(cfg, FieldResultSubject, s.ResultSubject+".>", subjects...)
	if cfg.Retention != jetstream.LimitsPolicy {
		wrong.add("has %s retention, which deletes the resume point with the last read: set retention to limits", cfg.Retention)
	}
	if cfg.MaxAge > 0 {
		wrong.add("has max age %v, after which an idle stage loses its resume point: set it to 0 (%s)", cfg.MaxAge, edit(cfg, "--max-age=0s"))
	}
	if cfg.Discard == jetstream.DiscardOld && (cfg.MaxBytes > 0 || cfg.MaxMsgs > 0) {
		wrong.add("drops old results when it is full: set discard to new, then a full stream makes the stage wait (%s)", edit(cfg, "--discard=new"))
	}
	if cfg.MaxMsgsPerSubject > 0 {
		wrong.add("keeps only %d messages a subject: set max messages per subject to -1 (%s)", cfg.MaxMsgsPerSubject, edit(cfg, "--max-msgs-per-subject=-1"))
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		wrong.add("acknowledges messages before they are written (persist mode async): a killed server would lose results that rows were acked for; set persist mode to default")
	}
	return wrong
}

func (s Config) checkAudit(cfg jetstream.StreamConfig) findings {
	subjects := []string{AuditSubject(s.AuditSubject, s.Name, auditlog.All, auditlog.KindRun)}
	for p := range max(1, s.Partitions) {
		subjects = append(subjects, AuditSubject(s.AuditSubject, s.Name, auditlog.Partition(p), auditlog.KindCall),
			AuditSubject(s.AuditSubject, s.Name, auditlog.Partition(p), auditlog.KindRow))
		if s.LaneStream != "" {
			subjects = append(subjects, AuditSubject(s.AuditSubject, s.Name, auditlog.Partition(p), auditlog.KindBatch))
		}
	}
	return takes(cfg, FieldAuditSubject, s.AuditSubject+".>", subjects...)
}

func (s Config) checkJournal(cfg jetstream.StreamConfig) findings {
	var subjects []string
	for p := range max(1, s.Partitions) {
		subjects = append(subjects, JournalSubject(s.Name, p))
	}
	wrong := takes(cfg, FieldJournalStream, "journal.>", subjects...)
	if !cfg.AllowDirect {
		wrong.add("does not allow direct gets, by which it is read: set allow_direct to true (%s)", edit(cfg, "--allow-direct"))
	}
	return wrong
}

// checkLane refuses what could lose the record of a batch that the provider works on: it would be paid for twice.
func (s Config) checkLane(cfg jetstream.StreamConfig) findings {
	wrong := takes(cfg, FieldLaneStream, "lane.>", LaneSubjects(s.Name))
	if !cfg.AllowDirect {
		wrong.add("does not allow direct gets, by which it is read: set allow_direct to true (%s)", edit(cfg, "--allow-direct"))
	}
	if cfg.Retention != jetstream.LimitsPolicy {
		wrong.add("has %s retention, which deletes records once they are read: set retention to limits", cfg.Retention)
	}
	if cfg.MaxAge > 0 {
		wrong.add("has max age %v, after which batches that are still open are forgotten: set it to 0 (%s)", cfg.MaxAge, edit(cfg, "--max-age=0s"))
	}
	if cfg.Discard == jetstream.DiscardOld && (cfg.MaxBytes > 0 || cfg.MaxMsgs > 0) {
		wrong.add("drops old records when it is full: set discard to new, then no batch is submitted while it is full (%s)", edit(cfg, "--discard=new"))
	}
	if cfg.MaxMsgsPerSubject > 0 {
		wrong.add("keeps only %d messages a subject: set max messages per subject to -1 (%s)", cfg.MaxMsgsPerSubject, edit(cfg, "--max-msgs-per-subject=-1"))
	}
	if cfg.DenyPurge {
		wrong.add("does not allow purges, by which batches that are done are removed: set deny_purge to false")
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		wrong.add("acknowledges messages before they are written (persist mode async), so a killed server would forget a batch: set persist mode to default")
	}
	return wrong
}

// edit is the command of the nats CLI that changes a stream.
func edit(cfg jetstream.StreamConfig, flag string) string {
	return "nats stream edit " + cfg.Name + " " + flag
}

// editSubjects is the command that adds a subject to a stream. It leaves out those that the new one covers,
// since the server refuses subjects that overlap, and quotes all: > and * mean something to a shell.
func editSubjects(cfg jetstream.StreamConfig, subject string) string {
	flags := []string{}
	for _, s := range append(slices.DeleteFunc(slices.Clone(cfg.Subjects), func(s string) bool { return covers(subject, s) }), subject) {
		flags = append(flags, "--subjects='"+s+"'")
	}
	return edit(cfg, strings.Join(flags, " "))
}

// checkServer returns [ErrServer] for a server that lacks what the protocol needs.
func checkServer(version string) error {
	if !serverSince(version, 11) {
		return fmt.Errorf("%w: version %s has no pinned consumers: use 2.11 or newer", ErrServer, version)
	}
	return nil
}

// versionKey is the entry of a stream's metadata under which the server that answers names its version, since 2.11.
const versionKey = "_nats.ver"

// serverVersion is the version of the server that has the streams. It is the one of the connection, unless JetStream is
// reached through another domain or account: the hub of a leaf node may be newer than the leaf, or older. Then the answer
// about a stream names it. Empty: it is unknown, or hidden.
func serverVersion(nc *nats.Conn, info *jetstream.StreamInfo) string {
	switch {
	case !elsewhere(nc):
		return nc.ConnectedServerVersion()
	case info == nil:
		return ""
	}
	return cmp.Or(info.Config.Metadata[versionKey], "2.10")
}

// serverSince reports whether a server has version 2.minor or newer; one that hides its version is taken to have it.
func serverSince(version string, minor int) bool {
	var major, have int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &have) // a part that can't be read is not counted
	return n < 2 || major > 2 || major == 2 && have >= minor
}
