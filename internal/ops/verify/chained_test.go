package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// chainedJob is a finished job of 20 rows with a take-over after row 10, whose log has a chain.
func chainedJob(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	b.Rows(20, "rows.a")
	j := b.Job()
	j.Start("run1")
	for seq := range uint64(20) {
		switch seq {
		case 0:
			j.Claim("run1.a", 0)
		case 10:
			j.Claim("run1.b", 10)
		}
		owner := "run1.a"
		if seq >= 10 {
			owner = "run1.b"
		}
		j.Answer(owner, seq+1)
		j.Steps[len(j.Steps)-1].Result.Header = nats.Header{"X-Tag": {fmt.Sprint(seq)}}
	}
	j.End("run1")
	j.Chain()
	return j
}

func TestVerifyProvesAChain(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(chainedJob(b))
	report, text := proven(b)
	if len(report.Roots) != 1 || report.Roots[0].Sequence != 22 || report.Roots[0].Row != 20 || !strings.Contains(text, "\nroot: partition 0, position 22, row 20, chain "+report.Roots[0].Chain.String()+"\n") {
		t.Errorf("roots %v in:\n%s", report.Roots, text)
	}
}

func resultOf(j *stagetest.Job, seq uint64) *stored.ResultRow { return j.Steps[j.ResultOf(seq)].Result }

func secondClaim(j *stagetest.Job) int {
	return j.Index(func(s stagetest.Step) bool { return s.Claim != nil && s.Claim.Mark == 10 })
}

