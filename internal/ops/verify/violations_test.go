package verify

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// checks is all that verify checks, as docs/verify.md lists it. A violation of each kind
// is planted by TestVerifyFindsPlantedFaults.
var checks = []struct {
	kind  violationKind
	means string
}{
	{violationLost, "a row has no result, up to the high-water mark or where the log says that it had one"},
	{violationDoubled, "a row has a second result"},
	{violationDisorder, "a result is stored after that of a later row (of its key)"},
	{violationResult, "status, stream or state id are wrong, or the input never had the row"},
	{violationReplacement, "a result replaces a row that did not fail, or none"},
	{violationClaim, "a claim does not match the results before it, or changes the order while rows are ahead; or a fenced owner has stored a result"},
	{violationLow, "`Stage-Low`, `Stage-Ahead` or `Stage-Ahead-From` is missing or not true"},
	{violationKey, "`Stage-Key` is missing, or not the key of the row"},
	{violationObject, "the body of a large result is gone, or is not the one that was stored"},
	{violationNoRowEvent, "the owner of a result has no row event for it"},
	{violationRowEvent, "row event and result differ in status, key or, where bodies are read, any byte"},
	{violationNoCallEvent, "fewer call events than the row event counts, or not numbered from 0"},
	{violationCallEvent, "more call events than the row event counts"},
	{violationRetries, "capacity retries in the call events and in the row event differ"},
	{violationTokens, "tokens of any kind in the call events and in the row event differ"},
	{violationCost, "cost in the call events and in the row event differ"},
	{violationRun, "the summary at the end of a run differs from its results and call events"},
	{violationBatch, "the events of a batch contradict each other or its call events, or one is missing"},
	{violationCustomID, "a line of a batch answered another row than its custom id names"},
	{violationPaidTwice, "two batches have answered a row, or two calls of one term an element"},
	{violationItem, "calls or replies of a row do not match the elements of its array"},
	{violationLink, "a result is not made from the row that it names"},
	{violationOrigin, "a result does not name the first row of its chain, or another one"},
	{violationChain, "a result or claim was altered, added, moved or removed: its `Stage-Chain` does not follow"},
	{violationDeleted, "the same, and a message before it was deleted, and has no tombstone"},
	{violationEvent, "a byte of a row event or of a call event has changed (`Stage-Event`, `calls_hash`)"},
	{violationErasure, "a result has a tombstone and is still there: its erasure was interrupted"},
	{violationRoot, "a root of `--root` is not on the chain: the end of the log is gone, or is another one"},
}

func TestTheDocsListWhatVerifyChecks(t *testing.T) {
	docs := stagetest.Value(os.ReadFile("../../../docs/verify.md"))(t)
	var table strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&table, "| `%s` | %s |\n", c.kind, c.means)
	}
	if want := "| kind | violation |\n| --- | --- |\n" + table.String() + "\n"; !strings.Contains(string(docs), want) {
		t.Errorf("docs/verify.md lacks this table:\n%s", want)
	}
}
