package streams

import (
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go/jetstream"
)

// takes returns what keeps a stream from storing messages on subjects, which field sets,
// as they are published. All is a subject that matches them.
func takes(
	cfg jetstream.StreamConfig, field Field, all string, subjects ...string,
) (wrong findings) {
	if cfg.Sealed || cfg.Mirror != nil {
		wrong.add("takes no messages (sealed or a mirror): name another stream")
		return wrong
	}
	for _, subject := range subjects {
		if !slices.ContainsFunc(cfg.Subjects, func(s string) bool { return covers(s, subject) }) {
			wrong.addSetting(field,
				"does not capture %s, only %s: add it to the stream's subjects (%s), or change %s",
				subject, strings.Join(cfg.Subjects, ", "), editSubjects(cfg, all), field)
			break // the others are likely to be missing, too
		}
	}
	if cfg.NoAck {
		wrong.add("does not acknowledge messages, so nobody knows whether they are stored: set no_ack to false (%s)",
			edit(cfg, "--ack"))
	}
	if cfg.SubjectTransform != nil {
		wrong.add("transforms subjects, so stored messages could not be found: remove the transform")
	}
	if cfg.AllowMsgCounter {
		wrong.add("holds counters only: name another stream")
	}
	return wrong
}

func (s Config) checkInput(cfg jetstream.StreamConfig) (wrong findings) {
	if cfg.Sealed && cfg.Retention != jetstream.LimitsPolicy {
		wrong.add("is sealed, so its rows can't be acked: use limits retention")
	}
	own := cfg.Mirror == nil && len(cfg.Sources) == 0 && cfg.SubjectTransform == nil
	filter := s.filter()
	captures := func(subject string) bool {
		return slices.ContainsFunc(cfg.Subjects, func(c string) bool { return Overlap(c, subject) })
	}
	if own && !captures(filter) {
		wrong.addSetting(FieldInputSubject,
			"holds %s, no row on %s: add it to the stream's subjects (%s), or change %s",
			strings.Join(cfg.Subjects, ", "), s.InputSubject, editSubjects(cfg, filter),
			FieldInputSubject)
	}
	for _, out := range []string{
		s.ResultSubject + "." + s.Name + ".>", s.AuditSubject + "." + s.Name + ".>",
		"journal." + s.Name + ".>", LaneSubjects(s.Name),
	} {
		if Overlap(filter, out) && captures(out) {
			wrong.addSetting(FieldInputSubject,
				"would feed the stage's own %s back to it as rows: change %s %s", out,
				FieldInputSubject, s.InputSubject)
		}
	}
	return append(wrong, s.checkPartitions(cfg)...)
}

// resultPrefix returns the prefix of a subject of results. For example,
// results.<name>.0.rows has the prefix results. It is empty for any other subject.
func resultPrefix(filter string) string {
	tokens := strings.Split(filter, ".")
	n := len(tokens) - 3 // name, partition, rows
	wildcard := func(token string) bool { return token == "*" || token == ">" }
	if n < 1 || tokens[n+2] != "rows" || slices.ContainsFunc(tokens[:n], wildcard) {
		return ""
	}
	if _, err := strconv.Atoi(tokens[n+1]); err != nil && tokens[n+1] != "*" {
		return ""
	}
	return strings.Join(tokens[:n], ".")
}

// checkResult refuses every setting that could drop the end of the log, or a result,
// unnoticed.
func (s Config) checkResult(cfg jetstream.StreamConfig) (wrong findings) {
	var subjects []string
	for p := range max(1, s.Partitions) {
		subjects = append(subjects, ResultSubject(s.ResultSubject, s.Name, p),
			ClaimSubject(s.ResultSubject, s.Name, p))
	}
	wrong = takes(cfg, FieldResultSubject, s.ResultSubject+".>", subjects...)
	return append(wrong, keeps(cfg, losses{
		read:   "deletes the resume point with the last read",
		aged:   "an idle stage loses its resume point",
		full:   "drops old results when it is full: set discard to new, then a full stream makes the stage wait",
		killed: "a killed server would lose results that rows were acked for",
	})...)
}

// losses says what a stream would lose by dropping messages, for each reason to drop
// them.
type losses struct{ read, aged, full, killed string }

// keeps refuses the settings by which a stream drops messages unasked.
func keeps(cfg jetstream.StreamConfig, lost losses) (wrong findings) {
	if cfg.Retention != jetstream.LimitsPolicy {
		wrong.add("has %s retention, which %s: set retention to limits", cfg.Retention, lost.read)
	}
	if cfg.MaxAge > 0 {
		wrong.add("has max age %v, after which %s: set it to 0 (%s)",
			cfg.MaxAge, lost.aged, edit(cfg, "--max-age=0s"))
	}
	if cfg.Discard == jetstream.DiscardOld && (cfg.MaxBytes > 0 || cfg.MaxMsgs > 0) {
		wrong.add("%s (%s)", lost.full, edit(cfg, "--discard=new"))
	}
	if cfg.MaxMsgsPerSubject > 0 {
		wrong.add("keeps only %d messages a subject: set max messages per subject to -1 (%s)",
			cfg.MaxMsgsPerSubject, edit(cfg, "--max-msgs-per-subject=-1"))
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		wrong.add("acknowledges messages before they are written (persist mode async), so %s: set persist mode to default",
			lost.killed)
	}
	return wrong
}

