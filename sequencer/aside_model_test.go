package sequencer

import (
	"errors"
	"fmt"
	"slices"

	"pgregory.net/rapid"
)

// The model's rows that are set aside.

func (m *keyedModel) asides() (rows []*modelRow) {
	for _, r := range m.rows {
		if r.aside {
			rows = append(rows, r)
		}
	}
	return rows
}

func (m *keyedModel) asideOf(key string) (rows []*modelRow) {
	for _, r := range m.asides() {
		if r.key == key {
			rows = append(rows, r)
		}
	}
	return rows
}

func (m *keyedModel) isDropped(seq uint64) bool {
	return slices.ContainsFunc(m.rows, func(r *modelRow) bool { return r.Seq == seq && r.dropped })
}

// recalled returns the rows that are on their way back, and their bytes.
func (m *keyedModel) recalled() (rows int, bytes int64) {
	for _, r := range m.asides() {
		if r.recalled {
			rows++
			bytes += int64(r.Bytes)
		}
	}
	return rows, bytes
}

func (m *keyedModel) taken() int {
	recalled, _ := m.recalled()
	return len(m.held()) + recalled
}

func (m *keyedModel) noRoom(bytes int) bool {
	return m.taken() >= m.limits.Rows || m.taken() > 0 && m.takenBytes()+int64(bytes) > m.limits.Bytes
}

func (m *keyedModel) takenBytes() int64 {
	_, recalled := m.recalled()
	_, waiting := m.waiting()
	return m.bytes() + recalled - max(0, waiting-m.limits.Bytes/2)
}

func (m *keyedModel) inReserve() bool {
	return m.taken() >= m.limits.Rows-m.reserve.Rows || m.reserve.Bytes > 0 && m.takenBytes() >= m.limits.Bytes-m.reserve.Bytes
}

func (m *keyedModel) crowded() bool {
	rows, bytes := m.waiting()
	return 2*rows >= m.limits.Rows || 2*bytes >= m.limits.Bytes
}

// waiting returns the complete rows that wait for others, and their weight.
func (m *keyedModel) waiting() (rows int, bytes int64) {
	for _, r := range m.held() {
		if r.complete && !r.ready {
			rows++
			bytes += int64(r.Bytes)
		}
	}
	return rows, bytes
}

// waits reports whether rows of a key are held that are not ready, and whether complete ones are among them.
func (m *keyedModel) waits(key string) (some, complete bool) {
	for _, r := range m.held() {
		if !r.free && r.key == key && !r.ready {
			some = true
			complete = complete || r.complete
		}
	}
	return some, complete
}

func (m *keyedModel) outside(key string, bytes int) bool {
	some, complete := m.waits(key)
	return m.noRoom(bytes) || len(m.asideOf(key)) > 0 ||
		m.crowded() && (complete || some && m.inReserve())
}

func (m *keyedModel) setAside(seq uint64, key string, bytes int) error {
	switch {
	case seq <= m.last:
		return ErrOutOfOrder
	case slices.Contains(m.known, seq):
		return ErrFinished
	case len(m.above()) >= m.span:
		return ErrFull
	}
	m.pass(seq)
	m.last = seq
	m.rows = append(m.rows, &modelRow{Entry: Entry[int]{Seq: seq, Bytes: bytes}, key: key, aside: true, note: fmt.Sprint("note ", seq)})
	m.list(key)
	return nil
}

// next returns the row of a key that is recalled next, nil for none, and how many are recalled.
func (m *keyedModel) next(key string) (row *modelRow, recalled int) {
	for _, r := range m.asideOf(key) {
		if !r.recalled {
			return r, recalled
		}
		recalled++
	}
	return nil, recalled
}

func (m *keyedModel) list(key string) {
	if row, recalled := m.next(key); row != nil && recalled < 16 && !slices.Contains(m.turns, key) {
		m.turns = append(m.turns, key)
	}
}

// recall returns the row that is recalled; 0: none.
func (m *keyedModel) recall() uint64 {
	if m.taken() >= m.limits.Rows || m.takenBytes() >= m.limits.Bytes {
		return 0
	}
	for range min(len(m.turns), 16) {
		key := m.turns[0]
		m.turns = m.turns[1:]
		row, recalled := m.next(key)
		some, complete := m.waits(key)
		if m.crowded() && complete || m.inReserve() && (some || recalled > 0) {
			m.turns = append(m.turns, key)
			continue
		}
		row.recalled = true
		m.list(key)
		return row.Seq
	}
	return 0
}

