package auditlog

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
	// Reason is why it was abandoned, refused or cancelled; empty: it was not.
	Reason string
}
