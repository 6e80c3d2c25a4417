package sequencer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// keyedStory is a script of one [Keyed], and of what comes after its crashes. Commands:
//
//	keyed rows=N bytes=N span=N [reserve=N]
//	open seq=(N,…) [key=K] [bytes=N]    without a key: in no order
//	take seq=(N,…) key=K [bytes=N]      open, or set aside where the key is outside
//	recall                              as many rows as may be on their way back
//	back seq=(N,…)                      rows that were recalled
//	drop seq=(N,…)                      rows that were recalled and no longer exist
//	skip seq=(N,…)
//	complete seq=(N,…) [bytes=N]
//	emit [n=N]
//	crash                               and take over, from what was emitted
//	waits
//
// Each prints what it was answered and then the rows above the low-water mark, the oldest first: N still worked on, with
// its key; +N complete, and waiting for an earlier row of its key; !N ready; =N finished; =N? finished in an earlier life
// and not come again; ~N set aside; <N recalled; -N dropped.
type keyedStory struct {
	buf  *Keyed[string]
	open map[uint64]string // keys of the rows that are open
}

func (k *keyedStory) step(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	t.Helper()
	var seqs []uint64
	var bytes, n int
	d.MaybeScanArgs(t, "seq", &seqs)
	d.MaybeScanArgs(t, "bytes", &bytes)
	switch d.Cmd {
	case "keyed":
		limits, span := Limits{Bytes: int64(bytes)}, 0
		d.ScanArgs(t, "rows", &limits.Rows)
		d.ScanArgs(t, "span", &span)
		k.live(t, limits, span, 0, nil)
		d.MaybeScanArgs(t, "reserve", &n)
		k.buf.Reserve(Limits{Rows: n})
	case "open":
		for _, seq := range seqs {
			index, err := k.take(t, d, seq, bytes)
			answer(out, "submit", seq, index, err)
		}
	case "take":
		for _, seq := range seqs {
			k.takeOrSetAside(t, d, out, seq, bytes)
		}
	case "recall":
		for seq, ok := k.buf.Recall(); ok; seq, ok = k.buf.Recall() {
			fmt.Fprintf(out, "%d\n", seq)
		}
	case "back", "drop":
		for _, seq := range seqs {
			k.back(out, seq, d.Cmd == "drop")
		}
	case "skip":
		for _, seq := range seqs {
			if err := k.buf.Skip(seq); err != nil {
				fmt.Fprintln(out, err)
			}
		}
	case "complete":
		for _, seq := range seqs {
			index, err := k.buf.Complete(seq, fmt.Sprintf("reply %d", seq), bytes)
			answer(out, "complete", seq, index, err)
		}
	case "emit":
		n = k.buf.ready.count
		d.MaybeScanArgs(t, "n", &n)
		k.emit(out, n)
	case "crash":
		mark := k.buf.Mark()
		finished := append(k.finished(), k.buf.known...)
		if len(finished) != mark.Ahead {
			d.Fatalf(t, "%d rows are ahead, the mark has %d", len(finished), mark.Ahead)
		}
		reserve := k.buf.reserve
		k.live(t, k.buf.limits, k.buf.span, mark.Low, finished)
		k.buf.Reserve(reserve)
	case "waits":
		k.waits(out)
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	k.window(out)
}

func (k *keyedStory) live(t *testing.T, limits Limits, span int, low uint64, finished []uint64) {
	t.Helper()
	var err error
	if k.buf, err = NewKeyed[string](limits, span, low, finished); err != nil {
		t.Fatal(err)
	}
	k.open = map[uint64]string{}
}

func (k *keyedStory) take(t *testing.T, d *datadriven.TestData, seq uint64, bytes int) (index uint64, err error) {
	t.Helper()
	if !d.HasArg("key") {
		return k.buf.OpenFree(seq, bytes)
	}
	var key string
	d.ScanArgs(t, "key", &key)
	if index, err = k.buf.Open(seq, key, bytes); err == nil {
		k.open[seq] = ":" + key
	}
	return index, err
}

func (k *keyedStory) takeOrSetAside(t *testing.T, d *datadriven.TestData, out *strings.Builder, seq uint64, bytes int) {
	t.Helper()
	var key string
	d.ScanArgs(t, "key", &key)
	if !k.buf.Outside(key, bytes) {
		index, err := k.take(t, d, seq, bytes)
		answer(out, "submit", seq, index, err)
		return
	}
	if err := k.buf.SetAside(seq, key, bytes, fmt.Sprint("note ", seq)); err != nil {
		answer(out, "", seq, 0, err)
		return
	}
	k.open[seq] = ":" + key
	fmt.Fprintf(out, "%d: set aside\n", seq)
}

func (k *keyedStory) back(out *strings.Builder, seq uint64, drop bool) {
	var index, next uint64
	var note string
	var err error
	if drop {
		next, err = k.buf.Drop(seq)
	} else {
		index, note, next, err = k.buf.Reopen(seq)
	}
	switch {
	case err != nil:
		fmt.Fprintln(out, err)
	case drop:
		fmt.Fprintf(out, "%d: dropped, next %d\n", seq, next)
	default:
		fmt.Fprintf(out, "%d: submit %d, %s, next %d\n", seq, index, note, next)
	}
}

func (k *keyedStory) emit(out *strings.Builder, n int) {
	i := 0
	for m := range k.buf.Marks(n) {
		e, _ := k.buf.Ready(i)
		fmt.Fprintf(out, "%s (submit %d, complete %d): low %d, ahead %d\n", e.Value, e.SubmitIndex, e.CompleteIndex, m.Low, m.Ahead)
		i++
	}
	k.buf.Release(i)
}

func (k *keyedStory) finished() (seqs []uint64) {
	for i := range k.buf.places.count {
		if p := k.buf.places.at(i); p.slot == none {
			seqs = append(seqs, p.seq)
		}
	}
	return seqs
}

// waits prints what each row waits for, and the oldest row of all that others wait for.
func (k *keyedStory) waits(out *strings.Builder) {
	for i := range k.buf.places.count {
		seq := k.buf.places.at(i).seq
		if before, ok := k.buf.WaitsFor(seq); ok {
			fmt.Fprintf(out, "%d waits for %d\n", seq, before)
		}
	}
	if seq, key, ok := k.buf.WaitedFor(); ok {
		fmt.Fprintf(out, "%d keys wait, the longest for %d of key %q\n", k.buf.Waiting(), seq, key)
	} else {
		fmt.Fprintf(out, "nobody waits\n")
	}
}

func (k *keyedStory) window(out *strings.Builder) {
	m := k.buf.Mark()
	var rows []string
	for i := range k.buf.places.count {
		p := k.buf.places.at(i)
		switch {
		case p.slot == none:
			rows = append(rows, fmt.Sprintf("=%d", p.seq))
		case p.slot == gone:
			rows = append(rows, fmt.Sprintf("-%d", p.seq))
		case p.slot < gone && k.recalled(placeOf(p.slot)):
			rows = append(rows, fmt.Sprintf("<%d%s", p.seq, k.open[p.seq]))
		case p.slot < gone:
			rows = append(rows, fmt.Sprintf("~%d%s", p.seq, k.open[p.seq]))
		case k.buf.slots[p.slot].exit > 0:
			rows = append(rows, fmt.Sprintf("!%d", p.seq))
		case k.buf.slots[p.slot].complete:
			rows = append(rows, fmt.Sprintf("+%d%s", p.seq, k.open[p.seq]))
		default:
			rows = append(rows, fmt.Sprintf("%d%s", p.seq, k.open[p.seq]))
		}
	}
	for _, seq := range k.buf.known {
		rows = append(rows, fmt.Sprintf("=%d?", seq))
	}
	fmt.Fprintf(out, "low %d, ahead %d %v %d of %d complete, %d bytes\n",
		m.Low, m.Ahead, rows, k.buf.Completed(), k.buf.Len(), k.buf.Bytes())
}

// recalled reports whether a row that is set aside is on its way back.
func (k *keyedStory) recalled(number int32) bool {
	q := k.buf.queues[k.buf.asides.slots[number].queue].aside
	for n := q.first; n != q.next; n = k.buf.asides.slots[n].next {
		if n == number {
			return true
		}
	}
	return false
}