// back lets a row come back, or be dropped. next is the row of its key that comes back next, 0 for none.
func (m *keyedModel) back(seq uint64, dropped bool) (submit uint64, note string, next uint64, err error) {
	i := slices.IndexFunc(m.rows, func(r *modelRow) bool { return r.Seq == seq && r.aside })
	if i < 0 {
		return 0, "", 0, ErrNotOpen
	}
	r := m.rows[i]
	if r != m.asideOf(r.key)[0] || !r.recalled {
		return 0, "", 0, ErrOutOfOrder
	}
	r.aside, r.dropped = false, dropped
	if !dropped {
		r.SubmitIndex = m.sub
		m.sub++
	}
	m.list(r.key)
	if rows := m.asideOf(r.key); len(rows) > 0 && rows[0].recalled {
		next = rows[0].Seq
	}
	return r.SubmitIndex, r.note, next, nil
}

// comeBack lets a row come back to both, or be dropped.
func comeBack(t *rapid.T, b *Keyed[int], m *keyedModel, seq uint64, dropped bool) (next uint64, err error) {
	wantSubmit, wantNote, wantNext, wantErr := m.back(seq, dropped)
	if dropped {
		if next, err = b.Drop(seq); next != wantNext || !errors.Is(err, wantErr) {
			t.Fatalf("drop row %d: next %d, %v, want %d, %v", seq, next, err, wantNext, wantErr)
		}
		return next, err
	}
	submit, note, next, err := b.Reopen(seq)
	if submit != wantSubmit || note != wantNote || next != wantNext || !errors.Is(err, wantErr) {
		t.Fatalf("reopen row %d: got %d, %q, next %d, %v, want %d, %q, %d, %v",
			seq, submit, note, next, err, wantSubmit, wantNote, wantNext, wantErr)
	}
	return next, err
}

// finish lets all go well from any state: each row held is completed, each recalled one comes back, and what is ready is
// released. Then all rows are finished in a bounded number of rounds, and nothing of them is left.
func finish(t *rapid.T, b *Keyed[int], m *keyedModel) {
	rounds := 0
	for most := 2 * (len(m.rows) + 1); len(m.above()) > 0; rounds++ {
		if rounds > most {
			t.Fatalf("%d rows are left after %d rounds, %d of them set aside", len(m.above()), rounds, len(m.asides()))
		}
		for _, r := range m.held() {
			if !r.complete {
				_, _ = m.complete(r.Seq, 0, r.Bytes)
				if _, err := b.Complete(r.Seq, 0, r.Bytes); err != nil {
					t.Fatal(err)
				}
			}
		}
		m.release(len(m.ready))
		b.Release(b.ready.count)
		for seq, ok := b.Recall(); ok; seq, ok = b.Recall() {
			if want := m.recall(); seq != want {
				t.Fatalf("recalled row %d, want %d", seq, want)
			}
		}
		m.recall()
		for _, r := range m.asides() {
			if r.recalled {
				if _, err := comeBack(t, b, m, r.Seq, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		compareKeyed(t, b, m)
	}
	a := &b.asides
	if b.bytes != 0 || b.waitingBytes != 0 || a.recalled != 0 || a.recalledBytes != 0 || a.count != 0 || a.keys.count != 0 || len(b.byKey) != 0 {
		t.Fatalf("something is left of no row: %+v", b)
	}
	for _, q := range b.queues {
		if q != (queue{}) {
			t.Fatalf("a queue still holds %+v", q)
		}
	}
	for _, row := range a.slots {
		if row != (aside{}) {
			t.Fatalf("a row set aside is still there: %+v", row)
		}
	}
	if len(b.spare) != len(b.slots) || len(a.spare) != len(a.slots) || len(b.spareQueues) != len(b.queues) {
		t.Fatalf("%d of %d slots, %d of %d asides, %d of %d queues are free",
			len(b.spare), len(b.slots), len(a.spare), len(a.slots), len(b.spareQueues), len(b.queues))
	}
}
