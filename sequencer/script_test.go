package sequencer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The scripts in testdata/scripts read as stories of one buffer. Commands:
//
//	new rows=N bytes=N
//	open seq=(N,…) [bytes=N]
//	complete seq=(N,…) [bytes=N]
//	emit
//
// Each prints what it was answered and then the window: +N complete, N still worked on, the head first. A script that
// begins with keyed is one of a [Keyed], see [keyedStory].
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var b *Buffer[string]
		var k keyedStory
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			if d.Cmd == "keyed" || k.buf != nil {
				k.step(t, d, &out)
				return out.String()
			}
			var seqs []uint64
			var rows, bytes int
			d.MaybeScanArgs(t, "seq", &seqs)
			d.MaybeScanArgs(t, "bytes", &bytes)
			switch d.Cmd {
			case "new":
				d.ScanArgs(t, "rows", &rows)
				b = newBuffer[string](t, rows, int64(bytes))
			case "open":
				for _, seq := range seqs {
					index, err := b.Open(seq, bytes)
					answer(&out, "submit", seq, index, err)
				}
			case "complete":
				for _, seq := range seqs {
					index, err := b.Complete(seq, fmt.Sprintf("reply %d", seq), bytes)
					answer(&out, "complete", seq, index, err)
				}
			case "emit":
				n := 0
				for e, ok := b.Ready(0); ok; e, ok = b.Ready(n) {
					fmt.Fprintf(&out, "%s (submit %d, complete %d)\n", e.Value, e.SubmitIndex, e.CompleteIndex)
					n++
				}
				b.Release(n)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			window(&out, b)
			return out.String()
		})
	})
}

func answer(out *strings.Builder, what string, seq, index uint64, err error) {
	switch {
	case errors.Is(err, ErrFull):
		fmt.Fprintf(out, "%d: full\n", seq)
	case err != nil:
		fmt.Fprintf(out, "%v\n", err)
	default:
		fmt.Fprintf(out, "%d: %s %d\n", seq, what, index)
	}
}

func window(out *strings.Builder, b *Buffer[string]) {
	out.WriteString("window [")
	for i := range b.Len() {
		if i > 0 {
			out.WriteByte(' ')
		}
		if e := b.at(i); e.complete {
			fmt.Fprintf(out, "+%d", e.Seq)
		} else {
			fmt.Fprintf(out, "%d", e.Seq)
		}
	}
	fmt.Fprintf(out, "] %d of %d complete, %d bytes\n", b.Completed(), b.Len(), b.Bytes())
}
