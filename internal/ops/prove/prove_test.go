package prove

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// chained stores a finished job of 20 rows with a chain.
func chained(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	j := b.FinishedJob(20)
	j.Steps[j.ResultOf(6)].Result.Body = []byte(`{"llm_response":"six"}`)
	j.Chain()
	b.Store(j)
	return j
}

func prove(b *stagetest.Bench, o Options) (*proof.File, []byte) {
	b.T.Helper()
	file := stagetest.Value(Row(b.T.Context(), b.JS, b.Cfg, o))(b.T)
	return file, stagetest.Value(json.Marshal(file))(b.T)
}

func rootsOf(b *stagetest.Bench) []proof.Root {
	b.T.Helper()
	var roots []proof.Root
	for _, r := range stagetest.Value(verify.Run(b.T.Context(), b.JS, b.Cfg, b.T.Output()))(b.T).Roots {
		roots = append(roots, *r)
	}
	return roots
}

func TestARowIsProven(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	chained(b)
	roots := rootsOf(b)
	for row := uint64(1); row <= 20; row++ {
		for _, o := range []Options{{Row: row, Partition: -1}, {Row: row, Roots: roots}} {
			_, text := prove(b, o)
			checked, err := proof.CheckFile(text, roots)
			if err != nil {
				t.Fatalf("row %d: %v", row, err)
			}
			if lines := strings.Join(checked.Lines(), "\n"); len(checked.Lacks) > 0 || !strings.Contains(lines, "calls that it took") || !strings.Contains(lines, "one of those given") {
				t.Errorf("row %d: %s", row, lines)
			}
		}
	}
}

// Whatever byte of a proof is changed, it fails, or says the same as before.
func TestNoByteOfAProofMayChange(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	chained(b)
	roots := rootsOf(b)
	want, text := prove(b, Options{Row: 6})
	passed := 0
	every := 1
	if testing.Short() {
		every = 7
	}
	for i := 0; i < len(text); i += every {
		for _, to := range []byte{text[i] ^ 1, 'A'} {
			changed := append([]byte(nil), text...)
			if changed[i] = to; to == text[i] {
				continue
			}
			checked, err := proof.CheckFile(changed, roots)
			if err == nil && !reflect.DeepEqual(checked.File, want) {
				t.Errorf("byte %d, %q in place of %q, passes:\n%s", i, to, text[i], changed)
			}
			if err == nil {
				passed++
			}
		}
	}
	t.Logf("%d changes of %d bytes make no difference", passed, len(text))
}