// chainFaults are what somebody may do to the streams behind the back of the stage.
var chainFaults = []fault{
	{
		"a body altered", func(j *stagetest.Job) { resultOf(j, 7).Body = []byte(`{"response":"better"}`) },
		[]string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 of the results stream, does not follow message 7: one of them was altered, or another was between them"},
	},
	{
		"a header altered", func(j *stagetest.Job) { resultOf(j, 7).Header.Set("X-Tag", "other") },
		[]string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 "},
	},
	{
		"a header added", func(j *stagetest.Job) { resultOf(j, 20).Header.Set("X-Other", "") },
		[]string{"VIOLATION chain_broken: partition 0: the result of row 20, at 22 "},
	},
	{"two bodies swapped", func(j *stagetest.Job) {
		resultOf(j, 7).Body, resultOf(j, 8).Body = []byte(`{"a":1}`), []byte(`{"a":2}`)
		j.Chain()
		resultOf(j, 7).Body, resultOf(j, 8).Body = resultOf(j, 8).Body, resultOf(j, 7).Body
	}, []string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 "}},
	{"two results swapped", func(j *stagetest.Job) {
		one, other := j.ResultOf(7), j.ResultOf(8)
		j.Steps[one], j.Steps[other] = j.Steps[other], j.Steps[one]
		j.Steps[one], j.Steps[other-1] = j.Steps[other-1], j.Steps[one]
	}, []string{"VIOLATION out_of_order", "VIOLATION chain_broken: partition 0: the result of row 8, at 8 "}},
	{"a result removed", func(j *stagetest.Job) {
		j.Remove(j.ResultOf(7))
		j.Steps[len(j.Steps)-1].Run.Summary.RowsSucceeded--
	}, []string{"VIOLATION lost: partition 0: row 7", "VIOLATION chain_broken: partition 0: the result of row 8, at 8 of the results stream, does not follow message 7"}},
	{"a result inserted", func(j *stagetest.Job) {
		i := j.ResultOf(7)
		j.Steps = slices.Insert(j.Steps, i+1, j.Steps[i])
	}, []string{"VIOLATION doubled: partition 0: row 7", "VIOLATION chain_broken: partition 0: the result of row 7, at 9 "}},
	{"a result without a chain", func(j *stagetest.Job) {
		resultOf(j, 7).Header.Del(proof.HeaderChain)
	}, []string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 of the results stream, has no Stage-Chain, and message 7 before it has one"}},
	{"a result with a chain that is none", func(j *stagetest.Job) {
		resultOf(j, 7).Header.Set(proof.HeaderChain, "f00")
	}, []string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 of the results stream, has a wrong Stage-Chain: "}},
	{"a row event altered", func(j *stagetest.Job) {
		j.Steps[j.Row7()].Row.TemplateHash = strings.Repeat("ab", 32)
	}, []string{"VIOLATION event_altered: partition 0: row 7 has another row event of run1.a than the one that its result names (Stage-Event)"}},
	{
		"a call event altered", func(j *stagetest.Job) { j.Steps[j.CallOf(7)].Call.Request = []byte(`{"other":1}`) },
		[]string{"VIOLATION event_altered: partition 0: row 7: its call events are not those that its row event counts (calls_hash)"},
	},
	{"a result and its audit rewritten to match", func(j *stagetest.Job) {
		resultOf(j, 7).Body = []byte(`{"response":"better"}`)
		j.Steps[j.CallOf(7)].Call.Response = []byte(`{"response":"better"}`)
		j.Steps[j.Row7()].Row.CallsHash = ""
		kept := *resultOf(j, 7)
		kept.Header = maps.Clone(resultOf(j, 7).Header)
		chain := kept.Header.Get(proof.HeaderChain)
		all := slices.Clone(j.Steps)
		j.Steps = j.Steps[:j.ResultOf(7)+1]
		j.Chain() // so the row event has the call, and the result the row event
		j.Steps = all
		resultOf(j, 7).Header.Set(proof.HeaderChain, chain)
	}, []string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 "}},
	{"a row event removed with its call", func(j *stagetest.Job) {
		j.Remove(j.CallOf(7))
		j.Remove(j.Row7())
		s := j.Steps[len(j.Steps)-1].Run.Summary
		s.Total.Calls--
		s.Usage[0].Calls--
	}, []string{"VIOLATION row_event_missing: partition 0: row 7", "run_summary_differs"}},
	{"a claim without a chain", func(j *stagetest.Job) {
		j.Steps[secondClaim(j)].Claim.Header.Del(proof.HeaderChain)
	}, []string{"VIOLATION chain_broken: partition 0: the claim at 12 of the results stream has no Stage-Chain, and message 11 before it has one"}},
	{"a claim forged", func(j *stagetest.Job) {
		forged := *j.Steps[secondClaim(j)].Claim
		forged.Owner, forged.Mark = "run1.c", 20
		j.Steps = append(j.Steps, stagetest.Step{Claim: &forged})
	}, []string{"VIOLATION chain_broken: partition 0: the claim at 23 of the results stream does not follow message 22"}},
	{"a claim that begins another chain", func(j *stagetest.Job) {
		forged := *j.Steps[secondClaim(j)].Claim
		forged.Owner, forged.Mark, forged.Header = "run1.c", 20, nil
		fresh := stagetest.Job{Steps: []stagetest.Step{{Claim: &forged}}}
		fresh.Chain()
		j.Steps = append(j.Steps, fresh.Steps...)
	}, []string{"VIOLATION chain_broken: partition 0: the claim at 23 of the results stream does not follow message 22"}},
	{"the first claim removed", func(j *stagetest.Job) {
		j.Remove(j.Index(func(s stagetest.Step) bool { return s.Claim != nil }))
	}, []string{"VIOLATION bad_claim", "VIOLATION chain_broken: partition 0: the result of row 1, at 1 of the results stream, does not begin the chain"}},
}

func TestVerifyFindsWhatBreaksTheChain(t *testing.T) {
	findsFaults(t, chainFaults, chainedJob, verifyAll)
}

// remove deletes a message of a stream.
func remove(b *stagetest.Bench, stream string, at uint64) {
	b.T.Helper()
	stagetest.Must(b.T, b.Stream(stream).SecureDeleteMsg(b.T.Context(), at))
}

// entomb stores the tombstone of a message of the results.
func entomb(b *stagetest.Bench, at uint64, change func(*proof.Tombstone)) {
	b.T.Helper()
	m := stagetest.Value(b.Stream("RESULTS").GetMsg(b.T.Context(), at))(b.T)
	stone := stagetest.Value(proof.NewTombstone(proof.Result, at, m.Header, m.Data))(b.T)
	if change != nil {
		change(stone)
	}
	if stone.At.IsZero() {
		stone.At = time.Now()
	}
	b.Publish(&nats.Msg{Subject: fmt.Sprintf("results.stage.erased.0.%d", stone.Row), Data: stagetest.Value(json.Marshal(stone))(b.T), Header: nats.Header{streams.HeaderErased: {"now"}}})
}

func TestVerifyFindsWhatIsGoneFromTheStreams(t *testing.T) {
	audit := func(b *stagetest.Bench, match func(e *auditlog.Event) bool) {
		b.T.Helper()
		info := b.Stream("AUDIT").CachedInfo().State
		for at := info.FirstSeq; at <= info.LastSeq; at++ {
			m := stagetest.Value(b.Stream("AUDIT").GetMsg(b.T.Context(), at))(b.T)
			if match(stagetest.Value(auditlog.Decode(m.Data))(b.T)) {
				remove(b, "AUDIT", at)
			}
		}
	}
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name  string
		plant func(b *stagetest.Bench)
		want  []string
	}{
		{
			"a result deleted", func(b *stagetest.Bench) { remove(b, "RESULTS", 8) },
			[]string{"VIOLATION deleted: partition 0: the result of row 8, at 9 of the results stream, does not follow message 7", "message 8 of the stream was deleted", "VIOLATION lost: partition 0: row 7"},
		},
		{
			"a claim deleted", func(b *stagetest.Bench) { remove(b, "RESULTS", 12) },
			[]string{"VIOLATION deleted: partition 0: the result of row 11, at 13 of the results stream, does not follow message 11", "VIOLATION bad_claim"},
		},
		{"a call deleted", func(b *stagetest.Bench) {
			audit(b, func(e *auditlog.Event) bool { return e.Call != nil && e.Call.Sequence == 7 })
		}, []string{"VIOLATION call_event_missing: partition 0: row 7"}},
		{"a call deleted with the event of its row", func(b *stagetest.Bench) {
			audit(b, func(e *auditlog.Event) bool {
				return e.Call != nil && e.Call.Sequence == 7 || e.Row != nil && e.Row.Sequence == 7
			})
		}, []string{"VIOLATION row_event_missing: partition 0: row 7"}},
		{
			"a tombstone without its erasure", func(b *stagetest.Bench) { entomb(b, 8, nil) },
			[]string{"VIOLATION erasure_unfinished: partition 0: the result of row 7, at 8 of the results stream, has a tombstone and is still there"},
		},
		{"a tombstone of another result", func(b *stagetest.Bench) {
			entomb(b, 8, func(s *proof.Tombstone) { s.Content[0]++ })
			remove(b, "RESULTS", 8)
		}, []string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 of the results stream, does not follow message 7"}},
		{"a tombstone that says of itself what it likes", func(b *stagetest.Bench) {
			entomb(b, 8, func(s *proof.Tombstone) {
				s.Content[0]++
				s.Chain = proof.Hash{1}
			})
			remove(b, "RESULTS", 8)
		}, []string{"VIOLATION chain_broken: partition 0: the result of row 7, at 8 of", "partition 0: the result of row 8, at 9 of"}},
		{"a tombstone that is none", func(b *stagetest.Bench) {
			b.Publish(&nats.Msg{Subject: "results.stage.erased.0.7", Data: []byte("{}")})
		}, []string{"VIOLATION chain_broken: partition 0: message 23 of the results stream, on results.stage.erased.0.7: a tombstone of row 0: its head is that of no message of a log"}},
		{"the end removed, with its tombstone", func(b *stagetest.Bench) {
			entomb(b, 22, nil)
			remove(b, "RESULTS", 22)
		}, []string{"VIOLATION chain_broken: partition 0: the tombstone of row 20 is of message 22 of the results stream, and the log ends at 21"}},
		{"a message that is neither result nor claim", func(b *stagetest.Bench) {
			b.Publish(&nats.Msg{Subject: "results.stage.0.other", Header: nats.Header{streams.HeaderSourceSeq: {"20"}}})
		}, []string{"VIOLATION chain_broken: partition 0: the results stream has 1 messages on results.stage.0.other, which are neither results nor claims"}},
		{"a call event altered that claims to be what an erasure has left", func(b *stagetest.Bench) {
			replaceCall(b, nats.Header{streams.HeaderErased: {"now"}}, func(c *auditlog.Call) { c.Request = []byte(`{"other":1}`) })
		}, []string{"VIOLATION event_altered: partition 0: row 7: its call events are not those that its row event counts (calls_hash)"}},
		{"a call event altered that carries the hash of the original", func(b *stagetest.Bench) {
			replaceCall(b, nil, func(c *auditlog.Call) { c.Request = []byte(`{"other":1}`) })
		}, []string{"VIOLATION event_altered: partition 0: row 7: its call events are not those that its row event counts (calls_hash)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			b.Store(chainedJob(b))
			tt.plant(b)
			report, text, code := verifyAll(b)
			for _, want := range tt.want {
				if code != codeViolated || !strings.Contains(text, want) {
					t.Errorf("got exit code %d, want %q in:\n%s", code, want, text)
				}
			}
			if len(report.Violations.ByKind) > len(tt.want) {
				t.Errorf("more violations than %q:\n%s", tt.want, text)
			}
		})
	}
}

func TestATombstoneStandsForAnErasedResult(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(chainedJob(b))
	var before Report
	if r, _ := proven(b); len(r.Roots) == 1 {
		before = *r
	}
	for _, at := range []uint64{2, 8, 9, 11} {
		entomb(b, at, nil)
		remove(b, "RESULTS", at)
	}
	report, text := proven(b)
	if report.Erased != 4 || !strings.Contains(text, "\nerased: 4 results") || report.Partitions[0].Results != 20 || *report.Roots[0] != *before.Roots[0] {
		t.Errorf("%d erased, %v:\n%s", report.Erased, report.Roots, text)
	}
}

// replaceCall stores the audit again, with another call event of row 7 that carries the
// hash of the one that was recorded.
func replaceCall(b *stagetest.Bench, header nats.Header, change func(*auditlog.Call)) {
	b.T.Helper()
	audit := b.Stream("AUDIT")
	info := audit.CachedInfo()
	var all []*nats.Msg
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m := stagetest.Value(audit.GetMsg(b.T.Context(), seq))(b.T)
		one := &nats.Msg{Subject: m.Subject, Data: m.Data}
		if e := stagetest.Value(auditlog.Decode(m.Data))(b.T); e.Call != nil && e.Call.Sequence == 7 {
			one.Header = nats.Header{proof.HeaderRecorded: {proof.HashOf(m.Data).String()}}
			maps.Copy(one.Header, header)
			change(e.Call)
			one.Data = e.Call.AppendJSON(nil, auditlog.PayloadsFull, 0)
		}
		all = append(all, one)
	}
	stagetest.Must(b.T, audit.Purge(b.T.Context()))
	for _, m := range all {
		b.Publish(m)
	}
}

// In the chain only the object counts, so a body that is added to its message breaks nothing.
func TestAResultHasNoBodyBesideItsObject(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	stagetest.Value(b.JS.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "LARGE", Storage: jetstream.MemoryStorage}))(t)
	ref := stagetest.Value(objects.Put(t.Context(), b.NC, "LARGE", "stage/0/7/x", []byte("{}")))(t)
	j := b.FinishedJob(20)
	header := make(nats.Header)
	ref.Set(header)
	resultOf(j, 7).Header, resultOf(j, 7).Body = header, []byte(`{"response":"better"}`)
	j.Steps[j.Row7()].Row.ResultHash = llm.Hash([]byte("{}"))
	j.Chain()
	b.Store(j)
	const want = "VIOLATION chain_broken: partition 0: the result of row 7, at 8 of the results stream, has a body of its own beside the object that it names"
	if report, text, code := verifyAll(b); code != codeViolated || !strings.Contains(text, want) || len(report.Violations.ByKind) > 1 {
		t.Errorf("want %q in:\n%s", want, text)
	}
}

func TestVerifyNotesEventsThatWereCut(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(chainedJob(b))
	replaceCall(b, nil, func(c *auditlog.Call) { c.Request, c.Response, c.Truncated = nil, nil, true })
	if _, text, _ := verifyAll(b); strings.Contains(text, "VIOLATION") || !strings.Contains(text, "1 events of stream AUDIT are stored shorter than they were recorded") {
		t.Error(text)
	}
}

// A tombstone of what is not gone explains nothing that is.
func TestATombstoneExplainsOnlyItsOwnMessage(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := chainedJob(b)
	j.Steps = j.Steps[:len(j.Steps)-1]                              // the end of the run, which counts the results
	b.Publish(&nats.Msg{Subject: "results.stage.load.ROWS.rows.a"}) // at 1, before the log
	b.Store(j)
	entomb(b, 3, func(s *proof.Tombstone) { s.Sequence = 1 })
	remove(b, "RESULTS", 23)
	if _, text, code := verifyAll(b); code != codeUnproven {
		t.Errorf("exit code %d, though the end is gone:\n%s", code, text)
	}
}

// rootsIn are those that verify prints, as it prints them.
func rootsIn(t *testing.T, b *stagetest.Bench) []Root {
	t.Helper()
	report, text := proven(b)
	roots := stagetest.Value(proof.ReadRoots([]byte(text)))(t)
	if again := stagetest.Value(proof.ReadRoots(stagetest.Value(json.Marshal(report))(t)))(t); !slices.Equal(roots, again) || len(roots) != 1 {
		t.Errorf("roots %v in the text, %v in the JSON", roots, again)
	}
	return roots
}

// copied returns steps that a test may change, and leave the others as they are.
func copied(steps []stagetest.Step) []stagetest.Step {
	steps = slices.Clone(steps)
	for i := range steps {
		switch s := &steps[i]; {
		case s.Result != nil:
			r := *s.Result
			r.Header = maps.Clone(r.Header)
			s.Result = &r
		case s.Claim != nil:
			c := *s.Claim
			c.Header = maps.Clone(c.Header)
			s.Claim = &c
		case s.Row != nil:
			r := *s.Row
			s.Row = &r
		}
	}
	return steps
}

func TestARootProvesWhatWasThereBefore(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := chainedJob(b)
	full := slices.Clone(j.Steps)
	upTo := func(j *stagetest.Job, seq uint64) {
		j.Steps = j.Steps[:j.ResultOf(seq)+1]
		j.End("run1")
	}
	upTo(j, 15)
	b.Store(j)
	roots := rootsIn(t, b)
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name  string
		plant func(j *stagetest.Job)
		want  string // or empty if it is proven
	}{
		{"the same log", func(j *stagetest.Job) { upTo(j, 15) }, ""},
		{"a longer log", func(*stagetest.Job) {}, ""},
		{"the tail cut off", func(j *stagetest.Job) { upTo(j, 10) }, "root_differs: partition 0: the root at 17 of the results stream is behind the end of the log, at 11: its end is gone"},
		{"another history since a backup", func(j *stagetest.Job) {
			j.Steps = j.Steps[:j.ResultOf(10)+1]
			j.Claim("run1.c", 10)
			for seq := uint64(11); seq <= 20; seq++ {
				j.Answer("run1.c", seq)
			}
			j.End("run1")
			j.Chain()
		}, "root_differs: partition 0: message 17 of the results stream has the chain "},
		{"all rewritten to match", func(j *stagetest.Job) {
			resultOf(j, 7).Body = []byte(`{"response":"better"}`)
			j.Chain()
		}, "root_differs: partition 0: message 17 of the results stream has the chain "},
		{"nothing is left", func(j *stagetest.Job) { j.Steps = nil }, "root_differs: partition 0: the root at 17 of the results stream is in no log"},
		{"a log without a chain", func(j *stagetest.Job) {
			for i := range j.Steps {
				switch s := &j.Steps[i]; {
				case s.Claim != nil:
					s.Claim.Header = nil
				case s.Result != nil:
					s.Result.Header = nil
				}
			}
		}, "root_differs: partition 0: the root at 17 of the results stream"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			b.Rows(20, "rows.a")
			again := b.Job()
			again.Steps = copied(full)
			tt.plant(again)
			b.Store(again)
			report, text, code := verifyWith(b, Options{Roots: roots})
			switch {
			case tt.want == "" && (code != codeProven || report.RootsFound != 1):
				t.Errorf("the root was not found, code %d:\n%s", code, text)
			case tt.want != "" && (code != codeViolated || !strings.Contains(text, tt.want)):
				t.Errorf("got exit code %d, want %q in:\n%s", code, tt.want, text)
			}
		})
	}
}

