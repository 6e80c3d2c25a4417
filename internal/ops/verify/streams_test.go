package verify

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

func TestVerifyAsksTheAuditWhereTheInputCannotTell(t *testing.T) {
	for _, tt := range []struct {
		name   string
		retain jetstream.RetentionPolicy
		empty  func(b *stagetest.Bench)
	}{
		{"work queue", jetstream.WorkQueuePolicy, nil},
		{"interest", jetstream.InterestPolicy, nil},
		{"expired", jetstream.LimitsPolicy, nil},
		{"deleted", jetstream.LimitsPolicy, func(b *stagetest.Bench) {
			stagetest.Must(b.T, b.JS.DeleteStream(b.T.Context(), "ROWS"))
		}},
		{"re-created", jetstream.LimitsPolicy, func(b *stagetest.Bench) {
			stagetest.Must(b.T, b.JS.DeleteStream(b.T.Context(), "ROWS"))
			if _, err := b.JS.CreateStream(b.T.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}); err != nil {
				b.T.Fatal(err)
			}
			b.Rows(50, "rows.a")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, lose := range []bool{false, true} {
				b := stagetest.NewBench(t, func(s []jetstream.StreamConfig) { s[0].Retention = tt.retain })
				if tt.retain == jetstream.InterestPolicy { // which keeps only what somebody waits for
					_, err := b.JS.CreateConsumer(t.Context(), "ROWS", jetstream.ConsumerConfig{Durable: "stage-0", AckPolicy: jetstream.AckExplicitPolicy})
					if err != nil {
						t.Fatal(err)
					}
				}
				j := b.FinishedJob(20)
				if lose {
					j.Remove(j.ResultOf(7))
					j.Steps[len(j.Steps)-1].Run.Summary.RowsSucceeded--
				}
				b.Store(j)
				if tt.empty != nil {
					tt.empty(b)
				} else if err := b.Stream("ROWS").Purge(t.Context(), jetstream.WithPurgeSequence(18)); err != nil { // as acks and age do
					t.Fatal(err)
				}
				report, text, code := verifyAll(b)
				if lose {
					if code != codeViolated || !strings.Contains(text, "VIOLATION lost: partition 0: row 7 has no result; it is in the audit") {
						t.Errorf("a removed result: got exit code %d:\n%s", code, text)
					}
					continue
				}
				if code != codeProven || !strings.Contains(text, "checked against the audit") || report.Partitions[0].ByAudit < 17 {
					t.Errorf("got exit code %d, %d results by the audit:\n%s", code, report.Partitions[0].ByAudit, text)
				}
			}
		})
	}
}

func TestVerifyCannotTellWithoutInputAndAudit(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(b.FinishedJob(20))
	b.Purge("AUDIT", 25) // to the event of row 10
	b.Purge("ROWS", 6)
	report, text, code := verifyAll(b)
	if code != codeUnproven || report.Verdict != VerdictCannotTell || report.Partitions[0].Unknown != 5 {
		t.Errorf("got exit code %d, %s, %d unknown; want %d, %s, 5:\n%s", code, report.Verdict, report.Partitions[0].Unknown, codeUnproven, VerdictCannotTell, text)
	}
}

func TestVerifyCannotTellWithoutStreams(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name, want string
		plant      func(b *stagetest.Bench)
	}{
		{"no results stream", "stream RESULTS does not exist (STAGE_RESULT_STREAM)", func(b *stagetest.Bench) { b.Drop("RESULTS") }},
		{"no audit stream", "stream AUDIT does not exist (STAGE_AUDIT_STREAM)", func(b *stagetest.Bench) { b.Drop("AUDIT") }},
		{"another name", "stream RESULTS holds nothing of a stage named other", func(b *stagetest.Bench) { b.Cfg.Name = "other" }},
		{"another input", "the results are of stream ROWS, STAGE_INPUT_STREAM is FEED", func(b *stagetest.Bench) {
			b.Cfg.Input.Stream = "FEED"
			stagetest.Value(b.JS.CreateStream(b.T.Context(), jetstream.StreamConfig{Name: "FEED"}))(b.T)
		}},
		{"more partitions", "the stage has served 3 partitions, STAGE_PARTITIONS is 1", func(b *stagetest.Bench) {
			j := b.Job()
			j.Start("run2")
			j.Steps[0].Run.Settings["STAGE_PARTITIONS"] = "3"
			b.Store(j)
		}},
		{"a claim of a newer stage", "the claim at 22 has format 3", func(b *stagetest.Bench) {
			j := b.Job()
			j.Claim("run2.a", 20)
			j.Steps[0].Claim.Version = 3
			b.Store(j)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			b.Store(b.FinishedJob(20))
			tt.plant(b)
			if _, text, code := verifyAll(b); code != codeUnproven || !strings.Contains(text, tt.want) {
				t.Errorf("got exit code %d, want %d and %q:\n%s", code, codeUnproven, tt.want, text)
			}
		})
	}
}

func TestVerifyTellsTheRowsOfANewInputFromThoseOfTheOld(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	old := b.FinishedJob(30)
	b.Drop("ROWS")
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}); err != nil {
		t.Fatal(err)
	}
	b.Rows(10, "rows.a")
	j := b.Job()
	if j.Created.Equal(old.Created) {
		t.Fatal("the stream was not re-created")
	}
	j.Steps, j.Now, j.Calls = old.Steps, old.Now, old.Calls
	j.Start("run2")
	j.Claim("run2.a", 0)
	for seq := uint64(1); seq <= 10; seq++ {
		if seq != 4 {
			j.Answer("run2.a", seq)
		}
	}
	b.Store(j)
	report, text, code := verifyAll(b)
	if code != codeViolated || report.Violations.Count != 1 || !strings.Contains(text, "lost: partition 0: row 4 has no result\n") {
		t.Errorf("got exit code %d, want the lost row 4 of the new input and nothing else:\n%s", code, text)
	}
}

func TestVerifyChecksEachPartition(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Cfg.Streams.Partitions, b.Cfg.Input.Subject = 2, "rows.{partition}.>"
	for range 10 { // odd sequences in partition 0, even ones in partition 1
		b.Rows(1, "rows.0.a")
		b.Rows(1, "rows.1.a")
	}
	j := b.Job()
	for part := range uint64(2) {
		owner := []string{"run1.a", "run1.b"}[part]
		from := len(j.Steps)
		j.Claim(owner, 0)
		for seq := part + 1; seq <= 20; seq += 2 {
			if seq != 8 {
				j.Answer(owner, seq)
			}
		}
		for i := range j.Steps[from:] {
			s := &j.Steps[from+i]
			s.Part = int(part) //nolint:gosec // 0 or 1
			switch {
			case s.Call != nil:
				s.Call.Partition = auditlog.Partition(s.Part)
			case s.Row != nil:
				s.Row.Partition = auditlog.Partition(s.Part)
			case s.Result != nil:
				s.Result.StateID = auditlog.StateID("stage", "ROWS", auditlog.Partition(s.Part), s.Result.Seq)
			}
		}
	}
	b.Store(j)
	report, text, code := verifyAll(b)
	if code != codeViolated || report.Violations.Count != 1 || !strings.Contains(text, "lost: partition 1: row 8 has no result") {
		t.Errorf("got exit code %d, want the lost row 8 of partition 1:\n%s", code, text)
	}
}