func TestAProofIsRefused(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	chained(b)
	roots := rootsOf(b)
	for _, tt := range []struct {
		name   string
		change func(f *proof.File)
		want   string
	}{
		{"another row", func(f *proof.File) { f.Row = 7 }, "the message is of stage/ROWS/0/6"},
		{"a header added", func(f *proof.File) { f.Message.Headers["X"] = []string{"y"} }, "does not follow"},
		{"a header of the server added", func(f *proof.File) { f.Message.Headers["Nats-X"] = []string{"y"} }, "no header that counts"},
		{"a header moved into another", func(f *proof.File) {
			f.Message.Headers["Stage-Event"] = []string{f.Message.Headers["Stage-Event"][0] + "\nStage-Source-Subject: rows.a"}
			delete(f.Message.Headers, "Stage-Source-Subject")
		}, "no header that counts"},
		{"no chain", func(f *proof.File) { delete(f.Message.Headers, proof.HeaderChain) }, "has no Stage-Chain"},
		{"another body", func(f *proof.File) { f.Message.Body = []byte("{}") }, "does not follow"},
		{"another event", func(f *proof.File) { f.RowEvent.Data = append(f.RowEvent.Data, ' ') }, "not the one that the message names"},
		{"an event by its hash", func(f *proof.File) {
			hash := proof.HashOf(f.RowEvent.Data)
			f.RowEvent.Recorded = &hash
		}, "has both its bytes and the hash"},
		{"a call removed", func(f *proof.File) { f.Calls[0].Events = f.Calls[0].Events[1:] }, "the 1 calls are not the 2 that the row event counts"},
		{"calls swapped", func(f *proof.File) {
			e := f.Calls[0].Events
			e[0], e[1] = e[1], e[0]
		}, "the 2 calls are not the 2"},
		{"a step removed", func(f *proof.File) { f.Steps = f.Steps[1:] }, "do not lead to the root"},
		{"another root", func(f *proof.File) { f.Root.Chain[0]++ }, "do not lead to the root"},
		{"another row of the root", func(f *proof.File) { f.Root.Row++ }, "none of those that were given"},
		{"another place of the root", func(f *proof.File) { f.Root.Sequence++ }, "none of those that were given"},
		{"another format", func(f *proof.File) { f.Format = "x" }, "its format is"},
	} {
		file, _ := prove(b, Options{Row: 6})
		tt.change(file)
		if _, err := proof.CheckFile(stagetest.Value(json.Marshal(file))(t), roots); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// The last result is a root itself. Its row is known without a root to compare with.
	file, _ := prove(b, Options{Row: 20})
	file.Root.Row = 19
	if _, err := proof.CheckFile(stagetest.Value(json.Marshal(file))(t), nil); len(file.Steps) > 0 || err == nil || !strings.Contains(err.Error(), "names row 19") {
		t.Errorf("another row of the root: %v", err)
	}
	_, text := prove(b, Options{Row: 6})
	for _, twice := range []string{"message", "Message"} { // whichever of the two people look at, it must be the one that was checked
		if _, err := proof.CheckFile([]byte(`{"`+twice+`":{"headers":{},"body":"e30="},`+string(text[1:])), roots); err == nil || !strings.Contains(err.Error(), "twice, or not in lower case") {
			t.Errorf("a second %s: %v", twice, err)
		}
	}
	for text, want := range map[string]string{"": "no proof", "{}": "its format is", `{"other":1}`: "no proof"} {
		if _, err := proof.CheckFile([]byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Without a root to compare with, nothing shows that these were altered, and the check says
// that it has not proven them.
func TestPlaceAndRowOfARootAreNotProvenByThemselves(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	chained(b)
	const said = "not proven: position and row of the root"
	file, _ := prove(b, Options{Row: 6})
	file.Root.Sequence++
	file.Root.Row++
	checked, err := proof.CheckFile(stagetest.Value(json.Marshal(file))(t), nil)
	if err != nil || !strings.Contains(strings.Join(checked.Lines(), "\n"), said) {
		t.Errorf("%v, %v, want %q", checked, err, said)
	}
	_, text := prove(b, Options{Row: 6})
	checked, err = proof.CheckFile(text, rootsOf(b))
	if err != nil || strings.Contains(strings.Join(checked.Lines(), "\n"), said) {
		t.Errorf("with the roots: %v, %v", checked, err)
	}
}

// What is gone is left out, or named as the reason why there is no proof.
func TestAProofNamesWhatIsGone(t *testing.T) {
	t.Run("audit", func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		chained(b)
		b.Drop("AUDIT")
		_, text := prove(b, Options{Row: 7})
		checked, err := proof.CheckFile(text, nil)
		if err != nil || len(checked.Lacks) != 1 {
			t.Errorf("%v, %v", checked, err)
		}
	})
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name, want string
		plant      func(b *stagetest.Bench, j *stagetest.Job)
		o          Options
	}{
		{"no such row", "row 21 has no result", nil, Options{Row: 21}},
		{"no such root", "none of the roots is at or behind", nil, Options{Row: 7, Roots: []proof.Root{{Sequence: 3}}}},
		{"another root", "is not on the chain", nil, Options{Row: 7, Roots: []proof.Root{{Sequence: 15}}}},
		{"a result behind it removed", "message 13 of stream RESULTS does not follow message 11", func(b *stagetest.Bench, _ *stagetest.Job) {
			stagetest.Must(b.T, b.Stream("RESULTS").DeleteMsg(b.T.Context(), 12))
		}, Options{Row: 7}},
		{"the beginning of the log", "does not follow the message before it", func(b *stagetest.Bench, _ *stagetest.Job) { b.Purge("RESULTS", 8) }, Options{Row: 7}},
		{"erased", "row 7 was erased at 2026-11-27 12:00:00Z by somebody", func(b *stagetest.Bench, _ *stagetest.Job) { erase(b, 8) }, Options{Row: 7}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			j := chained(b)
			if tt.plant != nil {
				tt.plant(b, j)
			}
			if _, err := Row(t.Context(), b.JS, b.Cfg, tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestAHeaderThatJSONCannotHoldIsNamed(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := b.FinishedJob(3)
	j.Steps[j.ResultOf(2)].Result.Header = nats.Header{"X-Tag": {"caf\xe9"}}
	j.Chain()
	b.Store(j)
	rootsOf(b) // verify takes it
	const want = "has the header \"X-Tag\" with bytes that are no UTF-8"
	if _, err := Row(t.Context(), b.JS, b.Cfg, Options{Row: 2}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// erase puts a tombstone in the place of a result.
func erase(b *stagetest.Bench, at uint64) {
	b.T.Helper()
	m := stagetest.Value(b.Stream("RESULTS").GetMsg(b.T.Context(), at))(b.T)
	stone := stagetest.Value(proof.NewTombstone(proof.Result, at, m.Header, m.Data))(b.T)
	stone.Who = "somebody"
	stagetest.Must(b.T, stone.At.UnmarshalText([]byte("2026-11-27T12:00:00Z")))
	b.Publish(&nats.Msg{Subject: fmt.Sprintf("results.stage.erased.0.%d", stone.Row), Data: stagetest.Value(json.Marshal(stone))(b.T), Header: nats.Header{streams.HeaderErased: {"x"}}})
	stagetest.Must(b.T, b.Stream("RESULTS").SecureDeleteMsg(b.T.Context(), at))
}

func TestTheStepsLeadOverErasedResults(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	chained(b)
	for _, at := range []uint64{7, 9, 10} {
		erase(b, at)
	}
	file, text := prove(b, Options{Row: 7})
	if _, err := proof.CheckFile(text, rootsOf(b)); err != nil || len(file.Steps) != 13 {
		t.Errorf("%d steps: %v", len(file.Steps), err)
	}
}

// Each of several calls is there, also of elements and of a term before.
func TestTheCallsOfElementsAreProven(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(2, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	j.Item("run1.a", 1, 2, 0, auditlog.CallSuccess)
	j.Item("run1.a", 1, 0, 1, auditlog.CallCapacityRetry)
	j.Item("run1.a", 1, 0, 2, auditlog.CallSuccess)
	j.Row("run1.a", 1, 1, auditlog.SourceCall)
	event := j.Steps[len(j.Steps)-1].Row
	event.Attempts = 2
	j.Result("run1.a", 1)
	of := func(i int) proof.Hash { return proof.HashOf(j.Steps[i].Message(t).Data) }
	var none proof.Hash
	event.CallsHash = none.Calls(none.Calls(of(3)).Calls(of(4))).Calls(none.Calls(of(2))).String()
	j.Chain()
	b.Store(j)
	file, text := prove(b, Options{Row: 1})
	checked, err := proof.CheckFile(text, nil)
	if err != nil || len(file.Calls) != 2 || len(checked.Lacks) > 0 {
		t.Errorf("%d calls, %v, %v", len(file.Calls), checked, err)
	}
	*file.Calls[1].Item = 3
	if _, err := proof.CheckFile(stagetest.Value(json.Marshal(file))(t), nil); err == nil || !strings.Contains(err.Error(), "a call is not for element 3") {
		t.Errorf("the element of a call was changed: %v", err)
	}
	hash := of(2)
	*file.Calls[1].Item, file.Calls[1].Events[0] = 2, proof.Event{Recorded: &hash}
	checked, err = proof.CheckFile(stagetest.Value(json.Marshal(file))(t), nil)
	if err != nil || len(checked.Lacks) != 1 || !strings.Contains(checked.Lacks[0], "the text of 1 of the calls") {
		t.Errorf("a call that was cut: %v, %v", checked, err)
	}
}