func TestRootsAreReadFromWhatVerifyPrints(t *testing.T) {
	for printed, want := range map[string]string{
		"":            "it has no root",
		"{}":          "it has no root",
		"{\"roots\":": "no report of verify",
		"root: partition 0, position 1, row 1, chain 00": "it has no root",
	} {
		if _, err := proof.ReadRoots([]byte(printed)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", printed, err, want)
		}
	}
}

// A log that an older version began has a chain from the first claim of a newer one on.
func TestAChainBeginsBehindAnOlderVersion(t *testing.T) {
	split := func(j *stagetest.Job) *stagetest.Job {
		for i := range j.Steps { // as the older version left it
			switch s := &j.Steps[i]; {
			case s.Claim != nil:
				s.Claim.Header = nil
			case s.Result != nil:
				s.Result.Header = nil
			case s.Row != nil:
				s.Row.Salt, s.Row.CallsHash = "", ""
			}
		}
		rest := *j
		rest.Steps = slices.Clone(j.Steps[secondClaim(j):])
		rest.Chain()
		j.Steps = append(j.Steps[:secondClaim(j)], rest.Steps...)
		return j
	}
	b := stagetest.NewBench(t, nil)
	b.Store(split(chainedJob(b)))
	if report, text := proven(b); len(report.Roots) != 1 {
		t.Errorf("no root:\n%s", text)
	}
	findsFaults(t, []fault{
		{"the older version comes back", func(j *stagetest.Job) {
			j.Claim("run1.c", 20)
		}, []string{"chain_broken: partition 0: the claim at 23 of the results stream has no Stage-Chain, and message 22"}},
		{"the chain begins with a result", func(j *stagetest.Job) {
			j.Steps[secondClaim(j)].Claim.Header = nil
		}, []string{"chain_broken: partition 0: the result of row 11, at 13 of the results stream, does not begin the chain"}},
	}, func(b *stagetest.Bench) *stagetest.Job { return split(chainedJob(b)) }, verifyAll)
}

