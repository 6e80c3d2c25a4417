package sequencer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The scripts in testdata/scripts read as stories of one buffer, and of what comes after its crashes.
// Commands:
//
//	new rows=N bytes=N [span=N] [parked=N] [shared]
//	open seq=(N,…) [key=K] [own] [bytes=N]
//	take seq=(N,…) key=K [bytes=N]      open, or set aside where the key is outside
//	park seq=(N,…) [near]
//	recall seq=(N,…)                    parked rows that their owner wants
//	next                                as many rows as may come back
//	back seq=(N,…)                      rows that come back are here
//	drop seq=(N,…)                      rows that come back no longer exist
//	skip seq=(N,…)
//	complete seq=(N,…) [bytes=N]
//	emit [n=N]
//	crash                               and take over, from what was emitted
//	waits
//
// Each prints what it was answered and then the rows above the low-water mark, the oldest first: N
// still worked on, with its key; +N complete, and waiting for an earlier row of its key; !N ready; =N
// finished; =N? finished in an earlier life and not come again; _N parked; ~N away until its turn is
// near; <N coming back; -N dropped.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := new(story)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			s.step(t, d, &out)
			s.window(&out)
			return out.String()
		})
	})
}

type story struct{ buf *Buffer[string] }

func (s *story) step(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	t.Helper()
	var seqs []uint64
	var bytes, n int
	key := Key{Own: d.HasArg("own")}
	d.MaybeScanArgs(t, "seq", &seqs)
	d.MaybeScanArgs(t, "bytes", &bytes)
	d.MaybeScanArgs(t, "key", &key.Name)
	switch d.Cmd {
	case "new":
		limits := Limits{Bytes: int64(bytes), Shared: d.HasArg("shared")}
		d.ScanArgs(t, "rows", &limits.Rows)
		d.MaybeScanArgs(t, "parked", &limits.Parked)
		limits.Span = limits.Rows + limits.Parked
		d.MaybeScanArgs(t, "span", &limits.Span)
		s.live(t, limits, 0, nil)
	case "next":
		for seq, ok := s.buf.Next(); ok; seq, ok = s.buf.Next() {
			fmt.Fprintf(out, "%d\n", seq)
		}
	case "emit":
		n = s.buf.exit.rows.count
		d.MaybeScanArgs(t, "n", &n)
		s.emit(out, n)
	case "crash":
		mark := s.buf.Mark()
		finished := s.finished()
		if len(finished) != mark.Ahead {
			d.Fatalf(t, "%d rows are ahead, the mark has %d", len(finished), mark.Ahead)
		}
		s.live(t, s.buf.limits, mark.Low, finished)
	case "waits":
		s.waits(out)
	}
	for _, seq := range seqs {
		s.row(t, d, out, seq, key, bytes)
	}
}

// row does what a command says with one row.
func (s *story) row(t *testing.T, d *datadriven.TestData, out *strings.Builder, seq uint64, key Key, bytes int) {
	t.Helper()
	var index, next uint64
	var err error
	what := ""
	switch d.Cmd {
	case "take":
		if s.buf.Outside(key, bytes) {
			what, err = "set aside", s.buf.SetAside(seq, key, bytes, "")
			break
		}
		fallthrough
	case "open":
		index, err = s.buf.Open(seq, key, bytes)
		what = fmt.Sprintf("submit %d", index)
	case "park":
		err = s.buf.Park(seq, "", d.HasArg("near"))
		what = "parked"
	case "recall":
		what = fmt.Sprint("comes back: ", s.buf.Recall(seq))
	case "back":
		index, next, err = s.buf.Return(seq)
		what = fmt.Sprintf("submit %d, next %d", index, next)
	case "drop":
		_, next, err = s.buf.Drop(seq)
		what = fmt.Sprintf("dropped, next %d", next)
	case "skip":
		err = s.buf.Skip(seq)
		what = "skipped"
	case "complete":
		index, err = s.buf.Complete(seq, fmt.Sprintf("reply %d", seq), bytes)
		what = fmt.Sprintf("complete %d", index)
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	switch {
	case errors.Is(err, ErrFull):
		fmt.Fprintf(out, "%d: full\n", seq)
	case err != nil:
		fmt.Fprintf(out, "%v\n", err)
	default:
		fmt.Fprintf(out, "%d: %s\n", seq, what)
	}
}

func (s *story) live(t *testing.T, limits Limits, low uint64, finished []uint64) {
	t.Helper()
	var err error
	if s.buf, err = New[string](limits, low, finished); err != nil {
		t.Fatal(err)
	}
}

func (s *story) emit(out *strings.Builder, n int) {
	i := 0
	for m := range s.buf.Marks(n) {
		e, _ := s.buf.Ready(i)
		fmt.Fprintf(out, "%s (submit %d): low %d, ahead %d\n", e.Value, e.SubmitIndex, m.Low, m.Ahead)
		i++
	}
	s.buf.Release(i)
}

func (s *story) finished() (seqs []uint64) {
	for i := range s.buf.line.places.count {
		if p := s.buf.line.places.at(i); p.slot == none {
			seqs = append(seqs, p.seq)
		}
	}
	return append(seqs, s.buf.line.known...)
}

// waits prints what each row waits for, and the oldest row of all that others wait for.
func (s *story) waits(out *strings.Builder) {
	for i := range s.buf.line.places.count {
		seq := s.buf.line.places.at(i).seq
		if before, ok := s.buf.WaitsFor(seq); ok {
			fmt.Fprintf(out, "%d waits for %d\n", seq, before)
		}
	}
	if seq, key, ok := s.buf.WaitedFor(); ok {
		fmt.Fprintf(out, "%d keys wait, the longest for %d of key %q\n", s.buf.Waiting(), seq, key.Name)
	} else {
		fmt.Fprintf(out, "nobody waits\n")
	}
}

func (s *story) window(out *strings.Builder) {
	m := s.buf.Mark()
	signs := map[state]string{complete: "+", ready: "!", parked: "_", due: "~", returning: "<"}
	var rows []string
	for i := range s.buf.line.places.count {
		p := s.buf.line.places.at(i)
		switch p.slot {
		case none:
			rows = append(rows, fmt.Sprintf("=%d", p.seq))
			continue
		case gone:
			rows = append(rows, fmt.Sprintf("-%d", p.seq))
			continue
		}
		row, name := s.buf.rows.at(p.slot), ""
		if row.queue != none {
			if name = s.buf.keys.at(row.queue).key.Name; name != "" {
				name = ":" + name
			}
		}
		rows = append(rows, fmt.Sprintf("%s%d%s", signs[row.state], p.seq, name))
	}
	for _, seq := range s.buf.line.known {
		rows = append(rows, fmt.Sprintf("=%d?", seq))
	}
	fmt.Fprintf(out, "low %d, ahead %d %v %d of %d complete, %d bytes\n",
		m.Low, m.Ahead, rows, s.buf.Completed(), s.buf.Len(), s.buf.Bytes())
}
