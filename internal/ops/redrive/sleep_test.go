package redrive

import (
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestARedriveThatSleepsPublishesNothingTwice suspends one of two redrives at each step,
// for longer than the server knows message ids.
func TestARedriveThatSleepsPublishesNothingTwice(t *testing.T) {
	// Steps of the first redrive are in upper case, those of the second in lower case: B
	// begins, S publishes some rows, P publishes the rest, F finishes; M reads the marks
	// some time before B. r is a whole redrive, o a row of another publisher, x purges
	// the input, and a blank is a sleep.
	all := []string{
		"B r PF", "B r o PF", "B o r PF", "BS r PF", "BS o r PF", "BSo r PF", "BP r F",
		"Bb P pf F", "Bb p PF f", "Bb S p PF f", "Bb s PF pf", "BSb P p f F", "BSb p P f F", "B bo P pf F", "Bb o Pp F f",
		"Bm P b pf F", "Bm o P b F pf", "B r x PF", "BS r x PF",
	}
	for i := 0; i < len(all); i += stagetest.Stride(4) {
		steps := all[i]
		for _, batches := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/batches=%v", steps, batches), func(t *testing.T) {
				stagetest.Virtual(t, func(t *testing.T) { playRedrives(t, steps, batches) })
			})
		}
	}
}

func playRedrives(t *testing.T, steps string, batches bool) {
	t.Helper()
	const failed = 5
	b := newRedriveBench(t)
	if _, err := b.JS.UpdateStream(t.Context(), jetstream.StreamConfig{
		Name: "ROWS", Subjects: []string{"rows.>", "other.>"}, Storage: jetstream.MemoryStorage, AllowAtomicPublish: batches,
	}); err != nil {
		t.Fatal(err)
	}
	var ats []uint64
	for n := range failed {
		ats = append(ats, b.fail("refused", &nats.Msg{Subject: "rows.a", Data: fmt.Appendf(nil, `{"n":%d}`, n+1)}))
	}
	type sleeper struct {
		*redriver
		rows []*redriveRow
	}
	read := func(s *sleeper) {
		s.redriver = b.redriver()
		var err error
		if s.marks, err = s.readMarks(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.rows = b.rowsOf(s.redriver, ats)
		for _, row := range s.rows {
			row.begun = s.marks.begun[row.at]
		}
	}
	count := make(map[string]int)
	tally := func() {
		for _, m := range b.stored("ROWS", failed+1) {
			if m.Header.Get(streams.HeaderRedriveOf) != "" {
				count[string(m.Data)]++
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	var first, second sleeper
	for _, step := range steps {
		s := &first
		if step >= 'a' {
			s, step = &second, step-'a'+'A'
		}
		switch step {
		case 'M':
			read(s)
		case 'B':
			if s.redriver == nil {
				read(s)
			}
			var err error
			s.rows, err = s.begin(t.Context(), s.rows)
			must(err)
		case 'S':
			must(s.publishRows(t.Context(), s.rows[:2]))
		case 'P':
			must(s.publishRows(t.Context(), s.rows))
		case 'F':
			must(s.finish(t.Context(), s.rows))
		case 'R':
			b.redrive(Options{})
		case 'X':
			tally()
			must(b.Stream("ROWS").Purge(t.Context()))
		case 'O':
			b.Publish(&nats.Msg{Subject: "other.a", Data: []byte("other")})
		default:
			time.Sleep(3 * time.Minute)
		}
	}
	b.redrive(Options{})
	tally()
	for n := range failed {
		if row := fmt.Sprintf(`{"n":%d}`, n+1); count[row] != 1 {
			t.Errorf("row %s was published again %d times", row, count[row])
		}
	}
	want(t, b.redrive(Options{}), "0 rows published again, of 5 failed results; 5 were redriven before\n")
}

// stored returns the messages of a stream from a sequence on.
func (b *redriveBench) stored(stream string, from uint64) (msgs []*jetstream.RawStreamMsg) {
	b.T.Helper()
	for {
		m := stagetest.Value(streams.NextMessage(b.T.Context(), b.NC, stream, ">", from))(b.T)
		if m == nil {
			return msgs
		}
		msgs, from = append(msgs, m), m.Sequence+1
	}
}
