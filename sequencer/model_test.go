package sequencer

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is the dumbest buffer that is right: a slice of rows in order, searched from the front.
type model struct {
	limits           Limits
	rows             []Entry[int]
	last, sub, compl uint64
}

func (m *model) bytes() (sum int64) {
	for _, r := range m.rows {
		sum += int64(r.Bytes)
	}
	return sum
}

func (m *model) ready() int {
	n := slices.IndexFunc(m.rows, func(r Entry[int]) bool { return !r.complete })
	if n < 0 {
		return len(m.rows)
	}
	return n
}

func (m *model) full(bytes int) bool {
	return len(m.rows) > 0 && (len(m.rows) >= m.limits.Rows || m.bytes()+int64(bytes) > m.limits.Bytes)
}

func (m *model) open(seq uint64, bytes int) (uint64, error) {
	if seq <= m.last {
		return 0, ErrOutOfOrder
	}
	if m.full(bytes) {
		return 0, ErrFull
	}
	m.last = seq
	m.rows = append(m.rows, Entry[int]{Seq: seq, SubmitIndex: m.sub, Bytes: bytes})
	m.sub++
	return m.sub - 1, nil
}

func (m *model) complete(seq uint64, v, bytes int) (uint64, error) {
	for i := range m.rows {
		r := &m.rows[i]
		switch {
		case r.Seq != seq:
		case r.complete:
			return 0, ErrCompleted
		default:
			r.Value, r.Bytes, r.CompleteIndex, r.complete = v, bytes, m.compl, true
			m.compl++
			return r.CompleteIndex, nil
		}
	}
	return 0, ErrNotOpen
}

// Every step of a drawn run answers as the model does, and what can be seen of the buffer is what the model holds.
func TestBufferBehavesLikeASortedSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			Rows:  rapid.IntRange(1, 40).Draw(t, "rows"),
			Bytes: rapid.Int64Range(1, 200).Draw(t, "bytes"),
		}
		b, err := New[int](limits)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{limits: limits}
		weight := rapid.OneOf(rapid.IntRange(0, 8), rapid.IntRange(0, 250))
		held := func(t *rapid.T) uint64 { // mostly a row that is there
			if len(m.rows) > 0 && rapid.IntRange(0, 9).Draw(t, "foreign") > 0 {
				return rapid.SampledFrom(m.rows).Draw(t, "row").Seq
			}
			return rapid.Uint64Range(0, m.last+2).Draw(t, "seq")
		}
		same := func(t *rapid.T, what string, got, want uint64, gotErr, wantErr error) {
			if got != want || !errors.Is(gotErr, wantErr) {
				t.Fatalf("%s: got %d, %v, want %d, %v", what, got, gotErr, want, wantErr)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				seq, w := m.last+rapid.Uint64Range(0, 4).Draw(t, "step"), weight.Draw(t, "weight")
				if got, want := b.Full(w), m.full(w); got != want {
					t.Fatalf("full for %d bytes: got %v, want %v", w, got, want)
				}
				want, wantErr := m.open(seq, w)
				got, err := b.Open(seq, w)
				same(t, "open", got, want, err, wantErr)
			},
			"complete": func(t *rapid.T) {
				seq, w := held(t), weight.Draw(t, "weight")
				want, wantErr := m.complete(seq, w, w)
				got, err := b.Complete(seq, w, w)
				same(t, "complete", got, want, err, wantErr)
			},
			"release": func(t *rapid.T) {
				n := rapid.IntRange(0, m.ready()).Draw(t, "n")
				m.rows = m.rows[n:]
				b.Release(n)
			},
			"": func(t *rapid.T) { compare(t, b, m) },
		})
	})
}

func compare(t *rapid.T, b *Buffer[int], m *model) {
	completed := 0
	for i := range m.rows {
		if m.rows[i].complete {
			completed++
		}
		if at, ok := b.find(m.rows[i].Seq); !ok || at != i {
			t.Fatalf("row %d is found at %d, %t, want %d", m.rows[i].Seq, at, ok, i)
		}
		if i == 0 {
			continue
		}
		if _, ok := b.find(m.rows[i].Seq - 1); ok != (m.rows[i-1].Seq == m.rows[i].Seq-1) {
			t.Fatalf("find is wrong about the number before row %d", m.rows[i].Seq)
		}
	}
	if b.Len() != len(m.rows) || b.Completed() != completed || b.Bytes() != m.bytes() {
		t.Fatalf("got %d rows, %d complete, %d bytes, want %d, %d, %d", b.Len(), b.Completed(), b.Bytes(), len(m.rows), completed, m.bytes())
	}
	if seq, ok := b.Head(); ok != (len(m.rows) > 0) || ok && seq != m.rows[0].Seq {
		t.Fatalf("head %d, %v of %d rows", seq, ok, len(m.rows))
	}
	if seq, ok := b.Blocker(); ok != (m.ready() < len(m.rows)) || ok && seq != m.rows[m.ready()].Seq {
		t.Fatalf("blocker %d, %v with %d of %d rows ready", seq, ok, m.ready(), len(m.rows))
	}
	for i := -1; i <= len(m.rows); i++ {
		e, ok := b.Ready(i)
		if want := i >= 0 && i < m.ready(); ok != want {
			t.Fatalf("row %d from the head: ready %v, want %v", i, ok, want)
		}
		if ok && *e != m.rows[i] {
			t.Fatalf("row %d from the head: got %+v, want %+v", i, *e, m.rows[i])
		}
	}
}