// What is left of an event is checked in the place of the event, however late it was erased.
func TestACopyOfAnEventStandsInItsPlace(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := b.FinishedJob(300) // more than rows may have events ahead of the result that is checked
	j.Chain()
	b.Store(j)
	entomb(b, 4, nil)
	remove(b, "RESULTS", 4)
	at := uint64(0)
	info := b.Stream("AUDIT").CachedInfo().State
	for seq := info.FirstSeq; seq <= info.LastSeq && at == 0; seq++ {
		m := stagetest.Value(b.Stream("AUDIT").GetMsg(t.Context(), seq))(t)
		if e := stagetest.Value(auditlog.Decode(m.Data))(t); e.Call != nil && e.Call.Sequence > 4 && e.Call.Usage == nil {
			at = seq
			e.Call.Error = "its text is gone"
			e.Call.Rows = []uint64{e.Call.Sequence, 3} // the row that was erased had shared it
			b.Publish(&nats.Msg{Subject: m.Subject, Data: e.Call.AppendJSON(nil, auditlog.PayloadsFull, 0), Header: nats.Header{
				streams.HeaderErased: {"now"}, streams.HeaderErasedSeq: {fmt.Sprint(seq)}, proof.HeaderRecorded: {proof.HashOf(m.Data).String()},
			}})
		}
	}
	if report, text := proven(b); report.Erased != 1 { // the original is still there, too
		t.Error(text)
	}
	remove(b, "AUDIT", at)
	if report, text := proven(b); report.Erased != 1 {
		t.Error(text)
	}
}

