package verify

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// The counters of a real stream must show what was removed from it, however that was done.
func TestVerifyCannotTellAfterAPurge(t *testing.T) {
	audit := func(s []jetstream.StreamConfig) { s[2].MaxAge = 720 * time.Hour }
	for _, tt := range []struct {
		name   string
		change func([]jetstream.StreamConfig)
		remove func(b *stagetest.Bench)
		want   []string
	}{
		{"old results", nil, func(b *stagetest.Bench) { b.Purge("RESULTS", 6) }, []string{
			"partition 0: the results begin in the middle, after row 4; earlier ones, of 4 rows that the other streams still have, are gone from stream RESULTS: none of its settings removes them",
			"run run1: 16 results are left, its summary says 20",
		}},
		{"all results", nil, func(b *stagetest.Bench) { b.Purge("RESULTS", 0) }, []string{
			"stream RESULTS holds nothing of a stage named stage on results, and messages of the stream are gone: none of its settings",
		}},
		{"the whole audit", audit, func(b *stagetest.Bench) { b.Purge("AUDIT", 0) }, []string{
			"all 48 messages of stream AUDIT are gone: with a max age of 720h0m0s and created ",
			"partition 0: the audit of 20 results is gone, and it is too young to have expired",
		}},
		{"the beginning of the audit", audit, func(b *stagetest.Bench) { b.Purge("AUDIT", 25) }, []string{
			"the first 24 messages of stream AUDIT are gone: with a max age of 720h0m0s and created ",
			"partition 0: the audit of 10 results is gone, and it is too young",
			"run run1: its beginning is no longer in the audit and can't have expired",
		}},
		{"an event in the middle", nil, func(b *stagetest.Bench) {
			stagetest.Must(t, b.Stream("AUDIT").DeleteMsg(t.Context(), 9))
		}, []string{"stream AUDIT lacks 1 messages after its first one: none of its settings removes them, so they were purged or deleted"}},
		{"all row events", func(s []jetstream.StreamConfig) { s[2].MaxMsgsPerSubject = 5 }, func(*stagetest.Bench) {}, []string{
			"after its first one: it keeps only 5 messages a subject",
		}},
		{"the last result", nil, func(b *stagetest.Bench) {
			stagetest.Must(t, b.Stream("RESULTS").DeleteMsg(t.Context(), 21))
		}, []string{"stream RESULTS lacks 1 messages after its first one, which may have been results of rows of which nothing else has a record"}},
		{"the audit stream, and created again", nil, func(b *stagetest.Bench) {
			b.Drop("AUDIT")
			if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"audit.>"}}); err != nil {
				t.Fatal(err)
			}
		}, []string{"stream AUDIT was created at ", "partition 0: the audit of 20 results is gone"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := stagetest.NewBench(t, tt.change)
			b.Store(b.FinishedJob(20))
			tt.remove(b)
			_, text, code := verifyAll(b)
			if code != codeUnproven {
				t.Errorf("got exit code %d, want %d:\n%s", code, codeUnproven, text)
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("want %q in:\n%s", want, text)
				}
			}
		})
	}
}

// A stream from which nothing was removed can't have lost its beginning.
func TestVerifyWantsAClaimAtTheBeginning(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := b.FinishedJob(20)
	j.Remove(j.Index(func(s stagetest.Step) bool { return s.Claim != nil }))
	b.Store(j)
	if _, text, code := verifyAll(b); code != codeViolated || !strings.Contains(text, "bad_claim: partition 0: the log begins with the result of row 1, at 1 of the results stream") {
		t.Errorf("got exit code %d, want %d:\n%s", code, codeViolated, text)
	}
}
