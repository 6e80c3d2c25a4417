package verify

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// checks is all that verify checks, as docs/verify.md lists it. A violation of each kind is planted by
// TestVerifyFindsPlantedFaults.
var checks = []struct {
	kind  violationKind
	means string
}{
	{violationLost, "a row up to the high-water mark has no result, or one above the low-water mark of which the log says that it had one"},
	{violationDoubled, "a row has a second result"},
	{violationDisorder, "a result is stored after that of a later row; in order by key: of the same key"},
	{violationResult, "status, stream or state id of a result are wrong, or the input never had its row"},
	{violationReplacement, "a result takes the place of a row that did not fail before it, or of none"},
	{violationClaim, "a claim does not match the results before it, names no order, or changes it while rows above the low-water mark have results; or a fenced owner has stored a result"},
	{violationLow, "what a result or claim that is not in stream order says about rows that have their results (`Stage-Low`, `Stage-Ahead`, `Stage-Ahead-From`) is missing or not true"},
	{violationKey, "the key of a result (`Stage-Key`) is missing, or not that of its row"},
	{violationObject, "the object that holds the body of a result (`Stage-Object`) is gone, or is not the one that was stored"},
	{violationNoRowEvent, "the owner of a result has no row event for it"},
	{violationRowEvent, "the row event and the result differ in status or key; where bodies are read, also in any byte (`result_hash`)"},
	{violationNoCallEvent, "fewer call events than the row event counts, or not numbered from 0"},
	{violationCallEvent, "more call events than the row event counts"},
	{violationRetries, "capacity retries in the call events and in the row event differ"},
	{violationTokens, "tokens of any kind in the call events and in the row event differ"},
	{violationCost, "cost in the call events and in the row event differ"},
	{violationRun, "the summary at the end of a run differs from its results and call events"},
	{violationBatch, "the events of a batch at a provider contradict each other or its call events: rows, answers, tokens, cost; or one is missing"},
	{violationCustomID, "a line of a batch answered another row than the one that its custom id names"},
	{violationPaidTwice, "two batches have answered the same row, or two calls of one term the same element of a row"},
	{violationItem, "a row that fans out has a call for an element that its array does not have, with the state id of another one, or for the whole row; or its replies are not as many as the elements"},
	{violationLink, "a result is not made from the row that it names, by the hash of the row's variables in result and row event, the members that it has kept, the row's subject, or all bytes of an error that was passed on"},
	{violationOrigin, "a result does not name the first row of its chain (`Stage-Origin-Stream`, `Stage-Origin-Seq`), or another one"},
	{violationChain, "`Stage-Chain` of a result or claim does not follow from the message before it and from its own bytes, or is missing behind one that has it: one of them was altered, added, moved or removed"},
	{violationDeleted, "the same, and a message between them was deleted from the stream, and has no tombstone"},
	{violationEvent, "a row event is not the one that its result names (`Stage-Event`), or call events are not those that the row event counts (`calls_hash`): not a byte of them may change"},
	{violationErasure, "a result has a tombstone and is still there: its erasure was interrupted"},
	{violationRoot, "a root that was given (`--root`) is not on the chain: the end of the log is gone, or it is another one since"},
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
