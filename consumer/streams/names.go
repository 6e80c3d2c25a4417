package streams

import (
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
)

// Headers of a result, and of a row that is itself a result of another stage.
const (
	HeaderSourceStream  = "Stage-Source-Stream"
	HeaderSourceSeq     = "Stage-Source-Seq"
	HeaderSourceSubject = "Stage-Source-Subject"
	HeaderStatus        = "Stage-Status"
	HeaderStateID       = "Stage-State-Id"
	HeaderOwner         = "Stage-Owner"
	// HeaderOriginStream and HeaderOriginSeq name, on a result whose row came from another stage, the first row of the
	// chain.
	HeaderOriginStream = "Stage-Origin-Stream"
	HeaderOriginSeq    = "Stage-Origin-Seq"
	// HeaderLow is, on a result or claim of a stage that is not in stream order, the low-water mark: with this message
	// stored, every row of the input at or below it has its result. HeaderAhead counts the rows above it that have one,
	// too, and HeaderAheadFrom is a sequence of the result stream before which none of their results lies; both are absent
	// where there is no such row.
	HeaderLow       = "Stage-Low"
	HeaderAhead     = "Stage-Ahead"
	HeaderAheadFrom = "Stage-Ahead-From"
	// HeaderKey is the row's key, on a result of a stage that is in order by key. See [KeyHeader].
	HeaderKey = "Stage-Key"
	// HeaderModel on a row overrides the model of its request.
	HeaderModel = "Stage-Model"
	// HeaderLane on a row chooses its lane, live or batch, and HeaderDeadline until when its result must be there: a
	// duration from its arrival in the stream, or an instant in RFC 3339. Both mean nothing without a batch lane.
	HeaderLane     = "Stage-Lane"
	HeaderDeadline = "Stage-Deadline"
	// HeaderReason names the reason of a failed row on the dead letter subject.
	HeaderReason = "Stage-Reason"
	// HeaderTruncated says of a dead letter that the row, which is named, left no room for the reason and is not in it.
	HeaderTruncated = "Stage-Truncated"
	// HeaderItem is, on an entry of the journal, the element of the row that the entry is of, from 0. Without it the entry
	// is of the whole row.
	HeaderItem = "Stage-Item"
)

// Headers of a row that a load has published.
const (
	// HeaderLoadID and HeaderLoadRow say of which file a row is, and which row of it, counted from 1.
	HeaderLoadID  = "Stage-Load-Id"
	HeaderLoadRow = "Stage-Load-Row"
	// HeaderRowError marks a row whose own body no message can hold, with the reason of its error result;
	// HeaderRowSize and HeaderRowLimit say its size in bytes and what there is room for. The body then is the beginning of
	// the row's.
	HeaderRowError = "Stage-Row-Error"
	HeaderRowSize  = "Stage-Row-Size"
	HeaderRowLimit = "Stage-Row-Limit"
	// HeaderRowProblem is what is wrong with a row that its file does not hold correctly, such as a CSV record with too
	// many columns. The body then is the problem, a colon, a space and the beginning of the row.
	HeaderRowProblem = "Stage-Row-Problem"
)

// Headers that speak to the server, and for which the client library has no names.
const (
	HeaderPinID       = "Nats-Pin-Id"
	HeaderBatchID     = "Nats-Batch-Id"
	HeaderBatchSeq    = "Nats-Batch-Sequence"
	HeaderBatchCommit = "Nats-Batch-Commit"
)

// PartitionToken stands for the partition's number in an input subject.
const PartitionToken = "{partition}"

// DurableName is the durable consumer that serves one partition of a stage.
func DurableName(name string, partition int) string {
	return name + "-" + strconv.Itoa(partition)
}

// InputFilter is the input subject of one partition.
func InputFilter(subject string, partition int) string {
	return strings.ReplaceAll(subject, PartitionToken, strconv.Itoa(partition))
}

// ResultSubject is where the results of one partition go.
func ResultSubject(prefix, name string, partition int) string {
	return logPrefix(prefix, name, partition) + ".rows"
}

// LogFilter matches everything that one partition appends to the results: rows and claims. The server keys its guard of
// conditional appends by this string as it is written, so every writer must use the identical one.
func LogFilter(prefix, name string, partition int) string {
	return logPrefix(prefix, name, partition) + ".>"
}

// ClaimSubject is where the claims of one partition go, among its results.
func ClaimSubject(prefix, name string, partition int) string {
	return logPrefix(prefix, name, partition) + ".claim"
}

// AuditSubject is where the audit events of one kind go.
func AuditSubject(prefix, name string, p auditlog.Partition, kind auditlog.Kind) string {
	return prefix + "." + name + "." + p.String() + "." + string(kind)
}

// JournalSubject is where the replies of one partition are kept that wait for an earlier row.
func JournalSubject(name string, partition int) string {
	return "journal." + name + "." + strconv.Itoa(partition)
}

// LaneSubjects matches the records of the batches of a stage.
func LaneSubjects(name string) string { return "lane." + name + ".>" }

func logPrefix(prefix, name string, partition int) string {
	return prefix + "." + name + "." + strconv.Itoa(partition)
}
