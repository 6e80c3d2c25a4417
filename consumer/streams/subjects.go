package streams

import (
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
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

// LogFilter matches everything that one partition appends to the results: rows and
// claims. The server keys its guard of conditional appends by this string as it is
// written, so every writer must use the identical one.
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

// JournalPrefix is what the subjects begin with on which the replies of one partition are
// kept that wait for an earlier row. The row and the element follow, each as one token.
func JournalPrefix(name string, partition int) string {
	return "journal." + name + "." + strconv.Itoa(partition) + "."
}

// JournalSubjects matches the subjects of all replies of one partition.
func JournalSubjects(name string, partition int) string {
	return JournalPrefix(name, partition) + ">"
}

// LaneSubjects matches the records of the batches of a stage.
func LaneSubjects(name string) string { return "lane." + name + ".>" }

// BatchSubjects matches the deferred batches of a stage.
func BatchSubjects(name string) string { return BatchPrefix(name) + ">" }

// BatchPrefix starts the subjects of the deferred batches of a stage, with the dot.
func BatchPrefix(name string) string { return "batches." + name + "." }

func logPrefix(prefix, name string, partition int) string {
	return prefix + "." + name + "." + strconv.Itoa(partition)
}

// covers reports whether filter matches everything that subject (a subject or a filter
// itself) matches.
func covers(filter, subject string) bool {
	for {
		f, restF, moreF := strings.Cut(filter, ".")
		s, restS, moreS := strings.Cut(subject, ".")
		switch {
		case f == ">":
			return s != ""
		case s == ">", f != "*" && f != s:
			return false
		case !moreF || !moreS:
			return moreF == moreS
		}
		filter, subject = restF, restS
	}
}

// Overlap reports whether some subject matches both filters.
func Overlap(a, b string) bool {
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		switch {
		case x == ">" || y == ">":
			return true
		case x != "*" && y != "*" && x != y:
			return false
		case !moreA || !moreB:
			return moreA == moreB
		}
		a, b = restA, restB
	}
}