// Stages may share their streams. What one of them has erased is no loss of another.
func TestAnErasureOfAnotherStageIsNoLoss(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(chainedJob(b))
	last := func(stream string) uint64 {
		return stagetest.Value(b.Stream(stream).Info(t.Context()))(t).State.LastSeq
	}
	head := nats.Header{streams.HeaderSourceSeq: {"1"}}
	b.Publish(&nats.Msg{Subject: "results.other.0.rows", Header: head})
	at := last("RESULTS")
	stone := proof.Tombstone{Row: 1, Sequence: at, Head: proof.Head(proof.Result, head)}
	b.Publish(&nats.Msg{Subject: "results.other.erased.0.1", Data: stagetest.Value(json.Marshal(stone))(t)})
	b.Publish(&nats.Msg{Subject: "audit.other.0.call", Data: []byte("{}")})
	event := last("AUDIT")
	b.Publish(&nats.Msg{Subject: "audit.other.0.call", Data: []byte("{}"), Header: nats.Header{streams.HeaderErasedSeq: {fmt.Sprint(event)}}})
	remove(b, "RESULTS", at)
	remove(b, "AUDIT", event)
	if report, text := proven(b); report.Erased != 0 {
		t.Error(text)
	}
}

// Whether the message before was deleted only the server knows. Where it does not say so,
// that is no answer.
func TestAServerThatDoesNotAnswerIsNoVerdict(t *testing.T) {
	for name, plant := range map[string]func(b *stagetest.Bench){
		"a result deleted": func(b *stagetest.Bench) { remove(b, "RESULTS", 8) },
		"a result erased": func(b *stagetest.Bench) {
			entomb(b, 8, nil)
			remove(b, "RESULTS", 8)
		},
	} {
		b := stagetest.NewBench(t, nil)
		b.Store(chainedJob(b))
		plant(b)
		js := &silentServer{JetStream: b.JS, stream: "RESULTS", answers: 2} // where the stream ends, and its subjects
		report, err := RunWith(t.Context(), js, b.Cfg, Options{}, io.Discard)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got the report %+v and error %v, want %v", name, report, err, context.DeadlineExceeded)
		}
	}
}

// silentServer answers only so many looks at a stream.
type silentServer struct {
	jetstream.JetStream
	stream  string
	answers int
}

func (s *silentServer) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if name == s.stream {
		if s.answers--; s.answers < 0 {
			return nil, context.DeadlineExceeded
		}
	}
	return s.JetStream.Stream(ctx, name)
}