func (s Config) checkAudit(cfg jetstream.StreamConfig) findings {
	subjects := []string{AuditSubject(s.AuditSubject, s.Name, auditlog.All, auditlog.KindRun)}
	for p := range max(1, s.Partitions) {
		subjects = append(subjects,
			AuditSubject(s.AuditSubject, s.Name, auditlog.Partition(p), auditlog.KindCall),
			AuditSubject(s.AuditSubject, s.Name, auditlog.Partition(p), auditlog.KindRow))
		if s.LaneStream != "" {
			subjects = append(subjects,
				AuditSubject(s.AuditSubject, s.Name, auditlog.Partition(p), auditlog.KindBatch))
		}
	}
	return takes(cfg, FieldAuditSubject, s.AuditSubject+".>", subjects...)
}

func (s Config) checkJournal(cfg jetstream.StreamConfig) findings {
	var subjects []string
	for p := range max(1, s.Partitions) {
		subjects = append(subjects, JournalSubjects(s.Name, p))
	}
	wrong := takes(cfg, FieldJournalStream, "journal.>", subjects...)
	wrong.needsDirect(cfg)
	return wrong
}

// checkLane refuses what could lose the record of a batch that the provider works on: it
// would be paid for twice.
func (s Config) checkLane(cfg jetstream.StreamConfig) findings {
	wrong := takes(cfg, FieldLaneStream, "lane.>", LaneSubjects(s.Name))
	wrong.needsDirect(cfg)
	wrong = append(wrong, keeps(cfg, losses{
		read:   "deletes records once they are read",
		aged:   "batches that are still open are forgotten",
		full:   "drops old records when it is full: set discard to new, then no batch is submitted while it is full",
		killed: "a killed server would forget a batch",
	})...)
	if cfg.DenyPurge {
		wrong.add("does not allow purges, by which batches that are done are removed: set deny_purge to false")
	}
	return wrong
}

// checkBatches refuses what could lose an answer that is paid for.
func (s Config) checkBatches(cfg jetstream.StreamConfig) findings {
	wrong := takes(cfg, FieldBatchStream, "batches.>", BatchSubjects(s.Name))
	if cfg.Retention != jetstream.LimitsPolicy {
		wrong.add("has %s retention, which deletes answers once they are read: set retention to limits", cfg.Retention)
	}
	if cfg.MaxAge > 0 && cfg.MaxAge < batchAgeLeast {
		wrong.add("has max age %v, after which batches are lost that still run or are kept: set it to %v or more (%s)",
			cfg.MaxAge, batchAgeLeast, edit(cfg, "--max-age="+batchAgeLeast.String()))
	}
	if cfg.Discard == jetstream.DiscardOld && (cfg.MaxBytes > 0 || cfg.MaxMsgs > 0) {
		wrong.add("drops old batches when it is full: set discard to new, then a full stream refuses new ones (%s)",
			edit(cfg, "--discard=new"))
	}
	if cfg.MaxMsgsPerSubject != 1 {
		wrong.add("keeps more than the newest message of each subject, which grows while a batch runs: set max messages per subject to 1 (%s)",
			edit(cfg, "--max-msgs-per-subject=1"))
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		wrong.add("acknowledges messages before they are written (persist mode async), so a killed server would lose answers: set persist mode to default")
	}
	if cfg.DenyPurge {
		wrong.add("does not allow purges, by which batches are removed: set deny_purge to false")
	}
	return wrong
}

// needsDirect refuses a stream that can't be read by direct gets.
func (f *findings) needsDirect(cfg jetstream.StreamConfig) {
	if !cfg.AllowDirect {
		f.add("does not allow direct gets, by which it is read: set allow_direct to true (%s)",
			edit(cfg, "--allow-direct"))
	}
}

// edit is the command of the nats CLI that changes a stream.
func edit(cfg jetstream.StreamConfig, flag string) string {
	return "nats stream edit " + cfg.Name + " " + flag
}

// editSubjects is the command that adds a subject to a stream. It leaves out those that
// the new one covers, since the server refuses subjects that overlap, and quotes all: >
// and * mean something to a shell.
func editSubjects(cfg jetstream.StreamConfig, subject string) string {
	flags := []string{}
	others := slices.DeleteFunc(slices.Clone(cfg.Subjects),
		func(s string) bool { return covers(subject, s) })
	for _, s := range append(others, subject) {
		flags = append(flags, "--subjects='"+s+"'")
	}
	return edit(cfg, strings.Join(flags, " "))
}
