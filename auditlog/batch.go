package auditlog

// BatchPhase is the change in the life of a provider's batch that a [Batch] event
// reports.
type BatchPhase string

// The values of BatchPhase.
const (
	// BatchIntent is recorded before a batch is submitted: its rows are decided.
	BatchIntent BatchPhase = "intent"
	// BatchSubmitted says that the provider has the batch.
	BatchSubmitted BatchPhase = "submitted"
	// BatchAdopted says that a batch was found at the provider whose submission was in
	// doubt.
	BatchAdopted BatchPhase = "adopted"
	// BatchEnded, BatchCancelled and BatchExpired say that the provider is done with it
	// and its answers were read; usage and cost sum up all its answers.
	BatchEnded     BatchPhase = "ended"
	BatchCancelled BatchPhase = "cancelled"
	BatchExpired   BatchPhase = "expired"
	// BatchAbandoned says that the batch is given up: the provider does not list it, or
	// has refused it or each of its lines, or no row of it is wanted any more. Rows that
	// still need an answer go into other batches, or are called live; one that the
	// provider refused by name fails. Reason says why the batch is given up.
	BatchAbandoned BatchPhase = "abandoned"
)

// ResultsGone is the reason of the end of a batch whose results the provider no longer
// has: its rows go again. Answers that an earlier owner has read count as missing, but
// they have call events.
const ResultsGone = "the provider no longer has its results"

// Batch is the event of a change in the life of a batch that a provider's Batch API works
// on. Empty strings and nil numbers are written as null.
type Batch struct {
	Header
	// Owner names the term of ownership.
	Owner string `event:"owner,null"`
	// Phase is what happened to the batch.
	Phase BatchPhase `event:"phase"`
	// Token is the stage's own name of the batch.
	Token string `event:"token,null"`
	// BatchID is the provider's name of the batch.
	BatchID string `event:"batch_id,null"`
	// Provider is the provider that has the batch.
	Provider string `event:"provider,null"`
	// Model is the model that answers its rows.
	Model string `event:"model,null"`
	// Rows counts the rows of the batch as it was submitted.
	Rows int `event:"rows"`
	// Bytes is the size of the batch as it was submitted.
	Bytes int64 `event:"bytes"`
	// Answered counts the rows that have an answer. Like the counts below, it is 0 until
	// the batch is over.
	Answered int `event:"answered"`
	// Failed counts the rows that have an error.
	Failed int `event:"failed"`
	// Lapsed counts the rows that expired or were cancelled.
	Lapsed int `event:"lapsed"`
	// Missing counts the rows without a line in the provider's results.
	Missing int `event:"missing"`
	// Foreign counts the lines that were doubled, cut, or about no row of the batch.
	Foreign int `event:"foreign"`
	// Dropped counts the answers that were billed and not used, because their rows had
	// gone live.
	Dropped int `event:"dropped"`
	// Usage sums the tokens and cost of all answers. It is nil before the batch is over,
	// and where nothing was reported.
	Usage *Usage `event:"usage"`
	// Reason is why it was abandoned, refused or cancelled, or [ResultsGone]. It is empty
	// where there is nothing to explain.
	Reason string `event:"reason,null"`
}

// Over reports whether the provider was done with the batch: its answers were read, and
// counted.
func (p BatchPhase) Over() bool {
	return p == BatchEnded || p == BatchCancelled || p == BatchExpired
}

// MsgID returns the event's id for the Nats-Msg-Id header. A batch goes through each
// phase once, so a phase that is recorded again after a crash, by whichever owner, stores
// nothing twice.
func (b *Batch) MsgID() string {
	return MsgID(b.Stage+"/"+b.Token, string(b.Phase), KindBatch, 0)
}

// AppendJSON appends the event to dst and returns the extended slice. A batch holds no
// bodies, so payloads makes no difference; it is there to treat all kinds alike.
//
// An event that would take more than bytesMax bytes (0 or less means no bound) is written
// with its reason cut. The rest is written even if it takes more.
func (b *Batch) AppendJSON(dst []byte, _ Payloads, bytesMax int) []byte {
	start := len(dst)
	dst = batchLayout.appendEvent(dst, KindBatch, b)
	if over := len(dst) - start - bytesMax; bytesMax > 0 && over > 0 {
		lean := *b
		lean.Reason = cut(b.Reason, len(b.Reason)-over)
		dst = batchLayout.appendEvent(dst[:start], KindBatch, &lean)
	}
	return dst
}
