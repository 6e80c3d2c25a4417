package auditlog

import (
	"strconv"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// BatchPhase is the change in the life of a provider's batch that a [Batch] event reports.
type BatchPhase string

// The values of BatchPhase.
const (
	// BatchIntent is recorded before a batch is submitted: its rows are decided.
	BatchIntent BatchPhase = "intent"
	// BatchSubmitted says that the provider has it.
	BatchSubmitted BatchPhase = "submitted"
	// BatchAdopted says that a batch was found at the provider whose submission was in doubt.
	BatchAdopted BatchPhase = "adopted"
	// BatchEnded, BatchCancelled and BatchExpired say that the provider is done with it and its answers were read; usage and
	// cost are those of all its answers.
	BatchEnded     BatchPhase = "ended"
	BatchCancelled BatchPhase = "cancelled"
	BatchExpired   BatchPhase = "expired"
	// BatchAbandoned says that the batch is given up, since the provider does not have it or has refused it: its rows go
	// into others. Reason says why, and whether that is certain.
	BatchAbandoned BatchPhase = "abandoned"
)

// ResultsGone is the reason of the end of a batch whose results the provider no longer has: its rows go again. Answers
// that an earlier owner has read count as missing, but they have call events.
const ResultsGone = "the provider no longer has its results"

// Batch is the event of a change in the life of a batch that a provider's Batch API works on. Empty strings and nil
// numbers are written as null.
type Batch struct {
	Header
	// Owner names the term of ownership.
	Owner string
	Phase BatchPhase
	// Token is the stage's own name of the batch, BatchID the provider's.
	Token, BatchID string
	// Provider and Model are the ones called.
	Provider, Model string
	// Rows and Bytes are the size of the batch as it was submitted.
	Rows  int
	Bytes int64
	// Answered, Failed, Lapsed, Missing and Foreign count, when it is over: rows with an answer, rows with an error, rows that
	// expired or were cancelled, rows without a line, and lines that were doubled, cut or of no row of the batch.
	Answered, Failed, Lapsed, Missing, Foreign int
	// Dropped counts the answers that were billed and not used: the row had gone live.
	Dropped int
	// Usage sums the tokens and cost of all answers; nil before it is over, or where nothing was reported.
	Usage *Usage
	// Reason is why it was abandoned, refused or cancelled, or [ResultsGone]; empty: there is nothing to explain.
	Reason string
}

// Over reports whether the provider was done with the batch: its answers were read, and counted.
func (p BatchPhase) Over() bool {
	return p == BatchEnded || p == BatchCancelled || p == BatchExpired
}

// MsgID returns the event's id for the Nats-Msg-Id header. A batch goes through each phase once, so a phase that is
// recorded again after a crash, by whichever owner, stores nothing twice.
func (b *Batch) MsgID() string {
	return MsgID(b.Stage+"/"+b.Token, string(b.Phase), KindBatch, 0)
}

// AppendJSON appends the event to dst and returns the extended slice. A batch holds no bodies, so payloads makes no
// difference; it is there to treat all kinds alike.
//
// An event that would take more than bytesMax bytes (0 or less: no bound) is written with its reason cut. The rest is
// written whatever it takes.
func (b *Batch) AppendJSON(dst []byte, _ Payloads, bytesMax int) []byte {
	start := len(dst)
	dst = b.append(dst)
	if over := len(dst) - start - bytesMax; bytesMax > 0 && over > 0 {
		lean := *b
		lean.Reason = cut(b.Reason, len(b.Reason)-over)
		dst = lean.append(dst[:start])
	}
	return dst
}

func (b *Batch) append(dst []byte) []byte {
	dst = b.appendHead(dst, KindBatch)
	dst = stringOrNull(append(dst, `,"owner":`...), b.Owner)
	dst = jsonbytes.AppendEscaped(append(dst, `,"phase":`...), string(b.Phase))
	dst = stringOrNull(append(dst, `,"token":`...), b.Token)
	dst = stringOrNull(append(dst, `,"batch_id":`...), b.BatchID)
	dst = stringOrNull(append(dst, `,"provider":`...), b.Provider)
	dst = stringOrNull(append(dst, `,"model":`...), b.Model)
	dst = strconv.AppendInt(append(dst, `,"rows":`...), int64(b.Rows), 10)
	dst = strconv.AppendInt(append(dst, `,"bytes":`...), b.Bytes, 10)
	dst = strconv.AppendInt(append(dst, `,"answered":`...), int64(b.Answered), 10)
	dst = strconv.AppendInt(append(dst, `,"failed":`...), int64(b.Failed), 10)
	dst = strconv.AppendInt(append(dst, `,"lapsed":`...), int64(b.Lapsed), 10)
	dst = strconv.AppendInt(append(dst, `,"missing":`...), int64(b.Missing), 10)
	dst = strconv.AppendInt(append(dst, `,"foreign":`...), int64(b.Foreign), 10)
	dst = strconv.AppendInt(append(dst, `,"dropped":`...), int64(b.Dropped), 10)
	dst = usage(append(dst, `,"usage":`...), b.Usage)
	dst = stringOrNull(append(dst, `,"reason":`...), b.Reason)
	return append(dst, '}')
}
